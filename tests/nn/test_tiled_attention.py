"""Tiled attention: plain attention's values, bits that no order changes, and memory that grows with T alone."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from minidist import flops, ledger
from minidist.nn.attention import slow_memory
from minidist.nn.attention.online_softmax import HIDDEN, LOG2E, OnlineSoftmax, Total, exponent_of, weights
from minidist.nn.attention.plain import causal_attention
from minidist.nn.attention.slow_memory import SlowMemory, largest_tile
from minidist.nn.attention.tiled import tiled_attention, tiles
from minidist.nn.gpt import GPT, GPTConfig
from minidist.nn.memory.recompute import recompute_blocks
from minidist.nn.precision.policy import autocast
from minidist.nn.random import DropoutRNG
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


@pytest.mark.parametrize(("length", "tile"), SIZES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, FLOAT32), (np.float64, 1e-12)])
def test_like_plain_attention(length, tile, dtype, tolerance):
    qkv, gradient = inputs(length, dtype)
    expected = outcome(causal_attention, qkv, gradient)
    for found, right in zip(outcome(tiled_attention, qkv, gradient, tile=tile), expected, strict=True):
        assert found.dtype == dtype
        np.testing.assert_allclose(found, right, atol=tolerance * max(1, np.abs(right).max()), rtol=0)


@pytest.mark.parametrize("spread", [1e-3, 10.0, 40.0])
def test_like_torch(spread):
    torch = pytest.importorskip("torch")
    qkv, gradient = inputs(33, np.float64, spread=spread)
    x = torch.tensor(qkv, requires_grad=True)
    y = torch.nn.functional.scaled_dot_product_attention(*x.split(5, dim=-1), is_causal=True)
    y.backward(torch.tensor(gradient))
    for found, right in zip(outcome(tiled_attention, qkv, gradient, tile=8), (y.detach(), x.grad), strict=True):
        np.testing.assert_allclose(found, right.numpy(), atol=1e-10 * max(1, float(right.abs().max())), rtol=0)


@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp8"])
def test_16_bits(precision):
    """The operands of its products are rounded like plain attention's, and nothing else."""
    qkv, gradient = inputs(33, spread=1.0)
    with autocast(precision):
        expected, found = outcome(causal_attention, qkv, gradient), outcome(tiled_attention, qkv, gradient, tile=8)
    for one, right in zip(found, expected, strict=True):  # bf16 has 8 bits; a few roundings of operands differ
        assert 0 < np.abs(one - right).max() < 0.05 * np.abs(right).max()


# The exact online softmax


def test_a_weight_is_the_same_bits_whatever_the_maximum():
    x = np.random.default_rng(0).standard_normal(10_000).astype(np.float32) * 10  # none is subnormal
    x[:4] = 0, -0.0, 1e-9, -1e-9
    exponent = exponent_of(x, 0)
    assert float(exponent[0]).is_integer() and exponent >= x.max() > exponent - 1
    smallest = weights(x, exponent)
    assert 0 < smallest.max() <= 1
    for more in (1, 7, 40):
        assert np.array_equal(np.ldexp(weights(x, exponent + more), more), smallest)
    exact = np.exp2(x.astype(np.float64) - float(exponent[0]))
    assert np.abs(smallest / exact - 1).max() < 2.0**-21  # the fraction and its power of two round in float32
    assert weights(np.array([HIDDEN, 0], np.float32), np.float32(0)).tolist() == [0, 1]


def test_a_total_is_the_exact_sum_rounded():
    """Against fractions, with terms that cancel and spread over 2^60: far too much for one float64."""
    random = np.random.default_rng(0)
    terms = np.ldexp(random.standard_normal((40, 500)).astype(np.float32), random.integers(-30, 30, (40, 500)))
    total = Total((500, 1))
    for term in terms:
        total.add(term.astype(np.float64)[:, None])
    exact = [sum(map(Fraction, column.tolist())) for column in terms.T]
    pairs = zip(total.high[:, 0], total.low[:, 0], strict=True)
    assert [Fraction(high) + Fraction(low) for high, low in pairs] == exact
    assert (terms.astype(np.float64).sum(axis=0) != total.high[:, 0] + total.low[:, 0]).any()  # float64 is not enough


@pytest.mark.parametrize("spread", [1.0, 30.0])
def test_tiles_in_any_order_give_the_same_bits(spread):
    random = np.random.default_rng(1)
    scores = (random.standard_normal((8, 6, 50, 16)) * spread).astype(np.float32)  # (tiles, B, queries, keys)
    values = random.standard_normal((8, 6, 16, 5)).astype(np.float32)

    def merged(order) -> bytes:
        softmax = OnlineSoftmax((6, 50, 5))
        for tile in order:
            exponent = exponent_of(scores[tile], -1)
            exps = weights(scores[tile], exponent)
            softmax.merge(exponent.astype(np.int32), exps.sum(axis=-1, keepdims=True), exps @ values[tile])
        return b"".join(part.tobytes() for part in softmax.result(np.float32))

    def in_float32(order) -> bytes:
        """As everybody else does it."""
        largest, weight, value = np.full((6, 50, 1), -np.inf, np.float32), np.float32(0), np.float32(0)
        for tile in order:
            x = scores[tile] / np.float32(LOG2E)
            new = np.maximum(largest, x.max(axis=-1, keepdims=True))
            exps, rescale = np.exp(x - new), np.exp(largest - new)
            weight, value = rescale * weight + exps.sum(axis=-1, keepdims=True), rescale * value + exps @ values[tile]
            largest = new
        return (value / weight).tobytes()

    orders = [range(8), range(8)[::-1], *(random.permutation(8) for _ in range(20))]
    assert len({merged(order) for order in orders}) == 1
    assert len({in_float32(order) for order in orders}) > 1


# In the model

CONFIG = GPTConfig(context=33, layers=2, heads=4, width=16, dropout=0.2, attention="tiled", attention_tile=8)


def gradients(config: GPTConfig, mode: str = "none"):
    model = GPT(config)
    recompute_blocks(model, mode)
    tokens = np.random.default_rng(0).integers(0, 256, (2, 3, config.context))
    loss = model(*tokens, DropoutRNG(0, 0, 0))
    loss.backward()
    return loss.item(), {name: parameter.grad.copy() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("mode", ["selective", "full"])
def test_recomputed_it_has_the_same_bits(mode):
    expected, found = gradients(CONFIG), gradients(CONFIG, mode)
    assert found[0] == expected[0]
    assert all(np.array_equal(found[1][name], gradient) for name, gradient in expected[1].items())


def test_dropout_has_a_mask_for_each_tile():
    """Plain attention with the tiles' masks joined: the same outputs and gradients."""
    qkv, gradient = inputs(20, np.float64)
    parts, rate = tiles(20, 8), 0.3

    def keep(head, i, j):
        shape = 3, parts[j].stop - parts[j].start, parts[i].stop - parts[i].start  # (B, keys, queries)
        return np.random.default_rng([head, i, j]).random(shape) >= rate

    whole = np.zeros((2, 3, 20, 20), bool)  # (H, B, keys, queries)
    for head, i, j in itertools.product(range(2), range(3), range(3)):
        if j <= i:
            whole[head, :, parts[j], parts[i]] = keep(head, i, j)
    expected = outcome(causal_attention, qkv, gradient, whole, rate)
    for found, right in zip(outcome(tiled_attention, qkv, gradient, keep, rate, 8), expected, strict=True):
        np.testing.assert_allclose(found, right, atol=1e-12 * np.abs(right).max(), rtol=0)


def test_activations_grow_with_the_length_and_not_with_its_square():
    def saved(length: int, attention: str) -> int:
        memory = ledger.start()
        qkv, _ = inputs(length)
        function = {"plain": causal_attention, "tiled": lambda x: tiled_attention(x, tile=16)}[attention]
        function(Tensor(qkv, requires_grad=True))
        ledger.stop()
        return memory.as_dict()["activations"]

    heads, batch, width = 2, 3, 5
    # queries, keys and values, the output, and for each row its sum and its exponent, 4 bytes each
    linear = heads * batch * 4 * (width + 3 * width + width + 2)
    assert [saved(length, "tiled") for length in (32, 64, 128)] == [length * linear for length in (32, 64, 128)]
    assert saved(128, "plain") - saved(128, "tiled") == heads * batch * 4 * (128 * 128 - 128)


def test_skipped_tiles_cost_nothing():
    qkv, gradient = inputs(12)
    before = flops.snapshot()
    outcome(tiled_attention, qkv, gradient, tile=5)
    found = flops.snapshot() - before
    scores = 5 * 5 + (5 + 5) * 5 + (5 + 5 + 2) * 2  # tiles of 5, 5 and 2 tokens, up to the diagonal
    one_product = 2 * 3 * 2 * scores * 5  # heads, samples, a multiplication and an addition, head width
    assert found == {"forward": 2 * one_product, "backward": 4 * one_product, "recompute": one_product}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"attention": "flash"}, "attention must be one of plain, tiled, not 'flash'"),
        ({"attention_tile": 0}, "attention_tile must be a whole number of at least 1, not 0"),
    ],
)
def test_unusable_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        GPTConfig(**settings)


# What it reads and writes


@pytest.mark.parametrize(("length", "width", "tile"), [(1, 1, 1), (12, 4, 3), (13, 4, 5), (64, 8, 16), (9, 7, 100)])
def test_accesses_are_those_of_the_formulas(length, width, tile):
    q, k, v = np.random.default_rng(0).standard_normal((3, length, width))
    scores = q @ k.T / np.sqrt(width)
    exps = np.exp(scores - scores.max(axis=1, keepdims=True))
    right = exps / exps.sum(axis=1, keepdims=True) @ v

    memory = SlowMemory(fast=length * width + 2 * max(length, width) + width)
    np.testing.assert_allclose(slow_memory.standard_attention(memory, q, k, v), right, atol=1e-13)
    assert memory.reads + memory.writes == 4 * length**2 + 4 * length * width
    assert memory.used == 0

    rows = min(tile, length)
    memory = SlowMemory(fast=4 * rows * width + rows**2 + 2 * rows)
    output, log_sums = slow_memory.tiled_attention(memory, q, k, v, tile)
    np.testing.assert_allclose(output, right, atol=1e-13)
    np.testing.assert_allclose(log_sums, np.log(np.exp(scores).sum(axis=1)), atol=1e-13)
    passes = math.ceil(length / tile)
    assert memory.reads + memory.writes == 2 * length * width + 2 * length * width * passes + length
    assert memory.most == memory.fast and memory.used == 0

    memory = SlowMemory(memory.fast)
    output, _ = slow_memory.tiled_attention(memory, q, k, v, tile, causal=True)
    np.testing.assert_allclose(output[0], v[0], atol=1e-13)
    seen = sum(part.stop for part in tiles(length, tile))  # keys of the tiles up to the diagonal
    assert memory.reads + memory.writes == 2 * length * width + 2 * seen * width + length


def test_a_fast_memory_that_is_too_small_is_an_error():
    q, k, v = np.zeros((3, 8, 4))
    assert largest_tile(4 * 4 * 4 + 16 + 8, 4) == 4 and largest_tile(4 * 4 * 4 + 16 + 7, 4) == 3
    with pytest.raises(MemoryError, match="this needs 36 elements of fast memory at once, but there are 32"):
        slow_memory.standard_attention(SlowMemory(32), q, k, v)
    with pytest.raises(MemoryError, match="one query and one key of width 4 need 19 elements, but there are 18"):
        largest_tile(18, 4)
