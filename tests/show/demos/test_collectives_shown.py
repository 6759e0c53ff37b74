"""The demonstrations of collectives: results, bytes and steps of the textbook, and bugs that do what they say."""

import inspect
import re
from itertools import pairwise

import numpy as np
import pytest
from choosing import long
from every_scene import EveryScene
from frames import arrows
from recorded import recorded

from minidist.comm import algorithms
from minidist.show.demos.collectives import kinds, run, scene
from minidist.show.demos.collectives.code import CODE
from minidist.show.demos.shared.runs import WarmRanks

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


@pytest.mark.parametrize("n", [4, 5, long(2), long(8)])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_result_bytes_and_steps_are_those_of_the_textbook_and_the_bug_is_where_it_says(ranks, kind, n):
    warm, right = WarmRanks(ranks), of_one_process(kind, n, 2)
    defined = ~np.isnan(right[:, ::2])
    for algorithm, program in kinds.programs_for(kind, n).items():
        steps, bad = (run.recorded(kind, one, warm, n, 2 * n, 0)[0] for one in (program, kind.broken[algorithm]))
        key = kind.name, algorithm
        assert (np.isnan(right) | (steps[-1].numbers == right)).all()
        assert len(steps) - 1 == STEPS.get(key, lambda n: n - 1)(n)
        assert max(steps[-1].nbytes) == BYTES.get(key, lambda n, m: m * (n - 1) // n)(n, 8 * 2 * n)
        assert sum(steps[-1].nbytes) == sum(message.nbytes for step in steps for message in step.messages)
        for before, after in pairwise(steps):  # what has changed is what was sent there
            changed = {int(rank) for rank in np.argwhere(before.values != after.values)[:, 0]}
            assert changed == {message.destination for message in after.messages}
        shown = scene.of_steps(kind, algorithm, steps, steps, defined)
        for step, frame in zip(steps, shown.frames, strict=True):
            routes = [f"{message.source} → {message.destination}" for message in step.messages]
            assert [text[:5] for text in arrows(frame)] == routes
        broken = scene.broken(kind, algorithm, bad, steps, defined, "")
        wrong = (~np.isnan(right) & (bad[-1].numbers != right)).reshape(n, n, 2).any(axis=2)
        assert broken.first_wrong == next(i for i in range(len(bad)) if (bad[i].values != steps[i].values).any())
        assert wrong.any() and f" in {wrong.sum()} of {defined.sum()} chunks." in broken.verdict
        pattern = r"element (\d+) of rank (\d+): expected (\S+), got (\S+),"
        element, rank, expected, got = re.search(pattern, scene.details(kind, bad, steps, right)).groups()
        assert f"{right[int(rank), int(element)]:.6g}" == expected != got


def plain(source: str) -> str:
    """Without spaces, parentheses and the group, so that a line may be broken in two."""
    return re.sub(r"\s|[()]|\bgroup\.|,\s*group\b(?!\.)", "", source)


@pytest.mark.parametrize(("kind", "algorithm"), CODE, ids=lambda word: word)
def test_the_program_beside_the_picture_is_the_library_s(kind, algorithm):
    assert CODE.keys() == {(kind.name, one) for kind in KINDS.values() for one in kind.programs}
    source, code = plain(inspect.getsource(algorithms)), CODE[kind, algorithm]
    assert all(plain(line) in source for line in code.lines)
