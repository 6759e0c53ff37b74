"""What the demonstrations of collectives show, against the textbook."""

import inspect
import re
import warnings
from itertools import pairwise

import numpy as np
import pytest

from minidist.comm import algorithms
from minidist.show.demos import DEMONSTRATIONS
from minidist.show.demos.collectives import kinds, run, training
from minidist.show.demos.collectives import scene as scenes
from minidist.show.demos.collectives.code import CODE
from minidist.show.demos.collectives.pictures import harm, network, places
from minidist.show.demos.collectives.pictures.travel import journeys
from minidist.show.demos.shared.runs import WarmRanks
from minidist.show.figures.contributions import held, name
from minidist.show.palette import of_rank
from minidist.show.player.scene import Arrow, Box, Curve, Frame
from tests.frames import boxes, check_inside, labels

KINDS = {
    kind.name: kind for kind in (kinds.BROADCAST, kinds.RING, kinds.REDUCE_SCATTER, kinds.ALL_GATHER, kinds.ALL_TO_ALL)
}
SIZES = [2, 3, 5, 8]


@pytest.fixture(scope="module")
def warm(ranks):
    """WarmRanks on the ranks that all tests share."""
    return WarmRanks(ranks)


def recorded(warm, kind, program, n, each=2, seed=0):
    return run.recorded(kind, program, warm, n, each * n, seed)[0]


def first_of(kind) -> str:
    """The algorithm of the first scene."""
    return next(iter(kind.programs))


def result_of(kind, n: int, each: int = 2, seed: int = 0) -> np.ndarray:
    """What one process computes: (ranks, M)."""
    return kind.ends(np.stack([run.numbers_of(rank, each * n, seed) for rank in range(n)]))


def defined(kind, n: int) -> np.ndarray:
    """Which chunks the result has: (ranks, chunks) bool."""
    return ~np.isnan(result_of(kind, n, each=1))


def scene_of(kind, algorithm, steps, right=None, in_numbers=False):
    return scenes.of_steps(kind, algorithm, steps, right or steps, defined(kind, len(steps[0].values)), in_numbers)


def cells(frame: Frame) -> list[Box]:
    """The outlines of the grid's cells, row by row."""
    return [box for box in boxes(frame, fill=None) if not box.id]


def letters(marks: np.ndarray) -> list[list[str]]:
    return [[name(value, len(marks)) for value in row] for row in marks]


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_result_and_bytes_are_those_of_the_collective(warm, kind, n):
    for algorithm, program in kinds.programs_for(kind, n).items():
        steps = recorded(warm, kind, program, n)
        right = kind.ends(np.stack([run.numbers_of(rank, 2 * n, 0) for rank in range(n)]))
        assert scenes.same(steps[-1].numbers, right).all()
        assert max(steps[-1].nbytes) == kind.formula[algorithm][1](n, 8 * 2 * n)
        assert sum(message.nbytes for step in steps for message in step.messages) == sum(steps[-1].nbytes)
        for before, after in pairwise(steps):  # what has changed was sent there in that step
            changed = {int(rank) for rank in np.argwhere(before.values != after.values)[:, 0]}
            assert changed == {message.destination for message in after.messages}


@pytest.mark.parametrize(
    ("kind", "algorithm", "count"),
    [
        ("broadcast", "tree", lambda n: (n - 1).bit_length()),
        ("broadcast", "naive", lambda n: n - 1),
        ("broadcast", "ring", lambda n: n - 1),
        ("ring", "ring", lambda n: 2 * (n - 1)),
        ("ring", "naive", lambda n: 2 * (n - 1)),
        ("ring", "halving-doubling", lambda n: 2 * (n.bit_length() - 1)),
        ("reduce-scatter", "ring", lambda n: n - 1),
        ("all-gather", "ring", lambda n: n - 1),
        ("all-to-all", "pairwise", lambda n: n - 1),
    ],
)
def test_as_many_steps_as_the_textbook_says(warm, kind, algorithm, count):
    for n in (n for n in SIZES if algorithm in kinds.programs_for(KINDS[kind], n)):
        assert len(recorded(warm, KINDS[kind], KINDS[kind].programs[algorithm], n)) - 1 == count(n)


def test_the_ring_step_by_step(warm):
    """Chunk c starts at the right neighbour of rank c, and each rank on its way around adds its own."""
    steps = recorded(warm, kinds.RING, kinds.RING.programs["ring"], 3)
    assert letters(steps[0].values) == [["a0", "b0", "c0"], ["a1", "b1", "c1"], ["a2", "b2", "c2"]]
    assert letters(steps[1].values) == [["a0", "b02", "c0"], ["a1", "b1", "c01"], ["a12", "b2", "c2"]]
    assert letters(steps[2].values) == [["Σa", "b02", "c0"], ["a1", "Σb", "c01"], ["a12", "b2", "Σc"]]
    assert letters(steps[3].values) == [["Σa", "b02", "Σc"], ["Σa", "Σb", "c01"], ["a12", "Σb", "Σc"]]
    assert letters(steps[4].values) == [["Σa", "Σb", "Σc"]] * 3
    assert [network.label(m) for m in steps[1].messages] == ["0 → 1 c (16 B)", "1 → 2 a (16 B)", "2 → 0 b (16 B)"]


@pytest.mark.long
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("seed", [0, 7])
def test_the_bug_does_harm_in_every_algorithm_and_is_marked_where_it_begins(warm, kind, n, seed):
    for algorithm, program in kinds.programs_for(kind, n).items():
        good, bad = (recorded(warm, kind, one, n, 1, seed) for one in (program, kind.broken[algorithm]))
        scene = scenes.broken(kind, algorithm, bad, good, defined(kind, n), "told")
        first = next(i for i in range(len(bad)) if (bad[i].values != good[i].values).any())
        assert scene.first_wrong == first > 0 and scene.twin == algorithm and scene.details == "told"
        marked = [sum(cell.outline == "wrong" for cell in cells(frame)) for frame in scene.frames]
        assert marked == [int((one.values != other.values).sum()) for one, other in zip(bad, good, strict=True)]
        if not kind.adds:  # a chunk is one rank's: it is filled
            assert [len(boxes(frame, fill="wrong", id="")) for frame in scene.frames] == marked
        right = result_of(kind, n, 1, seed)
        wrong = ~scenes.same(bad[-1].numbers, right)  # one number in each chunk
        assert scene.verdict.endswith(f" in {wrong.sum()} of {defined(kind, n).sum()} chunks.") and wrong.any()
        assert f"First wrong in step {first}: " in scenes.details(kind, bad, good, right)


# ── which chunk travels ──────────────────────────────────────────────────────────────────────────────────────────────


def in_a_ring(rank: int, step: int, n: int) -> tuple[int, int, int]:
    """For a message: the sender's chunk, the destination, and the receiver's chunk, which has the same place."""
    return (rank - step) % n, (rank + 1) % n, (rank - step) % n


def all_reduce(rank: int, step: int, n: int) -> tuple[int, int, int]:
    return in_a_ring(rank, step if step < n else step - n, n)


def all_gather(rank: int, step: int, n: int) -> tuple[int, int, int]:
    return in_a_ring(rank, step - 1, n)


def all_to_all(rank: int, step: int, n: int) -> tuple[int, int, int]:
    return (rank + step) % n, (rank + step) % n, rank


def wrong_all_reduce(rank: int, step: int, n: int) -> tuple[int, int, int]:
    chunk, destination, place = all_reduce(rank, step, n)
    return {1: n - 1, 2: 0}.get(step, chunk) if rank == 1 and step < n else chunk, destination, place


def wrong_all_gather(rank: int, step: int, n: int) -> tuple[int, int, int]:
    again = rank == 1 and step == n - 1
    return all_gather(rank, step - again, n)[0], *all_gather(rank, step, n)[1:]


def wrong_all_to_all(rank: int, step: int, n: int) -> tuple[int, int, int]:
    chunk, destination, place = all_to_all(rank, step, n)
    return {1: 2 % n, 2: 1}.get(chunk, chunk) if rank == 0 else chunk, destination, place


TRAVELS = {
    "ring": (all_reduce, wrong_all_reduce),
    "reduce-scatter": (in_a_ring, in_a_ring),
    "all-gather": (all_gather, wrong_all_gather),
    "all-to-all": (all_to_all, wrong_all_to_all),
}


@pytest.mark.parametrize("n", [3, 5, 8])
@pytest.mark.parametrize("is_broken", [False, True], ids=["right", "broken"])
@pytest.mark.parametrize("kind", TRAVELS)
def test_a_message_names_the_chunk_that_travelled_and_the_one_that_it_changed(warm, kind, is_broken, n):
    one, travels = KINDS[kind], TRAVELS[kind][is_broken]
    program = (one.broken if is_broken else one.programs)[first_of(one)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a lecture must not show NumPy's
        steps = recorded(warm, one, program, n)
    for number, step in enumerate(steps[1:], 1):
        found = [(m.source, m.from_chunks, m.destination, m.to_chunks) for m in step.messages]
        expected = [(rank, *travels(rank, number, n)) for rank in range(n)]
        assert found == [(rank, (chunk,), to, (place,)) for rank, chunk, to, place in expected]


@pytest.mark.parametrize("n", [4, 8])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_arrows_go_from_the_sender_to_the_receiver_in_the_sender_s_colour(warm, kind, n):
    for algorithm, program in kinds.programs_for(kind, n).items():
        steps, at = recorded(warm, kind, program, n), kind.places_of(algorithm, n).ranks
        for step, frame in zip(steps, scene_of(kind, algorithm, steps).frames, strict=True):
            arrows = [shape for shape in frame.shapes if isinstance(shape, Arrow)]
            for message, arrow in zip(step.messages, arrows, strict=True):
                assert arrow.colour == of_rank(message.source)
                for x, y, rank in (arrow.x, arrow.y, message.source), (arrow.to_x, arrow.to_y, message.destination):
                    assert away(at[rank], x, y) <= 6  # next to its box


def away(place: tuple[float, float], x: float, y: float) -> float:
    """The distance from a place, in characters; a line is two."""
    return float(np.hypot(place[0] - x, 2 * (place[1] - y)))


@pytest.mark.parametrize("n", SIZES)
def test_ranks_stand_apart(n):
    for shape in (places.circle, places.tree, places.fan):
        at = shape(n).ranks
        for one in range(n):
            for other in range(one):
                (x, y), (other_x, other_y) = at[one], at[other]
                assert abs(x - other_x) >= network.WIDE - 0.1 or abs(y - other_y) >= 2 * network.HIGH - 0.6


def test_in_the_ring_a_chunk_s_sum_travels_around_it(warm):
    """What arrives is sent on: the four things of the first step are those of the last one, and no others come."""
    steps = recorded(warm, kinds.RING, kinds.RING.programs["ring"], 4)
    found = journeys(steps)
    assert [one.id for one in found] == [f"chunk {letter} from rank {r}" for r, letter in enumerate("dabc")]
    for start, one in enumerate(found):
        assert {frame: rank for frame, (rank, _) in one.stops.items()} == {s: (start + s) % 4 for s in range(7)}
    scene = scene_of(kinds.RING, "ring", steps)
    for before, after in pairwise(scene.frames):
        places_of = [{box.id: (box.x, box.y) for box in boxes(f) if box.id} for f in (before, after)]
        assert places_of[0].keys() == places_of[1].keys() == {one.id for one in found}
        assert all(places_of[0][one] != places_of[1][one] for one in places_of[0])


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_what_is_sent_on_is_what_arrived(warm, kind):
    """An all-to-all sends from a copy, and a copy that stays does not travel: neither is one thing that goes on."""
    for n in (4, 5):
        for program in kinds.programs_for(kind, n).values():
            steps = recorded(warm, kind, program, n)
            found = journeys(steps)
            assert len({one.id for one in found}) == len(found)
            assert sum(len(one.stops) - 1 for one in found) == sum(len(step.messages) for step in steps)
            for one in found:
                (source, sent), *_ = one.stops.values()
                assert held(steps[one.first].values[source, sent[0]], n)
            if kind is kinds.ALL_TO_ALL:
                assert all(len(one.stops) == 2 for one in found)


def test_copies_within_an_array_do_not_count_as_messages(warm):
    """On two ranks, the broken all-to-all leaves b of rank 0 at its own place a; rank 1's message is at b."""
    (step,) = recorded(warm, kinds.ALL_TO_ALL, kinds.ALL_TO_ALL.broken["pairwise"], 2)[1:]
    assert letters(step.values) == [["b0", "a1"], ["a0", "b1"]]
    assert [(m.source, m.from_chunks, m.to_chunks) for m in step.messages] == [(0, (0,), (0,)), (1, (0,), (1,))]


# ── what is said ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("n", [3, 4, 8])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_step_says_add_if_it_added_and_pass_on_if_it_passed_on(warm, kind, n):
    for algorithm, program in kinds.programs_for(kind, n).items():
        steps = recorded(warm, kind, program, n)
        frames = scene_of(kind, algorithm, steps).frames
        for number, (before, after) in enumerate(pairwise(steps), 1):
            did = {
                what_happened(steps[0].values[m.source], before.values, after.values, m.source, m.destination, chunk)
                for m in after.messages
                for chunk in m.to_chunks
            }
            said = "added" if re.search(r"\badds?\b", frames[number].note) else "kept"
            assert did == {said} and frames[number].note.startswith(f"Step {number}: ")


def what_happened(at_first, before, after, source: int, destination: int, chunk: int) -> str:
    """Whether a chunk became what the sender held, or the sum of that and its old value."""
    old, new, held = before[destination, chunk], after[destination, chunk], {*before[source], *at_first}
    if new in held:
        return "kept"
    return "added" if new - old in held else "neither"


@pytest.mark.parametrize(
    ("kind", "algorithm", "sources", "way"),
    [
        ("broadcast", "naive", lambda step, n: {0}, lambda step: step),  # to the next rank
        ("broadcast", "ring", lambda step, n: {step - 1}, lambda step: 1),  # one rank further
        ("all-to-all", "pairwise", lambda step, n: set(range(n)), lambda step: step),  # to the one so many after it
        ("ring", "ring", lambda step, n: set(range(n)), lambda step: 1),  # from the rank before
    ],
)
def test_messages_go_where_the_note_says(warm, kind, algorithm, sources, way):
    for n in (3, 5):
        steps = recorded(warm, KINDS[kind], KINDS[kind].programs[algorithm], n)
        for number, step in enumerate(steps[1:], 1):
            assert {message.source for message in step.messages} == sources(number, n)
            assert {(m.destination - m.source) % n for m in step.messages} == {way(number)}
    says = KINDS["all-to-all"].says["pairwise"]
    assert [re.findall(r"\d+", says(step, 5)) for step in (1, 4)] == [["1"], ["4"]]


@pytest.mark.parametrize("n", [3, 5])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_note_and_details_name_the_first_wrong_rank_and_place(warm, kind, n):
    algorithm = first_of(kind)
    good, bad = (recorded(warm, kind, one[algorithm], n) for one in (kind.programs, kind.broken))
    right = result_of(kind, n)
    scene = scene_of(kind, algorithm, bad, good)
    wrong = []  # in the first frame that is, rank by rank and chunk by chunk
    for rank in range(n):
        for chunk, letter in zip(range(n), "abcde", strict=False):
            if bad[scene.first_wrong].values[rank, chunk] != good[scene.first_wrong].values[rank, chunk]:
                wrong.append(f"{letter} on rank {rank}")
    note = scene.frames[scene.first_wrong].note
    assert f" Wrong from now on: {', '.join(wrong[:3])}{' and more' if len(wrong) > 3 else ''}." in note
    details = scenes.details(kind, bad, good, right)
    assert f" {wrong[0]}. " in details
    element, rank, expected, found = re.search(
        r"element (\d+) of rank (\d+): expected (\S+), got (\S+),", details
    ).groups()
    place = int(rank), int(element)
    assert f"{bad[-1].numbers[place]:.6g}" == found != expected == f"{right[place]:.6g}"
    earlier = [(r, e) for r in range(n) for e in range(2 * n) if (r, e) < place and not np.isnan(right[r, e])]
    assert all(bad[-1].numbers[one] == right[one] for one in earlier)


@pytest.mark.parametrize(("kind", "algorithm"), CODE, ids=lambda word: word)
def test_the_lines_are_those_of_the_library_without_the_group(kind, algorithm):
    assert CODE.keys() == {(kind.name, one) for kind in KINDS.values() for one in kind.programs}
    source, code = plain(inspect.getsource(algorithms)), CODE[kind, algorithm]
    assert 4 <= len(code.lines) <= 10 and max(map(len, code.lines)) <= 44
    for line in code.lines:
        assert plain(line) in source
    for n in (2, 4, 8):
        lit = {line for step in range(2 * n) for line in code.at(step, n)}
        assert lit <= set(range(len(code.lines))) and code.at(0, n) == ()


def plain(source: str) -> str:
    """Without spaces, parentheses and the group, so that a line may be broken in two."""
    return re.sub(r"\s|[()]|\bgroup\.|,\s*group\b(?!\.)", "", source)


def test_a_step_lights_what_it_runs():
    ring, halving = CODE["ring", "ring"], CODE["ring", "halving-doubling"]
    assert ["combine" in "".join(ring.lines[i] for i in ring.at(step, 4)) for step in range(1, 7)] == [True] * 3 + [
        False
    ] * 3
    assert ["combine" in "".join(halving.lines[i] for i in halving.at(step, 8)) for step in range(1, 7)] == [
        True
    ] * 3 + [False] * 3


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_answers_are_what_the_run_did(warm, kind, n):
    for algorithm, program in kinds.programs_for(kind, n).items():
        steps = recorded(warm, kind, program, n)
        scene = scene_of(kind, algorithm, steps)
        asked = [question.choices[question.answer] for question in scene.questions]
        assert asked[0].endswith(f" = {len(steps) - 1}")
        assert len(asked) == 1 or asked[1].endswith(f" = {max(steps[-1].nbytes):,} B")
        for question in scene.questions:
            values = [re.search(r"= (.*)$", choice)[1] for choice in question.choices]
            assert len(set(values)) == len(values) > 1 and question.frame < len(scene.frames)
        answers = [question.frame for question in scene.questions]
        assert len(set(answers)) == len(answers) and len({q.asked or q.frame for q in scene.questions}) == len(answers)
        assert scene.cues and sum(cue.minutes for cue in scene.cues) > 0


@pytest.mark.parametrize("n", [2, 4])
def test_small_integers_add_up(warm, n):
    steps = recorded(warm, kinds.RING, kinds.RING.programs["ring"], n)
    scene = scene_of(kinds.RING, "ring", steps, in_numbers=True)
    (question,), total = scene.questions, n * (n + 1) // 2
    assert question.choices[question.answer] == str(total)
    begin = [box.text for box in boxes(scene.frames[0], fill="paper", id="") if box.text.isdigit()]
    assert begin == [str((rank + 1) * (chunk + 1)) for rank in range(n) for chunk in range(n)]
    end = [box.text for box in boxes(scene.frames[-1], fill="paper", id="") if box.text.isdigit()]
    assert end == [str(total * (chunk + 1)) for chunk in range(n)] * n


# ── the whole ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["ring", "reduce-scatter", "all-gather"])
def test_the_bug_makes_training_diverge(warm, kind, short_training):
    text = training.consequence(KINDS[kind].trains_on, warm, 2, 0)
    start = "Training diverges from the single-process run: it first differs after step 0, "
    assert text.startswith(start) and "ulp" in text


def all_gather_ring(chunks: list[np.ndarray], group) -> None:
    """In place of the library's function of this name: another one that is right."""
    algorithms.all_gather_direct(chunks, group)


def test_the_weights_of_a_right_run_do_not_drift_and_those_of_a_broken_one_do(warm, short_training):
    layout_of, function = kinds.ALL_GATHER.trains_on
    right = training.harm((layout_of, all_gather_ring), warm, 2, 0)
    assert not right.drift.any() and (right.right == right.wrong).all()
    wrong = training.harm((layout_of, function), warm, 2, 0)
    assert (wrong.right == right.right).all() and (wrong.drift[:, 0] == 0).all() and (wrong.drift[:, -1] > 0).all()
    bad = np.eye(2, dtype=bool)
    frames = [Frame(harm.draw(wrong, shown, bad, np.ones_like(bad)), "") for shown in (False, True)]
    assert [labels(frame)[0] for frame in frames] == ["loss"] * 2 and "weights off by, %" in labels(frames[1])
    curves = [shape for shape in frames[1].shapes if isinstance(shape, Curve) and len(shape.points) > training.LONGER]
    assert len(curves) == 2  # of two ranks, whose weights are not the same
    assert {curve.colour for curve in curves} == {"wrong", "ink"}  # never green
    assert [box.fill for box in boxes(frames[1])] == ["wrong", "right", "right", "wrong"]  # the collective's result
    shown = [harm.draw(one, False, bad, bad) for one in (wrong, right)]
    assert [harm.SAME in labels(Frame(shapes, "")) for shapes in shown] == [False, True]


@pytest.mark.parametrize(("name", "ranks"), [("ring", 3), ("broadcast", 8), ("all-to-all", 5)])
def test_the_animation(name, ranks, short_training):
    animation = DEMONSTRATIONS[name](ranks=ranks, size=5, seed=1)
    kind = KINDS[name]
    algorithms_shown = list(kinds.programs_for(kind, ranks))
    numbers = [scenes.NUMBERS] if kind.adds else []
    assert [s.name for s in animation.scenes] == [algorithms_shown[0], *numbers, *algorithms_shown[1:]]
    assert [s.twin for s in animation.all_broken] == [s.name for s in animation.scenes]  # every scene, broken
    for good, bad in zip(animation.scenes, animation.all_broken, strict=True):
        check_inside(good)
        check_inside(bad, note=150)
        assert good.title == bad.title and good.questions and bad.questions and bad.cues
        trained = 2 if bad is animation.broken and kind.trains_on else 0
        assert len(bad.frames) == len(good.frames) + trained
    assert len({scene.name for scene in animation.all_scenes}) == len(animation.all_scenes)
    assert len(animation.html()) < 200_000
    assert len(animation.logs) == ranks and all(animation.logs)


def test_the_ring_s_frames(short_training):
    animation = DEMONSTRATIONS["ring"](ranks=3, size=5, seed=1)
    assert animation.broken.first_wrong == 1 and len(animation.scenes[0].frames) == 5
    last = animation.scenes[0].frames[-1]
    assert last.facts == {
        "step": "4 of 4",
        "busiest rank so far": "160 B",
        "formula 2 M (N−1)/N": "160 B",
        "M": "120 B",
    }
    assert sorted(s.label for s in animation.scenes[0].frames[1].shapes if isinstance(s, Arrow)) == [
        "0 → 1 c (40 B)", "1 → 2 a (40 B)", "2 → 0 b (40 B)"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ranks": 1}, "shows 2 to 8 ranks, not 1"),
        ({"ranks": 9}, "shows 2 to 8 ranks, not 9"),
        ({"ranks": 2.0}, "ranks must be an integer, got 2.0"),
        ({"size": 0}, "size, numbers in each chunk, must be from 1 to 10,000, got 0"),
        ({"size": True}, "size must be an integer"),
        ({"seed": -1}, "seed must not be negative, got -1"),
    ],
)
def test_what_cannot_be_shown_is_refused_at_once(arguments, message):
    with pytest.raises(ValueError, match=message):
        DEMONSTRATIONS["broadcast"](**arguments)
