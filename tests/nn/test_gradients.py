"""Every operation against central finite differences in float64."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from minidist.nn import chunks, functional, loss
from minidist.nn.attention.plain import causal_attention
from minidist.nn.attention.tiled import tiled_attention
from minidist.nn.gpt import GPT, GPTConfig
from minidist.nn.llama_operations import fork, rms_norm, rotary_table, rotate, silu_gate
from minidist.nn.loss import cross_entropy
from minidist.nn.moe.experts import GroupedLinear, JoinRows
from minidist.nn.moe.permutation import Route, combine, dispatch
from minidist.nn.moe.router import GateWeights, RouterLogits, Scores
from minidist.nn.tensor import Tensor

STEP = 1e-6  # an error of about STEP^2 from the curvature and 1e-16 / STEP from rounding: 1e-10, on values around 1


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape) + len(shape)).standard_normal(shape)


def chance(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).random(shape) < 0.7


def check_gradients(function: Callable[..., Tensor], *arrays: np.ndarray, name: str = "") -> None:
    """Compare backward with differences of ``sum(function(*tensors) * random)``, for each element of each array."""
    arrays = [np.array(array, np.float64) for array in arrays]
    tensors = [Tensor(array, requires_grad=True) for array in arrays]
    output = function(*tensors)
    weights = draw(*output.shape)
    output.backward(weights)

    def value() -> float:
        return float((function(*(Tensor(array) for array in arrays)).data * weights).sum())

    for position, (array, tensor) in enumerate(zip(arrays, tensors, strict=True)):
        expected = np.empty(array.shape)
        for index in np.ndindex(array.shape):
            kept = array[index]
            array[index] = kept + STEP
            above = value()
            array[index] = kept - STEP
            expected[index] = (above - value()) / (2 * STEP)
            array[index] = kept
        message = f"{name} {[array.shape for array in arrays]}, argument {position}"
        np.testing.assert_allclose(tensor.grad, expected, rtol=1e-6, atol=1e-7, err_msg=message)


BROADCASTS = [((3,), (3,)), ((2, 3), (3,)), ((3, 1), (2, 1, 5)), ((), (2,)), ((1,), (1, 1)), ((1, 1, 7), (4, 3, 1))]
MATRICES = [((2, 3), (3, 4)), ((1, 1), (1, 1)), ((5, 2, 3), (3, 1)), ((2, 1, 3, 2), (4, 2, 5)), ((3, 2), (5, 2, 1))]
LINEARS = [(1, (1,), 1, 1), (2, (3,), 5, 2), (3, (2, 1), 3, 4)]  # heads, tokens, inputs, outputs
ATTENTIONS = [(1, 1, 1, 1), (2, 1, 3, 2), (1, 2, 5, 3), (3, 2, 2, 1)]
VOCABULARIES = [(1, 5, 5), (2, 3, 6), (3, 3, 7), (4, 2, 3), (1, 1, 1)]  # heads, columns of each, tokens
TOKENS = np.array([[3, 0, 3], [1, 3, 5]], np.uint8)
CHOSEN = np.array([[1, 0], [3, 1], [1, 3], [0, 2], [2, 1]])  # experts of five tokens
ROW = draw(3) + 3


def operations():
    """Yield a name, the function, and its arguments for each operation."""
    for a, b in BROADCASTS:
        for name, function in {
            "+": lambda x, y: x + y, "-": lambda x, y: x - y, "*": lambda x, y: x * y, "/": lambda x, y: x / (y * y + 1)
        }.items():  # fmt: skip
            yield name, function, draw(*a), draw(*b)
    for name, function in {
        "-x": lambda x: -x, "2 +": lambda x: 2 + x * 3 - 1, "1 -": lambda x: 1 - x / 2,
        "1 /": lambda x: 1 / (x * x + 1), "array +": lambda x: ROW + x * ROW, "array -": lambda x: ROW - x / ROW,
        "array /": lambda x: ROW / (x * x + 1), "array @": lambda x: draw(4, 2) @ x,
        "several uses": lambda x: x * x + x * 2.0 + x,
    }.items():  # fmt: skip
        yield name, function, draw(2, 3)
    for a, b in MATRICES:
        yield "@", lambda x, y: x @ y, draw(*a), draw(*b)
    for axis in (None, 0, -1, (0, 2)):
        for keepdims in (False, True):
            yield "sum", lambda x, axis=axis, keep=keepdims: x.sum(axis, keep), draw(2, 1, 3)
            yield "mean", lambda x, axis=axis, keep=keepdims: x.mean(axis, keep), draw(2, 1, 3)
    yield "means of no rows", lambda x: x.mean(1), draw(0, 3)
    for name, function in {
        "reshape": lambda x: x.reshape(6, -1), "transpose": lambda x: x.transpose(),
        "swapaxes": lambda x: x.swapaxes(0, -1), "all axes": lambda x: x.transpose(1, -1, 0),
        "slice": lambda x: x[1, :, 1:3], "new axis": lambda x: x[..., None, 0],
        "a place read several times": lambda x: x[np.array([0, 1, 1, 0, 1])],
        "tokens": lambda x: chunks.join([part * 2.0 for part in chunks.Chunks(2).split(x)][::-1]),
    }.items():  # fmt: skip
        yield name, function, draw(2, 4, 3)
    yield "share of a mean", lambda x, y: loss.WeightedSum.apply([0.125, 0.25], x, y), draw(), draw()
    for blocks in (1, 3):
        yield "copy_to_heads", partial(functional.copy_to_heads, heads=blocks), draw(2, 3)
        yield "reduce_from_heads", functional.reduce_from_heads, draw(blocks, 2, 3)
    for heads, tokens, inputs, outputs in LINEARS:
        x, weight, bias = draw(heads, *tokens, inputs), draw(heads, inputs, outputs), draw(heads, outputs)
        yield "linear", functional.linear, x, weight, bias
        yield "tied", partial(functional.linear, transposed=True), x, draw(heads, outputs, inputs)
    yield "gelu", functional.gelu, 3 * draw(2, 3, 5)  # in several chunks
    for shape in ((1, 3), (5, 2), (2, 3, 7)):
        yield "layer_norm", functional.layer_norm, draw(*shape), draw(shape[-1]), draw(shape[-1])
        yield "rms_norm", rms_norm, draw(*shape), draw(shape[-1])
    for first, length, half, kept in ((0, 1, 1, 0), (3, 4, 3, 0), (5, 2, 2, 4)):
        turn = rotary_table(first, length, 2 * half, 100.0)
        yield "rotate", lambda x, turn=turn: rotate(x, *turn), draw(2, length, 2 * half + kept)
    yield "silu_gate", silu_gate, 3 * draw(2, 3, 8)
    yield "fork", lambda x: fork(x) * fork(x), draw(2, 3)
    for heads, groups in ((1, 1), (4, 2), (6, 1), (3, 3)):
        q, kv = draw(heads, 2, 5, 3), draw(groups, 2, 5, 6)
        yield "shared keys", lambda q, kv: causal_attention(q, None, 0.0, None, kv), q, kv
        yield "shared keys by tiles", lambda q, kv: tiled_attention(q, tile=2, kv=kv), q, kv
    yield "dropout", lambda x: functional.dropout(x, chance(3, 5), 0.5), draw(3, 5)
    for *lead, length, width in ATTENTIONS:
        qkv, keep = draw(*lead, length, 3 * width), chance(*lead, length, length)
        yield "attention", causal_attention, qkv
        yield "attention with dropout", lambda x, keep=keep: causal_attention(x, keep, 0.3), qkv
        yield "tiles", partial(tiled_attention, tile=2), qkv
    yield "embedding", lambda w: functional.embedding(w, TOKENS), draw(2, 3, 3)
    yield "part of one", lambda w: functional.embedding(w, np.array([4, 5, 10, 11, 10]), first=5), draw(2, 3, 4)
    yield "positions", functional.add_positions, draw(2, 3, 4), draw(5, 4)
    yield "later positions", partial(functional.add_positions, first=2), draw(2, 3, 4), draw(5, 4)
    for heads, width, vocab in VOCABULARIES:
        targets = np.random.default_rng(0).integers(0, vocab, (2, 3))
        yield "loss", lambda x, t=targets, v=vocab: cross_entropy(x, t, v), 2 * draw(heads, 2, 3, width)
    yield "router", RouterLogits.apply, draw(5, 3), draw(3, 4)
    for gate in ("softmax", "sigmoid"):
        yield gate, lambda x, gate=gate: Scores.apply(x, gate), draw(5, 4)
        for normalize in (False, True):
            yield "gates", lambda x, n=normalize: GateWeights.apply(x, CHOSEN, n), draw(5, 4) ** 2
    for capacity in (None, 2):
        route = Route(CHOSEN, 4, capacity)
        yield "dispatch", lambda x, route=route: dispatch(x, route), draw(5, 3)
        yield "combine", lambda x, w, route=route: combine(x, w, route), draw(len(route.order), 3), draw(5, 2)
    for partial_sum in (False, True):
        grouped = lambda x, w, p=partial_sum: GroupedLinear.apply(x, w, [3, 0, 2], p)  # noqa: E731
        yield "experts", grouped, draw(2, 5, 3), draw(2, 3, 3, 4)
    yield "grains", lambda x, y: JoinRows.apply(x, y), draw(2, 3, 4), draw(2, 1, 4)


def test_every_operation(monkeypatch):
    monkeypatch.setattr(functional, "CHUNK", 4)
    for name, function, *arguments in operations():
        check_gradients(function, *arguments, name=name)


def test_a_rotated_query_times_a_rotated_key_depends_on_their_distance_alone():
    """Up to the roundings of cosines to float32: 2^-25 each, in a sum of 32 products around 1."""
    query, key = draw(1, 8), draw(2, 8)[:1]

    def product(of_query: int, of_key: int) -> float:
        one, two = (rotary_table(place, 1, 8, 10_000.0) for place in (of_query, of_key))
        return (rotate(Tensor(query), *one).data @ rotate(Tensor(key), *two).data.T).item()

    for distance in (0, 1, 5, 60):
        for place in (0, 1, 117, 900):
            assert abs(product(place + distance, place) - product(distance, 0)) < 2e-6
            assert abs(product(place, place + distance) - product(0, distance)) < 2e-6
    assert abs(product(0, 0) - product(5, 0)) > 0.1 < abs(product(0, 5) - product(5, 0))


@pytest.mark.parametrize("attention", ["plain", "tiled"])
@pytest.mark.parametrize("chunks", [1, 4])
def test_the_gradient_of_a_keys_bias_is_0(attention, chunks):
    """Known, not computed: without that knowledge float64 finds its rounding, and the others stay as they are."""
    config = GPTConfig(layers=2, heads=2, width=8, context=8, attention=attention, sequence_chunks=chunks)
    found = []
    for known in (True, False):
        model = GPT(config, seed=1, dtype=np.float64)
        tokens = np.random.default_rng(0).integers(256, size=(3, 9))
        biases = [block.attention.qkv.bias for block in model.blocks]
        for bias in biases:
            bias.zero_gradient = bias.zero_gradient if known else None
        model(tokens[:, :-1], tokens[:, 1:]).backward()
        found.append(np.stack([bias.grad for bias in biases]).reshape(2, 2, 3, 4))  # layers, heads, (q, k, v), D
    known, computed = found
    assert (known[:, :, 1] == 0).all() and (known[:, :, [0, 2]] != 0).all()
    assert np.array_equal(known[:, :, [0, 2]], computed[:, :, [0, 2]])
    assert 0 < np.abs(computed[:, :, 1]).max() < 1e-13 * np.abs(known[:, :, 0]).min()
