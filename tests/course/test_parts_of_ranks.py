"""Messages that name the rank whose part of a sum is missing, or whose array came instead."""

import re

import numpy as np
import pytest

from minidist.course.authoring.assertions import is_copy, is_sum
from minidist.course.sandbox.values import numbers

PARTS = [numbers(rank, 4) for rank in range(5)]
OTHER = [numbers(rank, 4, seed=1) for rank in range(5)]
COPIES = {"rank 0's": PARTS[0], "rank 1's": PARTS[1]}


ONE_MISSING = [1, 0, 1, 1, 1], [2, 0, 1, 1, 1], [0, 0, 0, 1, 2]  # how often each rank's part is in a sum
SAID = [  # (assertion, what came, what should have, what is said of chunk 0)
    *[
        (is_sum, sum(count * part.astype(dtype) for count, part in zip(counts, PARTS, strict=True)).astype(dtype),
         [part.astype(dtype) for part in PARTS], words)
        for dtype in ("float64", "float32", "int32")
        for counts, words in zip(ONE_MISSING, (
            "chunk 0: rank 1's part is missing",
            "chunk 0: rank 1's part is missing, rank 0's part is counted twice",
            "chunk 0: the parts of ranks 0, 1 and 2 are missing, rank 4's part is counted twice",
        ), strict=True)
    ],
    (is_sum, sum(OTHER[1:]), PARTS, "it holds the sum of chunk 1, rank 0's part is missing"),
    (is_sum, sum(PARTS) + 0.5, PARTS, "element 0: expected"),  # nothing explains it
    (is_sum, np.zeros(3), PARTS, "expected shape (4,), got (3,)"),
    (is_sum, None, PARTS, "expected an array of float64, got NoneType"),
    (is_copy, PARTS[1], "rank 0's", "chunk 0: expected rank 0's, got rank 1's"),
    (is_copy, PARTS[2], "rank 0's", "element 0: expected"),
    (is_copy, PARTS[1].astype(np.float32), "rank 0's", "got float32"),
]  # fmt: skip


def test_whose_part_is_missing_or_came_instead():
    for assertion, came, expected, words in SAID:
        more = ("chunk 0", {"chunk 1": OTHER}) if assertion is is_sum else (COPIES, "chunk 0")
        with pytest.raises(AssertionError, match=re.escape(words)):
            assertion(came, expected, *more)
    is_sum(sum(PARTS), PARTS, "chunk 0", {"chunk 1": OTHER})
    is_copy(PARTS[0], "rank 0's", COPIES, "rank 2")
