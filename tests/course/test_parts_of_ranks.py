"""Messages that name the rank whose part of a sum is missing, or whose array came instead."""

import numpy as np
import pytest

from minidist.course.authoring.contributions import is_copy, is_sum
from minidist.course.sandbox.values import numbers

PARTS = [numbers(rank, 4) for rank in range(5)]
OTHER = [numbers(rank, 4, seed=1) for rank in range(5)]
COPIES = {"rank 0's": PARTS[0], "rank 1's": PARTS[1]}


def message(assertion, *args) -> str:
    with pytest.raises(AssertionError) as caught:
        assertion(*args)
    return str(caught.value).partition("\nassert ")[0]


def test_whose_part_of_a_sum_is_wrong():
    for counts, expected in (
        ([1, 0, 1, 1, 1], "rank 1's part is missing"),
        ([2, 0, 1, 1, 1], "rank 1's part is missing, rank 0's part is counted twice"),
        ([0, 0, 0, 1, 2], "the parts of ranks 0, 1 and 2 are missing, rank 4's part is counted twice"),
    ):
        for dtype in ("float64", "float32", "int32"):
            parts = [part.astype(dtype) for part in PARTS]
            found = sum(count * part for count, part in zip(counts, parts, strict=True)).astype(dtype)
            assert message(is_sum, found, parts, "chunk 0") == f"chunk 0: {expected}"
    is_sum(sum(PARTS), PARTS, "chunk 0", {"chunk 1": OTHER})


@pytest.mark.parametrize(
    ("assertion", "arguments", "expected"),
    [
        (is_sum, (sum(OTHER[1:]), PARTS), "it holds the sum of chunk 1, rank 0's part is missing"),
        (is_sum, (sum(PARTS) + 0.5, PARTS), "element 0: expected"),  # nothing explains it
        (is_sum, (np.zeros(3), PARTS), "expected shape (4,), got (3,)"),
        (is_sum, (None, PARTS), "expected an array of float64, got NoneType"),
        (is_copy, (PARTS[1], "rank 0's", COPIES), "chunk 0: expected rank 0's, got rank 1's"),
        (is_copy, (PARTS[2], "rank 0's", COPIES), "element 0: expected"),
        (is_copy, (PARTS[1].astype(np.float32), "rank 0's", COPIES), "got float32"),
    ],
)
def test_what_came_instead(assertion, arguments, expected):
    others = ({"chunk 1": OTHER},) if assertion is is_sum else ()
    assert expected in message(assertion, *arguments, "chunk 0", *others)
    is_copy(PARTS[0], "rank 0's", COPIES, "rank 2")
