"""What the demonstrations of collectives show, beside what collectives are."""

from itertools import pairwise

import numpy as np
import pytest

from minidist.show.contributions import name
from minidist.show.demos import DEMONSTRATIONS, board, kinds
from minidist.show.demos import collectives as demo
from minidist.show.demos import steps as steps_of
from minidist.show.demos.runs import WarmRanks
from minidist.show.player.scene import Arrow, Box

KINDS = {
    kind.name: kind for kind in (kinds.BROADCAST, kinds.RING, kinds.REDUCE_SCATTER, kinds.ALL_GATHER, kinds.ALL_TO_ALL)
}
SIZES = [2, 3, 5, 8]


@pytest.fixture(scope="module")
def warm(ranks):
    """WarmRanks on the ranks that all tests share."""
    return WarmRanks(ranks)


def watched(warm, kind, program, n, each=2, seed=0):
    return steps_of.watched(kind, program, warm, n, each * n, seed)[0]


def letters(marks: np.ndarray) -> list[list[str]]:
    return [[name(value, len(marks)) for value in row] for row in marks]


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_the_last_step_is_the_collective_s_result_and_the_bytes_are_the_formula_s(warm, kind, n):
    for algorithm, program in kinds.programs_for(kind, n).items():
        steps = watched(warm, kind, program, n)
        right = kind.ends(np.stack([steps_of.numbers_of(rank, 2 * n, 0) for rank in range(n)]))
        assert demo._same(steps[-1].numbers, right).all()
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
        assert len(watched(warm, KINDS[kind], KINDS[kind].programs[algorithm], n)) - 1 == count(n)


def test_the_ring_step_by_step(warm):
    """Chunk c begins its way round at the right neighbour of rank c, and each rank on it adds its own."""
    steps = watched(warm, kinds.RING, kinds.RING.programs["ring"], 3)
    assert letters(steps[0].values) == [["a0", "b0", "c0"], ["a1", "b1", "c1"], ["a2", "b2", "c2"]]
    assert letters(steps[1].values) == [["a0", "b02", "c0"], ["a1", "b1", "c01"], ["a12", "b2", "c2"]]
    assert letters(steps[2].values) == [["Σa", "b02", "c0"], ["a1", "Σb", "c01"], ["a12", "b2", "Σc"]]
    assert letters(steps[3].values) == [["Σa", "b02", "Σc"], ["Σa", "Σb", "c01"], ["a12", "Σb", "Σc"]]
    assert letters(steps[4].values) == [["Σa", "Σb", "Σc"]] * 3
    assert [board.told(m) for m in steps[1].messages] == ["0 → 1 c (16 B)", "1 → 2 a (16 B)", "2 → 0 b (16 B)"]


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("seed", [0, 7])
def test_the_bug_does_harm_and_is_marked_where_it_begins(warm, kind, n, seed):
    algorithm = next(iter(kind.programs))
    good, bad = (watched(warm, kind, one, n, 1, seed) for one in (kind.programs[algorithm], kind.broken))
    scene = demo._scene(kind, "broken", bad, algorithm, good, "told")
    first = next(i for i in range(len(bad)) if (bad[i].values != good[i].values).any())
    assert scene.parts_at == first > 0
    marked = [sum(isinstance(s, Box) and s.outline == "wrong" for s in frame.shapes) for frame in scene.frames]
    assert marked == [int((one.values != other.values).sum()) for one, other in zip(bad, good, strict=True)]
    right = kind.ends(np.stack([steps_of.numbers_of(rank, n, seed) for rank in range(n)]))
    assert not demo._same(bad[-1].numbers, right).all()
    assert f"First wrong in step {first}: " in demo._verdict(kind, bad, good, right)


@pytest.mark.parametrize("kind", ["ring", "reduce-scatter", "all-gather"])
def test_the_bug_parts_training_from_one_process(warm, kind):
    text = demo._consequence(KINDS[kind], warm, 2, 0)
    assert text.startswith("After step 0 training differs from one process: ") and "ulp" in text


def test_the_film():
    film = DEMONSTRATIONS["ring"](ranks=3, size=5, seed=1)
    assert [scene.name for scene in film.scenes] == ["ring", "naive"] and film.broken.parts_at == 1
    assert [len(scene.frames) for scene in film.scenes] == [5, 5]
    last = film.scenes[0].frames[-1]
    assert last.facts == {
        "step": "4 of 4",
        "busiest rank so far": "160 B",
        "formula 2 M (N−1)/N": "160 B",
        "M": "120 B",
    }
    assert sorted(s.label for s in film.scenes[0].frames[1].shapes if isinstance(s, Arrow)) == [
        "0 → 1 c (40 B)", "1 → 2 a (40 B)", "2 → 0 b (40 B)"
    ]  # fmt: skip
    assert len(film.logs) == 3 and all(film.logs)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ranks": 1}, "shows 2 to 8 ranks, not 1"),
        ({"ranks": 9}, "shows 2 to 8 ranks, not 9"),
        ({"ranks": 2.0}, "ranks must be a whole number, but is 2.0"),
        ({"size": 0}, "size, numbers in each chunk, must be from 1 to 10,000, but is 0"),
        ({"size": True}, "size must be a whole number"),
        ({"seed": -1}, "seed must not be negative, but is -1"),
    ],
)
def test_what_cannot_be_shown_is_refused_at_once(arguments, message):
    with pytest.raises(ValueError, match=message):
        DEMONSTRATIONS["broadcast"](**arguments)
