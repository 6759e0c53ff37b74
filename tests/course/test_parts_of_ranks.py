"""Messages that name the rank whose part of a sum is missing, or whose array came instead."""

import numpy as np
import pytest

from minidist.course.authoring.contributions import is_copy, is_sum
from minidist.course.sandbox.values import numbers

PARTS = [numbers(rank, 4) for rank in range(5)]
OTHER = [numbers(rank, 4, seed=1) for rank in range(5)]


def message(assertion, *args) -> str:
    with pytest.raises(AssertionError) as caught:
        assertion(*args)
    return str(caught.value).partition("\nassert ")[0]


@pytest.mark.parametrize("dtype", ["float64", "float32", "int32"])
@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([1, 0, 1, 1, 1], "rank 1's part is missing"),
        ([2, 0, 1, 1, 1], "rank 1's part is missing, rank 0's part is counted twice"),
        ([0, 0, 0, 1, 2], "the parts of ranks 0, 1 and 2 are missing, rank 4's part is counted twice"),
    ],
)
def test_whose_part_is_wrong(counts, expected, dtype):
    parts = [part.astype(dtype) for part in PARTS]
    found = sum(count * part for count, part in zip(counts, parts, strict=True)).astype(dtype)
    assert message(is_sum, found, parts, "chunk 0") == f"chunk 0: {expected}"
    found[1:] = sum(parts)[1:]  # only one element is wrong
    assert message(is_sum, found, parts, "chunk 0").startswith("chunk 0: ")


def test_what_came_instead_of_a_sum():
    for given, expected in (
        (sum(OTHER[1:]), "it holds the sum of chunk 1, rank 0's part is missing"),
        (sum(PARTS) + 0.5, "element 0: expected"),  # nothing explains it
        (np.zeros(3), "expected shape (4,), got (3,)"),
        (None, "expected an array of float64, got NoneType"),
    ):
        assert expected in message(is_sum, given, PARTS, "chunk 0", {"chunk 1": OTHER})
    is_sum(sum(PARTS), PARTS, "chunk 0", {"chunk 1": OTHER})


def test_which_array_came():
    copies = {"rank 0's": PARTS[0], "rank 1's": PARTS[1]}
    assert message(is_copy, PARTS[1], "rank 0's", copies, "rank 2") == "rank 2: expected rank 0's, got rank 1's"
    assert "element 0: expected" in message(is_copy, PARTS[2], "rank 0's", copies, "rank 2")
    assert "got float32" in message(is_copy, PARTS[1].astype(np.float32), "rank 0's", copies, "rank 2")
    is_copy(PARTS[0], "rank 0's", copies, "rank 2")
