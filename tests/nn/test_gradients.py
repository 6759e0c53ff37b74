"""Every operation against central finite differences in float64."""

from collections.abc import Callable

import numpy as np
import pytest

from minidist.nn import functional
from minidist.nn.attention.plain import causal_attention
from minidist.nn.loss import cross_entropy
from minidist.nn.tensor import Function, Tensor

STEP = 1e-6  # an error of about STEP^2 from the curvature and 1e-16 / STEP from rounding: 1e-10, on values around 1


def check_gradients(function: Callable[..., Tensor], *arrays: np.ndarray, seed: int = 0) -> None:
    """Compare backward with differences of ``sum(function(*tensors) * random)``, for each element of each array."""
    arrays = [np.array(array, np.float64) for array in arrays]
    tensors = [Tensor(array, requires_grad=True) for array in arrays]
    output = function(*tensors)
    weights = np.random.default_rng(seed).standard_normal(output.shape)
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
        assert tensor.grad.shape == array.shape
        np.testing.assert_allclose(tensor.grad, expected, rtol=1e-6, atol=1e-7, err_msg=f"argument {position}")


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape) + len(shape)).standard_normal(shape)


BROADCASTS = [((3,), (3,)), ((2, 3), (3,)), ((3, 1), (2, 1, 5)), ((), (2,)), ((1,), (1, 1)), ((1, 1, 7), (4, 3, 1))]


@pytest.mark.parametrize(("a", "b"), BROADCASTS)
def test_arithmetic_with_broadcasting(a, b):
    check_gradients(lambda x, y: x + y, draw(*a), draw(*b))
    check_gradients(lambda x, y: x - y, draw(*a), draw(*b))
    check_gradients(lambda x, y: x * y, draw(*a), draw(*b))
    check_gradients(lambda x, y: x / y, draw(*a), np.abs(draw(*b)) + 1)
    check_gradients(lambda x: -x, draw(*a))


def test_arithmetic_with_numbers_and_arrays():
    x, array = draw(2, 3), draw(3) + 3
    check_gradients(lambda x: 2 + x * 3 - 1, x)
    check_gradients(lambda x: 1 - x / 2, x)
    check_gradients(lambda x: 1 / (x * x + 1), x)
    check_gradients(lambda x: array + x * array, x)
    check_gradients(lambda x: array - x / array, x)
    check_gradients(lambda x: array / (x * x + 1), x)
    check_gradients(lambda x: draw(4, 2) @ x, x)


@pytest.mark.parametrize(
    ("a", "b"),
    [((2, 3), (3, 4)), ((1, 1), (1, 1)), ((5, 2, 3), (3, 1)), ((2, 1, 3, 2), (4, 2, 5)), ((3, 2), (5, 2, 1))],
)
def test_matmul(a, b):
    check_gradients(lambda x, y: x @ y, draw(*a), draw(*b))


@pytest.mark.parametrize("axis", [None, 0, -1, (0, 2)])
@pytest.mark.parametrize("keepdims", [False, True])
def test_sum_and_mean(axis, keepdims):
    check_gradients(lambda x: x.sum(axis, keepdims), draw(2, 1, 3))
    check_gradients(lambda x: x.mean(axis, keepdims), draw(2, 1, 3))


def test_shapes():
    x = draw(2, 3, 4)
    check_gradients(lambda x: x.reshape(6, -1), x)
    check_gradients(lambda x: x.transpose(), x)
    check_gradients(lambda x: x.transpose(1, -1, 0), x)
    check_gradients(lambda x: x.swapaxes(0, -1), x)
    check_gradients(lambda x: x[1, :, 1:3], x)
    check_gradients(lambda x: x[..., None, 0], x)
    check_gradients(lambda x: x[np.array([0, 1, 1, 0, 1])], x)  # a place that is read several times


@pytest.mark.parametrize("shape", [(3,), (2, 3), (1, 1, 5)])
@pytest.mark.parametrize("blocks", [1, 3])
def test_into_the_blocks_and_out(shape, blocks):
    check_gradients(lambda x: functional.copy_to_heads(x, blocks), draw(*shape))
    check_gradients(functional.reduce_from_heads, draw(blocks, *shape))


@pytest.mark.parametrize(
    ("blocks", "tokens", "inputs", "outputs"), [(1, (1,), 1, 1), (2, (3,), 5, 2), (3, (2, 1), 3, 4)]
)
def test_linear(blocks, tokens, inputs, outputs):
    x, weight, bias = draw(blocks, *tokens, inputs), draw(blocks, inputs, outputs), draw(blocks, outputs)
    check_gradients(functional.linear, x, weight, bias)
    check_gradients(functional.linear, x, weight)
    check_gradients(
        lambda x, w, b: functional.linear(functional.copy_to_heads(x, blocks), w, b),
        draw(*tokens, inputs),
        weight,
        bias,
    )
    check_gradients(
        lambda x, w: functional.linear(x, w.swapaxes(1, 2)), x, weight.swapaxes(1, 2)
    )  # as the tied output head calls it


@pytest.mark.parametrize("shape", [(1,), (7,), (2, 3, 5)])
def test_gelu(shape):
    check_gradients(functional.gelu, 3 * draw(*shape))


def test_gelu_in_chunks(monkeypatch):
    monkeypatch.setattr(functional, "CHUNK", 4)
    check_gradients(functional.gelu, 3 * draw(2, 3, 5))


@pytest.mark.parametrize("shape", [(1, 3), (5, 2), (2, 3, 7)])
def test_layer_norm(shape):
    check_gradients(functional.layer_norm, draw(*shape), draw(shape[-1]), draw(shape[-1]))


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 1, 3, 2), (1, 2, 5, 3), (3, 2, 2, 1)])
def test_causal_attention(shape):
    *lead, length, width = shape
    qkv = draw(*lead, length, 3 * width)
    check_gradients(causal_attention, qkv)
    keep = np.random.default_rng(1).random((*lead, length, length)) < 0.7
    check_gradients(lambda x: causal_attention(x, keep, 0.3), qkv)


def test_dropout():
    keep = np.random.default_rng(1).random((3, 5)) < 0.5
    check_gradients(lambda x: functional.dropout(x, keep, 0.5), draw(3, 5))


@pytest.mark.parametrize("blocks", [1, 2])
def test_embedding(blocks):
    tokens = np.array([[3, 0, 3], [1, 3, 5]], np.uint8)
    check_gradients(lambda weight: functional.embedding(weight, tokens), draw(blocks, 6 // blocks, 3))


def test_positions():
    check_gradients(functional.add_positions, draw(2, 3, 4), draw(5, 4))
    check_gradients(functional.add_positions, draw(1, 1, 1), draw(1, 1))


@pytest.mark.parametrize(("blocks", "width", "vocab"), [(1, 5, 5), (2, 3, 6), (3, 3, 7), (4, 2, 3), (1, 1, 1)])
def test_cross_entropy(blocks, width, vocab):
    targets = np.random.default_rng(0).integers(0, vocab, (2, 3))
    check_gradients(lambda x: cross_entropy(x, targets, vocab), 2 * draw(blocks, 2, 3, width))


def test_the_checker_finds_a_wrong_gradient(monkeypatch):
    right = functional.Gelu.backward
    monkeypatch.setattr(functional.Gelu, "backward", staticmethod(lambda ctx, g: right(ctx, g) * 1.0001))
    with pytest.raises(AssertionError, match="argument 0"):
        check_gradients(functional.gelu, draw(3))


def test_an_embedding_of_a_part_of_the_vocabulary():
    """Rows of the tokens from ``first`` on, zeros for all others: also at the very edges."""
    weight = draw(2, 3, 4)  # tokens 5 to 10
    found = functional.embedding(Tensor(weight), np.arange(14), first=5).data
    assert np.array_equal(found[5:11], weight.reshape(6, 4)) and not found[:5].any() and not found[11:].any()
    check_gradients(lambda w: functional.embedding(w, np.array([4, 5, 10, 11, 10]), first=5), weight)


def test_the_root_of_a_backward_keeps_an_unrounded_gradient():
    """Where a node asks for float64, also the gradient that backward() is given stays so."""

    class Same(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.grad_dtype = np.float64
            return x

        @staticmethod
        def backward(ctx, gradient):
            seen.append(gradient)
            return gradient

    seen = []
    x = Tensor(np.ones(2, np.float32), requires_grad=True)
    Same.apply(x).backward(np.array([1 + 2.0**-40, 1.0]))
    assert seen[0].dtype == np.float64 and seen[0][0] == 1 + 2.0**-40
