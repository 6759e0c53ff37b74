"""The demonstrations of collectives: results, bytes and steps of the textbook, and bugs that do what they say."""

import inspect
import re
from itertools import pairwise

import numpy as np
import pytest
from every_scene import EveryScene
from frames import arrows
from recorded import recorded, short_runs

from minidist.comm import algorithms
from minidist.show.demos import DEMONSTRATIONS
from minidist.show.demos.collectives import kinds, run, scene, training
from minidist.show.demos.collectives.code import CODE
from minidist.show.demos.shared.runs import WarmRanks
from minidist.show.figures.contributions import held

KINDS = {kind.name: kind for kind in (kinds.BROADCAST, kinds.RING, kinds.REDUCE_SCATTER, kinds.ALL_GATHER,
                                      kinds.ALL_TO_ALL)}  # fmt: skip
STEPS = {  # of the textbook, for N ranks
    ("broadcast", "tree"): lambda n: (n - 1).bit_length(),
    ("ring", "ring"): lambda n: 2 * (n - 1),
    ("ring", "naive"): lambda n: 2 * (n - 1),
    ("ring", "halving-doubling"): lambda n: 2 * (n.bit_length() - 1),
}  # all others: n - 1
BYTES = {  # that the busiest of N ranks sends of M
    ("broadcast", "tree"): lambda n, m: m * (n - 1).bit_length(),
    ("broadcast", "naive"): lambda n, m: m * (n - 1),
    ("broadcast", "ring"): lambda n, m: m,
    ("ring", "ring"): lambda n, m: 2 * m * (n - 1) // n,
    ("ring", "naive"): lambda n, m: m * (n - 1),
    ("ring", "halving-doubling"): lambda n, m: 2 * m * (n - 1) // n,
}  # all others: M (N - 1) / N


@pytest.fixture(params=[pytest.param(name, marks=[] if name == "broadcast" else pytest.mark.long) for name in KINDS])
def shown(request):
    return recorded(request.param)


class TestScenes(EveryScene):
    pass


def of_one_process(kind, n: int, each: int) -> np.ndarray:
    """The result, by the definition of the collective, (N, M); NaN where it is undefined."""
    values = np.stack([run.numbers_of(rank, each * n, 0) for rank in range(n)])
    chunks = values.reshape(n, n, each)
    found = {
        "broadcast": np.stack([values[0]] * n),
        "ring": np.stack([values.sum(axis=0)] * n),
        "all-gather": np.stack([chunks[range(n), range(n)].reshape(-1)] * n),
        "all-to-all": chunks.swapaxes(0, 1).reshape(n, -1),
    }
    own = np.where(np.eye(n, dtype=bool)[..., None], chunks.sum(axis=0), np.nan).reshape(n, -1)
    return found.get(kind.name, own)


@pytest.mark.parametrize("n", [2, 5, 8])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_result_bytes_and_steps_are_those_of_the_textbook_and_the_bug_is_where_it_says(ranks, kind, n):
    warm, right = WarmRanks(ranks), of_one_process(kind, n, 2)
    defined = ~np.isnan(right[:, ::2])
    for algorithm, program in kinds.programs_for(kind, n).items():
        steps, bad = (run.recorded(kind, one, warm, n, 2 * n, 0)[0] for one in (program, kind.broken[algorithm]))
        key = kind.name, algorithm
        nbytes = BYTES.get(key, lambda n, m: m * (n - 1) // n)(n, 8 * 2 * n)
        assert (np.isnan(right) | (steps[-1].numbers == right)).all()
        assert len(steps) - 1 == STEPS.get(key, lambda n: n - 1)(n)
        assert max(steps[-1].nbytes) == nbytes and sum(steps[-1].nbytes) == sum(
            message.nbytes for step in steps for message in step.messages
        )
        for number, (before, after) in enumerate(pairwise(steps), 1):  # what has changed is what was sent there
            changed = {int(rank) for rank in np.argwhere(before.values != after.values)[:, 0]}
            assert changed == {message.destination for message in after.messages}
            for message in after.messages:
                had = [*before.values[message.source], *steps[0].values[message.source]]
                for chunk in message.to_chunks:
                    new, old = (one.values[message.destination, chunk] for one in (after, before))
                    adds = re.search(r"\badds?\b", kind.says[algorithm](number, n))
                    assert (new - old if adds else new) in had
        shown = scene.of_steps(kind, algorithm, steps, steps, defined)
        for step, frame in zip(steps, shown.frames, strict=True):
            routes = [f"{message.source} → {message.destination}" for message in step.messages]
            assert [text[:5] for text in arrows(frame)] == routes
        broken = scene.broken(kind, algorithm, bad, steps, defined, "")
        first = next(i for i in range(len(bad)) if (bad[i].values != steps[i].values).any())
        wrong = (~np.isnan(right) & (bad[-1].numbers != right)).reshape(n, n, 2).any(axis=2)
        assert broken.first_wrong == first > 0 and wrong.any()
        assert f" in {wrong.sum()} of {defined.sum()} chunks." in broken.verdict
        told_of = scene.details(kind, bad, steps, right)
        pattern = r"element (\d+) of rank (\d+): expected (\S+), got (\S+),"
        element, rank, expected, got = re.search(pattern, told_of).groups()
        assert f"{right[int(rank), int(element)]:.6g}" == expected != got


def test_the_ring_step_by_step(ranks):
    """Chunk c starts at the right neighbour of rank c, and each rank on its way around adds its own."""
    steps = run.recorded(kinds.RING, kinds.RING.programs["ring"], WarmRanks(ranks), 3, 6, 0)[0]
    letters = [["".join("abc"[chunk] + str(rank) for rank, chunk in held(value, 3)) for value in row]
               for row in steps[2].values]  # fmt: skip
    assert letters == [["a0a1a2", "b0b2", "c0"], ["a1", "b0b1b2", "c0c1"], ["a1a2", "b2", "c0c1c2"]]


def test_a_right_algorithm_in_the_place_of_a_broken_one_does_no_harm(ranks, monkeypatch):
    short_runs(monkeypatch)

    def all_gather_ring(chunks, group) -> None:  # the library's name, which it replaces
        algorithms.all_gather_direct(chunks, group)

    layout_of, function = kinds.ALL_GATHER.trains_on
    right, wrong = (training.harm((layout_of, one), WarmRanks(ranks), 2, 0) for one in (all_gather_ring, function))
    assert not right.drift.any() and (right.right == right.wrong).all()
    assert (wrong.drift[:, 0] == 0).all() and (wrong.drift[:, -1] > 0).all()


def plain(source: str) -> str:
    """Without spaces, parentheses and the group, so that a line may be broken in two."""
    return re.sub(r"\s|[()]|\bgroup\.|,\s*group\b(?!\.)", "", source)


@pytest.mark.parametrize(("kind", "algorithm"), CODE, ids=lambda word: word)
def test_the_program_beside_the_picture_is_the_library_s(kind, algorithm):
    assert CODE.keys() == {(kind.name, one) for kind in KINDS.values() for one in kind.programs}
    source, code = plain(inspect.getsource(algorithms)), CODE[kind, algorithm]
    assert all(plain(line) in source for line in code.lines)
    for n in (2, 4, 8):
        lit = {line for step in range(2 * n) for line in code.at(step, n)}
        assert lit <= set(range(len(code.lines))) and code.at(0, n) == ()


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("broadcast", {"ranks": 9}, "shows 2 to 8 ranks, not 9"),
        ("broadcast", {"ranks": 2.0}, "ranks must be an integer, got 2.0"),
        ("broadcast", {"size": 0}, "size, numbers in each chunk, must be from 1 to 10,000, got 0"),
        ("broadcast", {"seed": -1}, "seed must not be negative, got -1"),
        ("pp", {"ranks": 2, "size": 17}, "the micro-batches of a step, must be at most 16"),
        ("flash", {"ranks": 2}, "shows 1 rank, not 2"),
        ("deadlock", {"size": 1000}, "numbers in a message, must be from 1,001 to 1,000,000, got 1,000"),
        ("cluster", {"size": 130}, "must be a multiple of its 4 heads, got 130"),
    ],
)
def test_what_cannot_be_shown_is_refused_before_anything_runs(name, arguments, message):
    with pytest.raises(ValueError, match=message):
        DEMONSTRATIONS[name](**arguments)
