"""Why tensor parallelism needs products by head and float64 sums: the naive way changes bits."""

import itertools

import numpy as np

from minidist.nn import functional
from minidist.nn.tensor import Tensor

SHAPES = list(itertools.product((7, 100, 128), (64, 256), (24, 60, 192)))  # tokens, inputs, outputs


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape, np.float32)


def share_that_differs(one, other) -> float:
    return float(np.mean(one.view(np.uint32) != other.view(np.uint32)))


def cut(array, parts: int, axis: int) -> list:
    return [np.ascontiguousarray(part) for part in np.split(array, parts, axis)]


def test_a_plain_product_cut_by_columns_changes_bits():
    """Somewhere among these shapes: where, and how much, is up to the BLAS."""
    shares = {}
    for (tokens, inputs, outputs), parts in itertools.product(SHAPES, (2, 3, 4, 6)):
        x, weight = draw(tokens, inputs), draw(inputs, outputs)
        columns = np.concatenate([x @ part for part in cut(weight, parts, 1)], axis=1)
        assert np.allclose(columns, x @ weight, atol=1e-3)  # sums of 256 products of numbers near 1: the same numbers
        shares[tokens, inputs, outputs, parts] = share_that_differs(columns, x @ weight)
    assert max(shares.values()) > 0.1, shares


def test_partial_products_added_in_float32_change_bits():
    """Most elements, and differently from one order of the ranks to the next."""
    for tokens, inputs, outputs in SHAPES:
        x, weight = draw(tokens, inputs), draw(inputs, outputs)
        partial = [a @ b for a, b in zip(cut(x, 4, 1), cut(weight, 4, 0), strict=True)]
        rising = partial[0] + partial[1] + partial[2] + partial[3]
        falling = partial[3] + partial[2] + partial[1] + partial[0]
        assert share_that_differs(rising, x @ weight) > 0.3
        assert share_that_differs(rising, falling) > 0.1


def test_heads_and_float64_sums_do_not():
    """The library's way, cut in 1, 2, 3, 4, 6 and 12: a column layer, and a row layer after it."""
    heads = 12
    for tokens, inputs, outputs in SHAPES:
        x, into = Tensor(draw(tokens, inputs)), draw(heads, inputs, outputs // heads)
        out = draw(heads, outputs // heads, inputs)

        def partial_sum(start: int, stop: int, x=x, into=into, out=out):
            part = slice(start, stop)
            hidden = functional.linear(functional.copy_to_heads(x, stop - start), Tensor(into[part]))
            total = functional.reduce_from_heads(functional.linear(hidden, Tensor(out[part])), np.float64)
            return hidden.data, total.data

        whole, total = partial_sum(0, heads)
        for parts in (2, 3, 4, 6, 12):
            each = heads // parts
            found = [partial_sum(start, start + each) for start in range(0, heads, each)]
            assert share_that_differs(np.concatenate([hidden for hidden, _ in found]), whole) == 0
            for order in (found, found[::-1]):
                added = sum(partial for _, partial in order)
                assert share_that_differs(added.astype(np.float32), total.astype(np.float32)) == 0
