"""The demonstrations of collectives: terms, arrays sent and steps of the textbook, and bugs that do what they say."""

import inspect
import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from choosing import long

from minidist.comm import algorithms
from minidist.show.demos.collectives import kinds, run, story, training
from minidist.show.demos.shared.runs import WarmRanks
from minidist.train.layout import Layout
from minidist.train.trainer import run as train

KINDS = {kind.name: kind for kind in (kinds.BROADCAST, kinds.ALL_REDUCE, kinds.REDUCE_SCATTER, kinds.ALL_GATHER,
                                      kinds.ALL_TO_ALL)}  # fmt: skip
STEPS = {  # of the textbook, for N ranks
    ("broadcast", "tree"): lambda n: (n - 1).bit_length(),
    ("ring", "ring"): lambda n: 2 * (n - 1),
    ("ring", "naive"): lambda n: 2 * (n - 1),
    ("ring", "halving-doubling"): lambda n: 2 * (n.bit_length() - 1),
}  # all others: n - 1
ARRAYS = {  # that the busiest of N ranks sends
    ("broadcast", "tree"): lambda n: (n - 1).bit_length(),
    ("broadcast", "naive"): lambda n: n - 1,
    ("broadcast", "ring"): lambda n: 1,
    ("ring", "ring"): lambda n: 2 * (n - 1) / n,
    ("ring", "naive"): lambda n: n - 1,
    ("ring", "halving-doubling"): lambda n: 2 * (n - 1) / n,
}  # all others: (N - 1) / N


def of_one_process(name: str, n: int) -> np.ndarray:
    """The terms (r, c) in each chunk of each rank at the end, bool (n, n, n, n)."""
    rank, chunk, r, c = np.ogrid[:n, :n, :n, :n]
    return {
        "broadcast": (r == 0) & (c == chunk) & (rank >= 0),
        "ring": (c == chunk) & (r >= 0) & (rank >= 0),
        "reduce-scatter": (c == chunk) & (r >= 0) & (rank == chunk),
        "all-gather": (c == chunk) & (r == chunk) & (rank >= 0),
        "all-to-all": (c == rank) & (r == chunk),
    }[name]


@pytest.mark.parametrize("n", [4, 5, long(2), long(8)])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_terms_arrays_and_steps_are_those_of_the_textbook_and_the_bug_is_counted(ranks, kind, n):
    right = of_one_process(kind.name, n)
    result = right.any((2, 3))
    for name, how in kind.algorithms.items():
        if name == "halving-doubling" and n.bit_count() != 1:
            continue
        steps, bad = (run.recorded(kind.begins, one, ranks(n))[0] for one in (how.program, how.broken))
        key = kind.name, name
        assert (steps[-1].terms[result] == right[result]).all()
        assert len(steps) - 1 == STEPS.get(key, lambda n: n - 1)(n)
        arrays = ARRAYS.get(key, lambda n: (n - 1) / n)(n)
        assert max(steps[-1].sent) == pytest.approx(arrays) == pytest.approx(how.arrays(n))
        for before, after in pairwise(steps):  # what has changed is what was sent there
            changed = {(int(rank), int(chunk)) for rank, chunk, *_ in np.argwhere(before.terms != after.terms)}
            assert changed == {(message.destination, chunk) for message in after.messages for chunk in message.chunks}
        wrong = (bad[-1].terms != right).any((2, 3)) & result
        told = story.tell(kind, name, bad, steps, 3, broken=True)
        differ = [(one.terms != steps[min(i, len(steps) - 1)].terms).any((2, 3)).sum() for i, one in enumerate(bad)]
        first = next(number for number, count in enumerate(differ) if count)
        assert told.beats[first].says == f"The bug strikes. Wrong chunks now: {differ[first]}."
        assert not any(beat.cue for beat, differs in zip(told.beats, differ, strict=True) if not differs)
        assert wrong.any() and told.verdict == f"Wrong: {wrong.sum()} of {result.sum()} chunks."
        frames = [mark for mark in told.marks if mark.still.get("stroke") == "wrong" and mark.at(told.ends)["opacity"]]
        assert len(frames) >= wrong.sum()  # in sight
        shown = story.tell(kind, name, steps, steps, 3)
        assert shown.verdict == f"Right: all {result.sum()} chunks."
        if name == "tree":  # who has all of the array
            have = [int((one.terms == right).all((1, 2, 3)).sum()) for one in steps]
            assert all(f"now {m} of {n} have" in one.says for m, one in zip(have[1:], shown.beats[1:], strict=True))
        assert shown.beats[-1].facts["bytes sent"].startswith(f"{max(steps[-1].sent) * n * 3 * 4:,.0f}, with 3 float32")
        asked = shown.beats[0].asks
        assert shown.beats[-1].facts["arrays sent"] == f"{arrays:.3g}"
        assert asked.choices[asked.answer].endswith(f"{arrays:.3g}")
        landed = [one for one in shown.marks if "'s term" in one.thing and one.at(shown.ends)["opacity"]]
        assert len(landed) == steps[-1].terms.sum()  # a block for each term, and none is left on its way


def plain(source: str) -> str:
    """Without spaces, parentheses and the group, so that a line may be broken in two."""
    return re.sub(r"\s|[()]|\bgroup\.|,\s*group\b(?!\.)", "", source)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_the_program_beside_the_picture_is_the_library_s(kind):
    source = plain(inspect.getsource(algorithms))
    for how in kind.algorithms.values():
        assert all(plain(line) in source for line in how.lines.split("\n"))
        assert set(how.lit(1, 4)) <= set(range(len(how.lines.split("\n"))))


@pytest.mark.long
@pytest.mark.parametrize("name", ["ring", "reduce-scatter", "all-gather"])
def test_a_bug_harms_training_as_far_as_shown(ranks, name):
    warm, kind = WarmRanks(ranks), KINDS[name]
    harm = training.harm(kind.trains_on, warm, 3, 1)
    config = replace(training.MODEL, seed=1, steps=training.LONGER)
    assert harm.right.tolist() == train(ranks(1), config, Layout()).losses
    assert (harm.drift[:, 0] == 0).all() and (harm.drift[:, -1] > 0).all() and (harm.right != harm.wrong).any()
    assert f"From {harm.wrong[0]:.2f} to {harm.wrong[-1]:.2f}" in story.training(kind, harm, True).beats[1].says
