"""What the demonstrations of collectives show, against the textbook."""

import re
import warnings
from itertools import pairwise

import numpy as np
import pytest

from minidist.show.contributions import name
from minidist.show.demos import DEMONSTRATIONS
from minidist.show.demos.collectives import bug, kinds, picture, run
from minidist.show.demos.collectives import scene as scenes
from minidist.show.demos.shared.runs import WarmRanks
from minidist.show.palette import of_rank
from minidist.show.player.scene import Arrow, Box

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
    assert [picture.label(m) for m in steps[1].messages] == ["0 → 1 c (16 B)", "1 → 2 a (16 B)", "2 → 0 b (16 B)"]


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("seed", [0, 7])
def test_the_bug_does_harm_and_is_marked_where_it_begins(warm, kind, n, seed):
    algorithm = next(iter(kind.programs))
    good, bad = (recorded(warm, kind, one, n, 1, seed) for one in (kind.programs[algorithm], kind.broken))
    scene = scenes.of_steps(kind, "broken", bad, algorithm, good, "told")
    first = next(i for i in range(len(bad)) if (bad[i].values != good[i].values).any())
    assert scene.first_wrong == first > 0
    marked = [sum(isinstance(s, Box) and s.outline == "wrong" for s in frame.shapes) for frame in scene.frames]
    assert marked == [int((one.values != other.values).sum()) for one, other in zip(bad, good, strict=True)]
    right = kind.ends(np.stack([run.numbers_of(rank, n, seed) for rank in range(n)]))
    assert not scenes.same(bad[-1].numbers, right).all()
    assert f"First wrong in step {first}: " in scenes.verdict(kind, bad, good, right)


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
    program = one.broken if is_broken else next(iter(one.programs.values()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a lecture must not show NumPy's
        steps = recorded(warm, one, program, n)
    for number, step in enumerate(steps[1:], 1):
        found = [(m.source, m.from_chunks, m.destination, m.to_chunks) for m in step.messages]
        expected = [(rank, *travels(rank, number, n)) for rank in range(n)]
        assert found == [(rank, (chunk,), to, (place,)) for rank, chunk, to, place in expected]


@pytest.mark.parametrize(("kind", "algorithm"), [("all-to-all", "pairwise"), ("ring", "ring"), ("broadcast", "tree")])
@pytest.mark.parametrize("n", [4, 8])
def test_an_arrow_goes_from_the_chunk_sent_to_the_chunk_changed_in_the_sender_s_colour(warm, kind, algorithm, n):
    steps = recorded(warm, KINDS[kind], KINDS[kind].programs[algorithm], n)
    frames = scenes.of_steps(KINDS[kind], "right", steps, algorithm, steps).frames
    for step, frame in zip(steps, frames, strict=True):
        cells = sorted((s for s in frame.shapes if isinstance(s, Box) and s.fill is None), key=lambda s: (s.y, s.x))
        arrows = [shape for shape in frame.shapes if isinstance(shape, Arrow)]
        for message, arrow in zip(step.messages, arrows, strict=True):
            ends = (message.source, message.from_chunks), (message.destination, message.to_chunks)
            (left, top), (to_left, to_top) = (middle_of([cells[n * rank + c] for c in chunks]) for rank, chunks in ends)
            assert (arrow.x, arrow.to_x) == pytest.approx((left, to_left))
            side = 1 if to_top > top else -1  # both ends are in the cells' halves that face each other
            assert 0 < side * (arrow.y - top) <= 1 and 0 < side * (to_top - arrow.to_y) <= 1
            assert arrow.colour == of_rank(message.source)
            straight_down = arrow.x == arrow.to_x and abs(message.source - message.destination) > 1
            assert (arrow.bend > 0) == straight_down  # across the cells in between, texts would be unreadable


def test_copies_within_an_array_do_not_count_as_messages(warm):
    """On two ranks, the broken all-to-all leaves b of rank 0 at its own place a; rank 1's message is at b."""
    (step,) = recorded(warm, kinds.ALL_TO_ALL, kinds.ALL_TO_ALL.broken, 2)[1:]
    assert letters(step.values) == [["b0", "a1"], ["a0", "b1"]]
    assert [(m.source, m.from_chunks, m.to_chunks) for m in step.messages] == [(0, (0,), (0,)), (1, (0,), (1,))]


def middle_of(cells: list[Box]) -> tuple[float, float]:
    return sum(c.x + c.w / 2 for c in cells) / len(cells), cells[0].y + cells[0].h / 2


# ── what is said ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("n", [3, 4, 8])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_step_says_add_if_it_added_and_pass_on_if_it_passed_on(warm, kind, n):
    for algorithm, program in kinds.programs_for(kind, n).items():
        steps = recorded(warm, kind, program, n)
        frames = scenes.of_steps(kind, algorithm, steps, algorithm, steps).frames
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
def test_note_and_verdict_name_the_first_wrong_rank_and_place(warm, kind, n):
    algorithm = next(iter(kind.programs))
    good, bad = (recorded(warm, kind, one, n) for one in (kind.programs[algorithm], kind.broken))
    right = kind.ends(np.stack([run.numbers_of(rank, 2 * n, 0) for rank in range(n)]))
    scene = scenes.of_steps(kind, "broken", bad, algorithm, good, "told")
    wrong = []  # in the first frame that is, rank by rank and chunk by chunk
    for rank in range(n):
        for chunk, letter in zip(range(n), "abcde", strict=False):
            if bad[scene.first_wrong].values[rank, chunk] != good[scene.first_wrong].values[rank, chunk]:
                wrong.append(f"{letter} on rank {rank}")
    note = scene.frames[scene.first_wrong].note
    assert f" Wrong from now on: {', '.join(wrong[:3])}{' and more' if len(wrong) > 3 else ''}." in note
    verdict = scenes.verdict(kind, bad, good, right)
    assert f" {wrong[0]}. " in verdict
    element, rank, expected, found = re.search(
        r"element (\d+) of rank (\d+): expected (\S+), got (\S+),", verdict
    ).groups()
    place = int(rank), int(element)
    assert f"{bad[-1].numbers[place]:.6g}" == found != expected == f"{right[place]:.6g}"
    earlier = [(r, e) for r in range(n) for e in range(2 * n) if (r, e) < place and not np.isnan(right[r, e])]
    assert all(bad[-1].numbers[one] == right[one] for one in earlier)


# ── the whole ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["ring", "reduce-scatter", "all-gather"])
def test_the_bug_makes_training_diverge(warm, kind):
    text = bug.consequence(KINDS[kind].trains_on, warm, 2, 0)
    start = "Training diverges from the single-process run: it first differs after step 0, "
    assert text.startswith(start) and "ulp" in text


def test_the_animation():
    animation = DEMONSTRATIONS["ring"](ranks=3, size=5, seed=1)
    assert [scene.name for scene in animation.scenes] == ["ring", "naive"] and animation.broken.first_wrong == 1
    assert [len(scene.frames) for scene in animation.scenes] == [5, 5]
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
    assert len(animation.logs) == 3 and all(animation.logs)


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
