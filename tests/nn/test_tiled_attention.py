"""Tiled attention: plain attention's values, bits that no order changes, and accesses to a slow memory.

What it keeps is in plan/test_planned_runs.py, to the byte; its FLOPs are in analysis/test_breakdown.py.
"""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from minidist.nn.attention import online32, slow_memory
from minidist.nn.attention.online_softmax import LOG2E, OnlineSoftmax, Total, exponent_of, weights
from minidist.nn.attention.plain import causal_attention
from minidist.nn.attention.slow_memory import SlowMemory, largest_tile
from minidist.nn.attention.tiled import tiled_attention, tiles
from minidist.nn.tensor import Tensor

SIZES = [(1, 1), (2, 1), (5, 64), (7, 3), (9, 4), (33, 8), (64, 16)]  # tokens, tile
# Sums of at most 64 products, and two exponentials that differ by an ulp of an exponent of up to about 20.
FLOAT32 = 4e-5


def inputs(length: int, dtype=np.float32, seed: int = 0, spread: float = 2.0):
    random = np.random.default_rng(seed)
    qkv = random.standard_normal((2, 3, length, 15)) * spread  # (H, B, T, 3 D)
    return qkv.astype(dtype), random.standard_normal((2, 3, length, 5)).astype(dtype)


def outcome(function, qkv, gradient, *args, **kwargs):
    x = Tensor(qkv.copy(), requires_grad=True)
    x.grad_dtype = x.dtype
    y = function(x, *args, **kwargs)
    y.backward(gradient)
    return y.data, x.grad


@pytest.mark.parametrize(
    ("dtype", "softmax", "tolerance", "spread"),
    [
        (np.float32, "exact", FLOAT32, 2.0), (np.float32, "online32", FLOAT32, 2.0),
        (np.float64, "exact", 1e-12, 2.0), (np.float64, "exact", 1e-10, 40.0),
    ],
)  # fmt: skip
def test_like_plain_attention(dtype, softmax, tolerance, spread):
    """This holds with the tiles' dropout masks joined, too, and for scores that spread to some thousands."""
    for (length, tile), rate in itertools.product(SIZES, (0.0, 0.3)):
        qkv, gradient = inputs(length, dtype, spread=spread)
        parts = tiles(length, tile)

        def keep(head, i, j, rate=rate, parts=parts):
            shape = 3, parts[j].stop - parts[j].start, parts[i].stop - parts[i].start  # (B, keys, queries)
            return np.random.default_rng([head, i, j]).random(shape) >= rate

        whole = np.zeros((2, 3, length, length), bool)  # (H, B, keys, queries)
        for head, i, j in itertools.product(range(2), range(len(parts)), range(len(parts))):
            if j <= i:
                whole[head, :, parts[j], parts[i]] = keep(head, i, j)
        plain, tiled = ((whole, rate), (keep, rate)) if rate else ((), ())
        by_tiles = outcome(tiled_attention, qkv, gradient, *tiled, tile=tile, softmax=softmax)
        expected = outcome(causal_attention, qkv, gradient, *plain)
        for found, right in zip(by_tiles, expected, strict=True):
            assert found.dtype == dtype
            largest = max(1, np.abs(right).max())
            np.testing.assert_allclose(found, right, atol=tolerance * largest, rtol=0, err_msg=f"{length}, {tile}")


def test_a_total_is_the_exact_sum_rounded():
    """Against fractions, with terms that cancel and spread over 2^60: far too much for one float64."""
    random = np.random.default_rng(0)
    terms = np.ldexp(random.standard_normal((40, 200)).astype(np.float32), random.integers(-30, 30, (40, 200)))
    total, halves = Total((200, 1)), [Total((200, 1)), Total((200, 1))]
    for place, term in enumerate(terms):
        for each in (total, halves[place % 2]):
            each.add(term.astype(np.float64)[:, None])
    halves[0].merge(halves[1])
    exact = [sum(map(Fraction, column.tolist())) for column in terms.T]
    for each in (total, halves[0], Total.of(total.arrays())):
        pairs = zip(*(part[:, 0] for part in each.parts), strict=True)
        assert [Fraction(high) + Fraction(low) for high, low in pairs] == exact
    assert (terms.astype(np.float64).sum(axis=0) != sum(total.parts)[:, 0]).any()  # float64 is not enough
    np.testing.assert_array_equal(total.rounded(np.float32)[:, 0], np.array(exact, float).astype(np.float32))


@pytest.mark.parametrize("spread", [1.0, 30.0])
def test_tiles_in_any_order_give_the_same_bits(spread):
    """An online softmax in float32 does not."""
    random = np.random.default_rng(1)
    scores = (random.standard_normal((8, 6, 50, 16)) * spread * LOG2E).astype(np.float32)  # (tiles, B, queries, keys)
    values = random.standard_normal((8, 6, 16, 5)).astype(np.float32)

    def merged(order, softmax, exponent_of, weights) -> bytes:
        rows = softmax((6, 50, 5))
        for tile in order:
            exponent = exponent_of(scores[tile], -1)
            exps = weights(scores[tile], exponent)
            rows.merge(exponent, exps.sum(axis=-1, keepdims=True), exps @ values[tile])
        return b"".join(part.tobytes() for part in rows.result(np.float32))

    orders = [range(8), range(8)[::-1], *(random.permutation(8) for _ in range(20))]
    assert len({merged(order, OnlineSoftmax, exponent_of, weights) for order in orders}) == 1
    single = online32.OnlineSoftmax, online32.exponent_of, online32.weights
    assert len({merged(order, *single) for order in orders}) > 1


def test_accesses_are_those_of_the_formulas():
    """Both forms of attention run on a memory that counts what is read and written."""
    for length, width, tile in ((1, 1, 1), (12, 4, 3), (13, 4, 5), (64, 8, 16), (9, 7, 100)):
        q, k, v = np.random.default_rng(0).standard_normal((3, length, width))
        exps = np.exp(q @ k.T / np.sqrt(width))
        right = exps / exps.sum(axis=1, keepdims=True) @ v
        rows, passes = min(tile, length), math.ceil(length / tile)
        seen = sum(part.stop for part in tiles(length, tile))  # keys of the tiles up to the diagonal
        large, small = length * width + 2 * max(length, width) + width, 4 * rows * width + rows**2 + 2 * rows
        for causal, fast, accesses in (
            (None, large, 4 * length**2 + 4 * length * width),
            (False, small, 2 * length * width + 2 * length * width * passes + length),
            (True, small, 2 * length * width + 2 * seen * width + length),
        ):
            memory = SlowMemory(fast)
            if causal is None:
                output = slow_memory.standard_attention(memory, q, k, v)
            else:
                output, log_sums = slow_memory.tiled_attention(memory, q, k, v, tile, causal=causal)
                assert memory.most == fast
            last = slice(-1 if causal else 0, None)  # which sees all keys in any case
            np.testing.assert_allclose(output[last], right[last], atol=1e-13)
            assert memory.reads + memory.writes == accesses and memory.used == 0, (length, causal)
        np.testing.assert_allclose(log_sums[-1], np.log(exps.sum(axis=1))[-1], atol=1e-13)
        if rows > 1:
            assert largest_tile(small, width) == rows and largest_tile(small - 1, width) == rows - 1
