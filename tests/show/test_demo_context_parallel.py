"""The demonstration cp: who computes what is what the tiles say, idle time is counted, and stale keys are marked."""

import re
from dataclasses import replace

import pytest
from frames import boxes, told

from minidist.parallel.context import sequence_chunks_of
from minidist.show.demos import DEMONSTRATIONS
from minidist.show.demos.context_parallel import picture, scene
from minidist.show.demos.context_parallel.bug import train_stale
from minidist.show.demos.context_parallel.run import (
    BACKWARD,
    CHUNKS,
    FORWARD,
    Pass,
    Visit,
    config_of,
    nbytes_of,
    passes_of,
    train_watched,
)
from minidist.show.demos.menu import SCENES
from minidist.show.demos.shared.runs import warm_ranks
from minidist.show.palette import of_rank
from minidist.show.player.scene import WIDTH, Arrow, Box, Label
from minidist.train.layout import Layout

RANKS = 3


@pytest.fixture(scope="module")
def animation():
    return DEMONSTRATIONS["cp"](ranks=RANKS, size=4, seed=1)


@pytest.fixture(scope="module")
def runs():
    """The run of each kind, and the one with the bug."""
    with warm_ranks() as warm:
        found = {
            kind: warm.train(config_of(kind, RANKS, 4, 1), Layout(cp=RANKS, cp_kind=kind), train_watched, trace=True)
            for kind in CHUNKS
        }
        return found | {"stale": warm.train(found["ring"].config, Layout(cp=RANKS), train_stale, trace=True)}


@pytest.fixture(scope="module")
def passes(runs):
    return {name: passes_of(run) for name, run in runs.items()}


def frames_of(one, way: str) -> list:
    """Those before each pass, of its hops, and in backward the one in which gradients come home."""
    return one.frames[: RANKS + 1] if way == FORWARD else one.frames[RANKS + 1 :]


def cells(frame) -> list[Box]:
    """Of the grid of chunks."""
    return [box for box in boxes(frame) if box.x < picture.RANKS and box.y < 1 + picture.LINES]


def bars(frame, panel: int) -> list[Box]:
    """Of one panel of time, without the grey below."""
    left = picture.LANES[panel]
    here = [box for box in boxes(frame) if box.y >= 3 + picture.LINES and left <= box.x < left + picture.LANE]
    return [box for box in here if box.fill != "faint"]


@pytest.mark.parametrize("kind", ["ring", "zigzag"])
@pytest.mark.parametrize("way", [FORWARD, BACKWARD])
def test_what_was_recorded_is_every_pair_up_to_the_diagonal_once(passes, kind, way):
    found = passes[kind][way]
    done = [pair for visits in found.visits for visit in visits for pair in visit.pairs]
    assert sorted(done) == [(i, j) for i in range(CHUNKS[kind] * RANKS) for j in range(i + 1)]
    for hop, visits in enumerate(found.visits):
        for rank, visit in enumerate(visits):
            owner = (rank - hop) % RANKS
            assert visit.owner == owner == found.owners()[hop][rank]
            mine, theirs = (sequence_chunks_of(one, RANKS, CHUNKS[kind] * RANKS, kind) for one in (rank, owner))
            assert visit.pairs == [(i, j) for i in mine for j in theirs if j <= i]


def made_up(ranks: int, kind: str) -> Pass:
    """A pass whose pairs are those of the rule, on any number of ranks."""
    parts = [sequence_chunks_of(rank, ranks, CHUNKS[kind] * ranks, kind) for rank in range(ranks)]
    visits = [
        [
            Visit(FORWARD, owner, owner, [(i, j) for i in parts[rank] for j in parts[owner] if j <= i], None)
            for rank in range(ranks)
            for owner in [(rank - hop) % ranks]
        ]
        for hop in range(ranks)
    ]
    return Pass(visits, 4 if kind == "ring" else 1)


@pytest.mark.parametrize("n", range(2, 9))
def test_efficiency_by_counting(n):
    ring, zigzag = made_up(n, "ring"), made_up(n, "zigzag")
    assert ring.pairs() == n * (n + 1) // 2 and ring.work() == 4 * ring.pairs()
    assert zigzag.pairs() == zigzag.work() == zigzag.slots() == n * (2 * n + 1)
    assert ring.slots() == 4 * n * n and scene.busy(ring) == (n + 1) / (2 * n)


def test_a_rank_waits_for_keys_that_have_not_left():
    """Rank 1 has no work in hop 1, but rank 0 sends hop 2's keys only when its own first visit is over."""
    counts = [[5, 1, 1], [1, 0, 2], [0, 3, 0]]
    visits = [[Visit(FORWARD, 0, rank, [(0, 0)] * count, None) for rank, count in enumerate(hop)] for hop in counts]
    assert Pass(visits).times() == [[(0, 5), (0, 1), (0, 1)], [(5, 6), (1, 1), (1, 3)], [(6, 6), (5, 8), (3, 3)]]
    assert Pass(visits).slots() == 3 * 8


@pytest.mark.parametrize("way", [FORWARD, BACKWARD])
def test_the_picture_shows_the_run(animation, passes, way):
    assert tuple(one.name for one in animation.scenes) == SCENES["cp"] == ("ring", "zigzag")
    for one in animation.scenes:
        found, frames = passes[one.name][way], frames_of(one, way)
        assert len(frames) == 1 + RANKS + (way == BACKWARD) and one.first_wrong is None
        total = found.pairs()
        for number, frame in enumerate(frames):
            hop = min(number, RANKS) - 1
            assert sum(cell.fill is not None for cell in cells(frame)) == found.pairs(hop + 1)
            now = [cell for cell in cells(frame) if cell.outline == "ink"]
            expected = [] if number in (0, RANKS + 1) else [pair for v in found.visits[hop] for pair in v.pairs]
            assert len(now) == len(expected)
            assert frame.facts["tile pairs"] == f"{found.pairs(hop + 1)} of {total}"
            assert frame.facts["hops done"] == f"{hop + 1} of {RANKS}, {way}"
        last = frames[-1]
        by_rank = [sum(cell.fill == of_rank(rank) for cell in cells(last)) for rank in range(RANKS)]
        assert by_rank == [sum(len(visits[rank].pairs) for visits in found.visits) for rank in range(RANKS)]
        assert "matches the single-process run bit for bit" in told(one)


def test_formulas_are_in_the_facts(animation):
    ring, zigzag = (one.frames[-1].facts for one in animation.scenes)
    assert ring["slots with work (n+1)/2n"] == "24 of 36: 66.7%" and (RANKS + 1) / (2 * RANKS) == 24 / 36
    assert zigzag["slots with work"] == "21 of 21: 100.0%"
    assert ring["tile pairs"] == "6 of 6" and zigzag["tile pairs"] == "21 of 21"


def test_both_panels_have_one_scale_and_their_length_is_work(animation, passes):
    """Coloured time is tile pairs; what the slowest rank has takes the full width."""
    for way in (FORWARD, BACKWARD):
        slots = passes["ring"][way].slots() // RANKS
        last = frames_of(animation.scenes[0], way)[-1]
        titles = {shape.text for shape in last.shapes if isinstance(shape, Label)}
        for panel, kind in enumerate(("ring", "zigzag")):
            found = passes[kind][way]
            drawn = bars(last, panel)
            assert sum(box.w for box in drawn) == pytest.approx(picture.LANE * found.work() / slots)
            assert f"{scene.TITLES[kind]}: {scene.busy(found):.1%} busy" in titles
        sooner = frames_of(animation.scenes[1], way)[RANKS]  # zigzag is done before contiguous chunks are
        assert sum(box.w for box in bars(sooner, 1)) == pytest.approx(
            picture.LANE * passes["zigzag"][way].work() / slots
        )
        assert sum(box.w for box in bars(sooner, 0)) < sum(box.w for box in bars(last, 0))


def test_keys_go_round_and_gradients_come_home(animation):
    def arrows(frame) -> set[str]:
        return {shape.label for shape in frame.shapes if isinstance(shape, Arrow)}

    for one in animation.all_scenes:
        forward, backward = (frames_of(one, way) for way in (FORWARD, BACKWARD))
        assert not any(map(arrows, (forward[0], forward[-1], backward[0], backward[-1])))
        for hop in range(RANKS):
            moves = {rank: f"{rank} → {(rank + 1) % RANKS}" for rank in range(RANKS)}
            keys = {f"{move}: K, V of rank {(rank - hop) % RANKS}" for rank, move in moves.items()}
            gradients = {f"{move}: dK, dV of rank {(rank - hop) % RANKS}" for rank, move in moves.items()}
            keys = keys if hop < RANKS - 1 else set()
            assert arrows(forward[hop + 1]) == keys and arrows(backward[hop + 1]) == keys | gradients
    home = [box for box in boxes(animation.scenes[0].frames[-1]) if box.x == picture.GRADIENTS]
    assert [box.text for box in home] == [str(rank) for rank in range(RANKS)]


def test_bytes_are_those_that_were_sent(runs, passes):
    for way in (FORWARD, BACKWARD):
        expected = nbytes_of(runs["ring"].config, RANKS, way)
        assert passes["ring"][way].nbytes == passes["zigzag"][way].nbytes == expected
    with pytest.raises(RuntimeError, match="bytes in forward, not"):
        passes_of(replace(runs["ring"], config=config_of("ring", RANKS, 8, 1)))


def test_stale_keys_are_wrong_wherever_a_rank_has_work_after_hop_0(animation, passes):
    right, bad = passes["ring"][BACKWARD], passes["stale"][BACKWARD]
    wrong = scene.wrong_visits(bad, right)
    assert wrong == {(hop, rank) for hop in range(1, RANKS) for rank in range(hop, RANKS)}
    assert bad.owners() == [list(range(RANKS))] * RANKS  # each uses its own
    assert [visit.pairs for visits in bad.visits for visit in visits] == [
        visit.pairs for visits in right.visits for visit in visits
    ]
    broken, unbroken = animation.broken, animation.scenes[0]
    assert broken.first_wrong == RANKS + 1 + 2 and len(broken.frames) == len(unbroken.frames)
    assert [frame.shapes for frame in broken.frames[: RANKS + 2]] == [
        frame.shapes for frame in unbroken.frames[: RANKS + 2]
    ]  # forward is right, and so is hop 0 of backward
    for number, frame in enumerate(frames_of(broken, BACKWARD)):
        red = [box for box in cells(frame) if box.fill == "wrong"]
        steps = [(hop, rank) for hop, rank in wrong if hop < number]
        assert len(red) == sum(len(bad.visits[hop][rank].pairs) for hop, rank in steps)
        assert len([box for box in bars(frame, 0) if box.fill == "wrong"]) == len(steps)
        assert not [box for box in bars(frame, 1) if box.fill == "wrong"]
        assert ("Wrong:" in frame.note) == (2 <= number <= RANKS)
    home = [box.fill for box in boxes(broken.frames[-1]) if box.x == picture.GRADIENTS]
    assert home == ["wrong", "wrong", of_rank(2)]  # nobody but the last rank needs its keys
    assert re.search(r"dK by up to \d+\.\d% of its norm, dV by \d\.\d%", told(broken))
    assert "first differs after step 0" in told(broken)


@pytest.mark.parametrize("ranks", [2, pytest.param(8, marks=pytest.mark.long)])
def test_everything_is_in_the_picture(ranks):
    animation = DEMONSTRATIONS["cp"](ranks=ranks, size=1)
    for one in animation.all_scenes:
        for shape in (shape for frame in one.frames for shape in frame.shapes):
            if isinstance(shape, Box):
                assert 0 <= shape.x <= shape.x + shape.w <= WIDTH
                assert 0 <= shape.y <= shape.y + shape.h <= one.height
                assert len(shape.text) <= shape.w + 0.5
            elif isinstance(shape, Label) and shape.anchor == "start":
                assert shape.x + len(shape.text) <= WIDTH
        assert len({tuple(frame.facts) for frame in one.frames}) == 1


def test_sizes():
    with pytest.raises(ValueError, match="size, tokens in each chunk of zigzag, must be from 1 to 64, got 65"):
        DEMONSTRATIONS["cp"](size=65)
    with pytest.raises(ValueError, match="the demonstration cp shows 2 to 8 ranks, not 1"):
        DEMONSTRATIONS["cp"](ranks=1)
