"""Ranks whose calls do not belong together learn it, whatever carries their messages: each says what both called."""

import numpy as np
import pytest

import minidist as md


def disagree(world, calls, texts) -> None:
    """Each of two ranks makes a call of its own; each error names both."""
    with pytest.raises(md.Mismatch) as caught:
        calls[world.rank](world)
    for text in texts[world.rank]:
        assert text in str(caught.value), str(caught.value)


SUM, MAX = "all_reduce(SUM, float64 (3,), direct)", "all_reduce(MAX, float64 (3,), direct)"
CASES = {
    "two operations": (
        [
            lambda w: md.all_reduce(np.ones(3), md.ReduceOp.SUM, w, algorithm="direct"),
            lambda w: md.all_reduce(np.ones(3), md.ReduceOp.MAX, w, algorithm="direct"),
        ],
        [
            [f"Rank 0 called {SUM}, collective 1 of the world; what came from rank 1 is {MAX}"],
            [f"Rank 1 called {MAX}, collective 1 of the world; what came from rank 0 is {SUM}"],
        ],
    ),
    "two collectives": (
        [
            lambda w: md.all_gather_into_tensor(np.ones(2), np.ones(1), w),
            lambda w: md.all_to_all_single(np.ones(2), np.ones(2), group=w),
        ],
        [
            ["Rank 0 called all_gather_into_tensor(", "what came from rank 1 is all_to_all_single("],
            ["Rank 1 called all_to_all_single(", "what came from rank 0 is all_gather_into_tensor("],
        ],
    ),
    "two sizes": (
        [
            lambda w: md.all_reduce(np.ones(3), group=w, algorithm="direct"),
            lambda w: md.all_reduce(np.ones(4), group=w, algorithm="direct"),
        ],
        [["float64 (3,)", "float64 (4,)"], ["float64 (3,)", "float64 (4,)"]],
    ),
    "two large sizes": (
        [
            lambda w: md.all_reduce(np.ones(300_000), group=w, algorithm="direct"),
            lambda w: md.all_reduce(np.ones(300_001), group=w, algorithm="direct"),
        ],
        [["float64 (300000,)", "float64 (300001,)"], ["float64 (300000,)", "float64 (300001,)"]],
    ),
    "one is a call behind": (
        [
            lambda w: [md.barrier(w), md.all_reduce(np.ones(3), group=w, algorithm="direct")],
            lambda w: [md.all_reduce(np.ones(3), group=w, algorithm="direct"), md.barrier(w)],
        ],
        [
            ["Rank 0 called barrier(), collective 1", f"what came from rank 1 is {SUM}, collective 1"],
            [f"Rank 1 called {SUM}, collective 1", "what came from rank 0 is barrier(), collective 1"],
        ],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_collectives_that_do_not_belong_together(ranks, case):
    ranks(2).run(disagree, *CASES[case])


def wrong_message(world, sent: np.ndarray, expected: np.ndarray, text: str) -> None:
    """The receive has an error and the message is gone: the next one is received as if nothing had been."""
    if world.rank == 0:
        for array in (sent, np.arange(10.0)):
            md.send(array, 1, world)
        return
    with pytest.raises(md.Mismatch) as caught:
        md.recv(expected, 0, world)
    assert text in str(caught.value)
    x = np.empty(10)
    md.recv(x, 0, world)
    assert np.array_equal(x, np.arange(10.0))


@pytest.mark.parametrize(
    ("sent", "expected", "text"),
    [
        (np.ones(3), np.ones(5), "ranks 1 and 0 disagree in recv: rank 1 expects 5 elements from rank 0, which sent 3"),
        (np.ones(5), np.ones(0), "expects 0 elements from rank 0, which sent 5"),
        (np.ones(3, np.float32), np.ones(3), "called recv of a message of float64; what came from rank 0 is a message"),
        (np.ones(700_000), np.ones(3), "expects 3 elements from rank 0, which sent 700,000"),
        (np.ones(3), np.ones(700_000), "expects 700,000 elements from rank 0, which sent 3"),
        (np.ones(700_000, np.float32), np.ones(700_000), "is a message of float32"),
    ],
)
def test_a_message_that_is_not_the_expected_one(ranks, sent, expected, text):
    ranks(2).run(wrong_message, sent, expected, text)
