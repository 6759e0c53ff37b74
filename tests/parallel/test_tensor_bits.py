"""Why tensor parallelism needs products by head and float64 sums: the naive way changes bits."""

import itertools

import numpy as np


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape, np.float32)


def share_that_differs(one, other) -> float:
    return float(np.mean(one.view(np.uint32) != other.view(np.uint32)))


def test_plain_products_cut_by_columns_or_added_in_float32_change_bits():
    """Added, most elements, and differently from one order of the ranks to the next. Cut, somewhere among these shapes:
    where, and how much, is up to the BLAS. What the library does instead is in tests/nn/test_bits.py."""
    columns, orders = [], []
    for tokens, inputs, outputs in itertools.product((7, 100, 128), (64, 256), (24, 60, 192)):
        x, weight = draw(tokens, inputs), draw(inputs, outputs)
        for count in (2, 3, 4, 6):
            parts = [np.ascontiguousarray(part) for part in np.split(weight, count, 1)]
            columns.append(share_that_differs(np.concatenate([x @ part for part in parts], axis=1), x @ weight))
        a, b, c, d = (x_part @ part for x_part, part in zip(np.split(x, 4, 1), np.split(weight, 4, 0), strict=True))
        orders.append((share_that_differs(a + b + c + d, x @ weight), share_that_differs(a + b + c + d, d + c + b + a)))
    assert max(columns) > 0.1
    assert min(whole for whole, _ in orders) > 0.3 and min(reverse for _, reverse in orders) > 0.1
