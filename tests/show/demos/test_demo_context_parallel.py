"""The demonstration cp: who computes what is what the tiles say, idle time is counted, and stale keys are marked."""

from dataclasses import replace

import pytest
from frames import boxes, check_inside, labels, told

from minidist.parallel.context import sequence_chunks_of
from minidist.show.demos import DEMONSTRATIONS
from minidist.show.demos.context_parallel import as_gpus, backward, forward, heads, heads_run
from minidist.show.demos.context_parallel.bug import train_stale, train_stale_backward, train_stale_heads
from minidist.show.demos.context_parallel.pictures import clock, gathered, matrix
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
from minidist.show.demos.shared import gpus
from minidist.show.demos.shared.runs import warm_ranks
from minidist.show.palette import of_rank
from minidist.show.player.scene import Arrow, Box
from minidist.train.layout import Layout

pytestmark = pytest.mark.long  # it records several training runs

RANKS = 3
RIGHT = ["ring", "zigzag", "backward", heads.NAME, as_gpus.NAME]


@pytest.fixture(scope="module")
def animation():
    return DEMONSTRATIONS["cp"](ranks=RANKS, size=4, seed=1)


@pytest.fixture(scope="module")
def runs():
    """The run of each kind, and those with the bug."""
    with warm_ranks() as warm:
        found = {
            kind: warm.train(config_of(kind, RANKS, 4, 1), Layout(cp=RANKS, cp_kind=kind), train_watched, trace=True)
            for kind in CHUNKS
        }
        for name, train in {"stale": train_stale, "stale backward": train_stale_backward}.items():
            found[name] = warm.train(found["ring"].config, Layout(cp=RANKS), train, trace=True)
        return found


@pytest.fixture(scope="module")
def passes(runs):
    return {name: passes_of(run) for name, run in runs.items()}


@pytest.fixture(scope="module")
def by_heads():
    """Ulysses, without the bug and with it."""
    config, layout = heads_run.config_of(RANKS, 4, 1), Layout(cp=RANKS, cp_kind="ulysses")
    with warm_ranks() as warm:
        trains = {"right": heads_run.train_heads, "stale": train_stale_heads}
        return {name: warm.train(config, layout, train, trace=True) for name, train in trains.items()}


def named(animation, name: str):
    return next(one for one in animation.all_scenes if one.name == name)


def states(one) -> list[tuple[int, int]]:
    """For each frame of a ring: how many hops keys have made, and which hop is computed last."""
    found = [(-1, -1), (0, 0)]
    for hop in range(1, RANKS):
        found += [(hop, hop - 1), (hop, hop)]
    return found if len(one.frames) == len(found) else [*found, (RANKS, RANKS - 1)]  # the last one: home


def cells(frame) -> list[Box]:
    """Of the matrix of scores, those that are not masked."""
    right = matrix.LEFT + 2 * matrix.SIDE
    return [box for box in boxes(frame) if matrix.LEFT <= box.x < right and box.y >= matrix.TOP]


def bars(frame) -> list[Box]:
    """Of time."""
    return [box for box in boxes(frame) if box.x >= clock.LEFT]


def travellers(frame) -> dict[str, Box]:
    return {box.id: box for box in boxes(frame) if box.id}


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
    assert ring.slots() == 4 * n * n and ring.busy() == (n + 1) / (2 * n)


def test_a_rank_waits_for_keys_that_have_not_left():
    """Rank 1 has no work in hop 1, but rank 0 sends hop 2's keys only when its own first visit is over."""
    counts = [[5, 1, 1], [1, 0, 2], [0, 3, 0]]
    visits = [[Visit(FORWARD, 0, rank, [(0, 0)] * count, None) for rank, count in enumerate(hop)] for hop in counts]
    assert Pass(visits).times() == [[(0, 5), (0, 1), (0, 1)], [(5, 6), (1, 1), (1, 3)], [(6, 6), (5, 8), (3, 3)]]
    assert Pass(visits).slots() == 3 * 8
    drawn = [box for box in clock.draw(Pass(visits), 8, 8) if isinstance(box, Box)]
    scale = (clock.RIGHT - clock.LEFT) / 8
    idle = [(round((box.x - clock.LEFT) / scale), round(box.w / scale)) for box in drawn if box.fill == "faint"]
    assert idle == [(6, 2), (1, 4), (3, 5)]  # of ranks 0, 1 and 2: from, and for how long


@pytest.mark.parametrize("kind", ["ring", "zigzag"])
def test_the_picture_shows_the_run(animation, passes, kind):
    assert [one.name for one in animation.scenes] == RIGHT
    one, found = named(animation, kind), passes[kind][FORWARD]
    assert one.first_wrong is None and len(one.frames) == 2 * RANKS
    for (hop, done), frame in zip(states(one), one.frames, strict=True):
        assert sum(cell.fill is not None for cell in cells(frame)) == found.pairs(done + 1)
        now = [cell for cell in cells(frame) if cell.outline == "ink"]
        assert len(now) == (sum(len(visit.pairs) for visit in found.visits[hop]) if hop == done >= 0 else 0)
        idle = [rank for rank, visit in enumerate(found.visits[hop]) if hop == done >= 0 and not visit.pairs]
        assert [box.text for box in boxes(frame) if box.text.endswith(" idle")] == [f"{rank} idle" for rank in idle]
        assert ("idle" in frame.note) == bool(idle)
    by_rank = [sum(cell.fill == of_rank(rank) for cell in cells(one.frames[-1])) for rank in range(RANKS)]
    assert by_rank == [sum(len(visits[rank].pairs) for visits in found.visits) for rank in range(RANKS)]
    assert "matches the single-process run bit for bit" in told(one)


def test_time_is_work_and_idle_time_on_one_axis(animation, passes):
    """Coloured time is tile pairs, grey time is what is left of the ranks' time; the slowest run fills the axis."""
    longest = passes["ring"][FORWARD].end(-1)
    scale = (clock.RIGHT - clock.LEFT) / longest
    for kind in CHUNKS:
        one, found = named(animation, kind), passes[kind][FORWARD]
        for (_, done), frame in zip(states(one), one.frames, strict=True):
            hops, now = done + 1, found.end(done) if done >= 0 else 0
            worked = sum(box.w for box in bars(frame) if box.fill != "faint")
            idle = sum(box.w for box in bars(frame) if box.fill == "faint")
            assert worked == pytest.approx(scale * found.slots_of_pair * found.pairs(hops))
            assert worked + idle == pytest.approx(scale * RANKS * now)
        assert (idle == 0) == (kind == "zigzag")
        ends = [text for text in labels(one.frames[-1]) if text in forward.DEALT.values()]
        assert ends == [forward.DEALT["zigzag" if kind == "ring" else "ring"]]  # where the other way is done
        assert f"busy for {found.busy():.1%}" in one.verdict
    assert passes["ring"][FORWARD].busy() == (RANKS + 1) / (2 * RANKS) and passes["zigzag"][FORWARD].busy() == 1


def test_scenes_of_forward_share_a_clock(animation, passes):
    for kind in CHUNKS:
        moments = [frame.at for frame in named(animation, kind).frames]
        assert moments == sorted(set(moments)) and moments[-1] == passes[kind][FORWARD].end(-1)
        assert moments == [frame.at for frame in animation.broken_twin(named(animation, kind)).frames]


def test_keys_go_round_and_gradients_come_home(animation):
    def arrows(frame) -> set[str]:
        return {shape.label for shape in frame.shapes if isinstance(shape, Arrow)}

    for one in (named(animation, name) for name in ("ring", "zigzag", "backward")):
        for (hop, done), frame in zip(states(one), one.frames, strict=True):
            things = travellers(frame)
            if hop < RANKS:
                assert {f"KV of rank {rank}" for rank in range(RANKS)} <= set(things)
            if hop > done >= 0 and hop < RANKS:
                owners = {rank: (rank - hop) % RANKS for rank in range(RANKS)}
                assert arrows(frame) == {f"{(rank - 1) % RANKS} → {rank}: KV {o}" for rank, o in owners.items()}
            elif one.name != "backward":
                assert not arrows(frame)
    first, home = (travellers(named(animation, "backward").frames[number]) for number in (1, -1))
    assert set(home) == {f"dKV of rank {rank}" for rank in range(RANKS)}
    assert all(abs(home[name].x - first[name].x) < 1 for name in home)  # after as many hops as ranks each is at home


def test_a_gradient_has_a_term_of_every_rank_that_used_the_keys(animation, passes):
    one, found = named(animation, "backward"), passes["ring"][BACKWARD]
    for (_, done), frame in zip(states(one), one.frames, strict=True):
        added = [box for box in boxes(frame) if box.x >= gathered.LEFT and box.fill is not None]
        assert len(added) == found.pairs(done + 1)
    last = [box for box in boxes(one.frames[-1]) if box.x >= gathered.LEFT]
    assert [box.text for box in last] == [str(rank) for owner in range(RANKS) for rank in range(owner, RANKS)]
    assert [text for text in labels(one.frames[-1]) if "✓" in text] == [f"dKV {rank} ✓" for rank in range(RANKS)]


def test_bytes_are_those_that_were_sent(runs, passes):
    for way in (FORWARD, BACKWARD):
        expected = nbytes_of(runs["ring"].config, RANKS, way)
        assert passes["ring"][way].nbytes == passes["zigzag"][way].nbytes == expected
    with pytest.raises(RuntimeError, match="bytes in forward, not"):
        passes_of(replace(runs["ring"], config=config_of("ring", RANKS, 8, 1)))


def test_stale_keys_are_wrong_wherever_a_rank_has_work_after_hop_0(animation, passes):
    expected = {(hop, rank) for hop in range(1, RANKS) for rank in range(hop, RANKS)}
    for way in (FORWARD, BACKWARD):
        bad = passes["stale"][way]
        assert bad.stale() == expected and not passes["ring"][way].stale()
        assert bad.owners() == [list(range(RANKS))] * RANKS  # each uses its own
        assert [visit.pairs for visits in bad.visits for visit in visits] == [
            visit.pairs for visits in passes["ring"][way].visits for visit in visits
        ]
    assert not passes["stale backward"][FORWARD].stale()
    assert backward.wrong_visits(passes["stale backward"][BACKWARD], passes["ring"][BACKWARD]) == expected


@pytest.mark.parametrize("name", RIGHT)
def test_every_scene_is_broken_at_the_same_frame(animation, name):
    right = named(animation, name)
    broken = animation.broken_twin(right)
    assert broken.twin == name and len(broken.frames) == len(right.frames)
    assert [frame.shapes for frame in broken.frames[: broken.first_wrong]] == [
        frame.shapes for frame in right.frames[: broken.first_wrong]
    ]
    for number, (frame, other) in enumerate(zip(broken.frames, right.frames, strict=True)):
        assert frame.at == other.at
        assert any(box.fill == "wrong" for box in boxes(frame)) == (number >= broken.first_wrong)
        assert not any(box.fill == "wrong" for box in boxes(other))
    assert broken.verdict.startswith("Wrong")
    if name != as_gpus.NAME:
        assert "first differs after step 0" in told(broken)
        assert "Wrong" in broken.frames[broken.first_wrong].note


def test_wrong_tiles_name_the_keys_that_were_used(animation, passes):
    last = animation.broken.frames[-1]
    red = [cell.text for cell in cells(last) if cell.fill == "wrong"]
    assert sorted(red) == sorted(f"K {rank}!" for rank in range(1, RANKS) for _ in range(rank))
    assert animation.broken.verdict == f"Wrong keys in {len(red)} of {passes['ring'][FORWARD].pairs()} tiles."


def test_only_gradients_are_wrong_if_backward_alone_has_the_bug(animation, passes, runs):
    assert runs["stale backward"].losses == runs["ring"].losses != runs["stale"].losses
    off = backward.errors(passes["stale backward"][BACKWARD], passes["ring"][BACKWARD])
    assert [rank for rank in off if any(off[rank])] == list(range(RANKS - 1))  # the last rank's keys are its own alone
    right, wrong = (named(animation, name) for name in ("backward", "broken backward"))
    assert right.frames[-1].facts["loss of the step"] == wrong.frames[-1].facts["loss of the step"]
    shown = [text for text in labels(wrong.frames[-1]) if "off" in text]
    assert shown == [f"dK {rank}: {off[rank][0]:.0%} off" for rank in range(RANKS - 1)]


def test_heads_and_tokens_change_places(animation, by_heads):
    there, back = heads_run.exchanges_of(by_heads["right"])
    for rank in range(RANKS):
        tokens = {(rank, head) for head in range(RANKS)}
        head = {(chunk, rank) for chunk in range(RANKS)}
        assert set(there[rank].before) == set(back[rank].after) == tokens
        assert set(there[rank].after) == set(back[rank].before) == head
    sent = {place: crc for one in there for place, crc in one.before.items()}
    assert sent == {place: crc for one in there for place, crc in one.after.items()}  # moved, and nothing else
    one = named(animation, heads.NAME)
    for frame, exchange, after in zip(one.frames, (there, there, back, back), (False, True, False, True), strict=True):
        drawn = {(box.id, int(box.x // (72 / RANKS))) for box in boxes(frame) if box.id}
        places = [exchange[rank].after if after else exchange[rank].before for rank in range(RANKS)]
        expected = {
            (f"tokens {chunk} of head {head}", rank) for rank, mine in enumerate(places) for chunk, head in mine
        }
        assert drawn == expected
    assert one.frames[-1].facts["a rank has sent"] == f"{there[0].nbytes + back[0].nbytes:,} B"
    with pytest.raises(RuntimeError, match="this is a bug in minidist"):
        heads_run.exchanges_of(replace(by_heads["right"], config=heads_run.config_of(RANKS, 8, 1)))


def test_stale_heads_have_the_same_keys_everywhere(by_heads):
    (right, y), (stale, wrong_y) = (heads_run.exchanges_of(by_heads[name]) for name in ("right", "stale"))
    for rank, one in enumerate(stale):
        assert set(one.after.values()) == {right[rank].after[rank, rank]}
    assert heads_run.same(stale, right) == {(rank, rank) for rank in range(RANKS)}
    assert heads_run.same(wrong_y, y) == {(0, 0)}  # the first tokens see the first keys alone


def test_on_the_cluster_clock_messages_hide_or_do_not(animation):
    one, broken = named(animation, as_gpus.NAME), named(animation, "broken on GPUs")
    assert len(one.variants) == len(broken.variants) == len(gpus.LINKS) * len(gpus.LATENCIES) * len(gpus.CHIPS)
    answers = set()
    for variant, stale in zip(one.variants, broken.variants, strict=True):
        facts = variant.frames[-1].facts
        assert facts == stale.frames[-1].facts  # wrong keys take no time
        message, work = (
            float(facts[name].removesuffix(" µs").replace(",", "")) for name in ("a message", "zigzag's tiles of a hop")
        )
        answers.add((variant.questions[0].answer, message > work))
        ends = {kind: float(facts[name].split(" ")[0].replace(",", "")) for kind, name in forward.DEALT.items()}
        assert ends["zigzag"] <= ends["ring"]
    assert answers == {(0, False), (1, True)}  # both happen somewhere on the dials, and are told apart


def test_work_on_the_cluster_clock_is_where_tiles_are():
    """By hand: rank 0 has no work in hop 1, so that its visit, which reads nothing, is not drawn."""
    visits = [
        [Visit(FORWARD, 0, 0, [(0, 0)], None), Visit(FORWARD, 1, 1, [(1, 1)], None)],
        [Visit(FORWARD, 1, 1, [], None), Visit(FORWARD, 0, 0, [(1, 0)], None)],
    ]
    times = [[(0.0, 4.0), (0.0, 4.0)], [(5.0, 6.0), (5.0, 8.0)]]
    one = as_gpus.Timeline(times, Pass(visits), [(0, 0.0, 5.0), (1, 0.0, 5.0)])
    assert one.worked() == [(0, 0, 0.0, 4.0), (0, 1, 0.0, 4.0), (1, 1, 5.0, 8.0)]
    assert (one.end, one.busy, one.message, one.work) == (8.0, 11 / 16, 5.0, 3.0)


@pytest.mark.parametrize("ranks", [2, 8])
def test_everything_is_in_the_picture(ranks):
    for one in DEMONSTRATIONS["cp"](ranks=ranks, size=1).all_scenes:
        check_inside(one)
        assert one.questions and one.cues and len(one.verdict) < 80
        assert one.height <= 13  # so that letters are as large as the page's width allows


def test_sizes():
    with pytest.raises(ValueError, match="size, tokens in each chunk of zigzag, must be from 1 to 64, got 65"):
        DEMONSTRATIONS["cp"](size=65)
    with pytest.raises(ValueError, match="the demonstration cp shows 2 to 8 ranks, not 1"):
        DEMONSTRATIONS["cp"](ranks=1)
