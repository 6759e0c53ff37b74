"""Recomputation: the bytes that were predicted, and what it says when misused."""

from dataclasses import replace

import numpy as np
import pytest

from minidist import ledger
from minidist.nn.gpt import GPT, GPTConfig
from minidist.nn.precision.policy import autocast
from minidist.nn.random import DropoutRNG
from minidist.nn.recompute import checkpoint, recompute_blocks
from minidist.nn.tensor import Tensor
from minidist.parallel.pipeline import backward_inputs


def saved(config: GPTConfig, mode: str) -> int:
    """The bytes that forward saves of one micro-batch in bf16."""
    model = GPT(config, seed=1)
    recompute_blocks(model, mode)
    tokens, targets = np.random.default_rng(0).integers(0, config.vocab, (2, 2, config.context))
    memory = ledger.start()
    try:
        with autocast("bf16"):
            loss = model(tokens, targets, DropoutRNG(0, 0, 0))
        assert loss.grad_fn  # as long as it is there, so is all that it needs
        return memory.held["activations"]
    finally:
        ledger.stop()


@pytest.mark.parametrize("heads, width, context", [(4, 32, 16), (3, 24, 10), (2, 64, 40)])
def test_a_block_saves_what_korthikanti_et_al_say(heads, width, context):
    """s b h (34 + 5 a s / h) bytes, but for two differences that have a reason.

    Attention's dropout output, 2 a s^2 b of the 5, is not saved: backward multiplies mask and weights again. And the
    paper leaves out the statistics, a float32 for each row of the two norms and of the softmax.
    """
    s, b, h, a = context, 2, width, heads
    config = GPTConfig(vocab=64, layers=1, heads=a, width=h, context=s, dropout=0.1)
    norms, softmax = 2 * 4 * s * b, 4 * a * s * b
    for mode, expected in {
        "none": s * b * h * 34 + 3 * a * s * s * b + norms + softmax,
        "selective": s * b * h * 34 + norms,
        "full": s * b * h * 2,
    }.items():  # of one more block
        assert saved(replace(config, layers=2), mode) - saved(config, mode) == expected, mode


def leaf(*shape: int) -> Tensor:
    return Tensor(np.random.default_rng(0).standard_normal(shape).astype(np.float32), requires_grad=True)


def test_any_function_of_any_inputs():
    """Cases: one within another, one whose input an earlier operation made, and backward in two halves."""
    x, y, weight = leaf(3, 4), leaf(3, 4), leaf(4, 2)

    def function(x: Tensor, factor: float, y: Tensor) -> Tensor:
        return (x * y * factor) @ weight * (x @ weight)

    def outer(x: Tensor, factor: float, y: Tensor, call=checkpoint) -> Tensor:
        return call(function, x * x, factor, y) * (x @ weight)

    def gradients(output: Tensor, halves: bool = False) -> list[np.ndarray]:
        for tensor in (x, y, weight):
            tensor.grad = None
        if halves:
            rest = backward_inputs(output, np.ones((3, 2), np.float32), [x])
            assert x.grad is not None and weight.grad is None
            rest()
        else:
            output.sum().backward()
        return [tensor.grad for tensor in (x, y, weight)]

    plainly = lambda function, *inputs: function(*inputs)  # noqa: E731
    for plain, again, halves in (
        (function(x * 2.0, 3.0, y), checkpoint(function, x * 2.0, 3.0, y), False),
        (outer(x * 2.0, 3.0, y, plainly), checkpoint(outer, x * 2.0, 3.0, y), False),
        (function(x, 3.0, y), checkpoint(function, x, 3.0, y), True),
    ):
        for one, other in zip(gradients(plain), gradients(again, halves), strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_function_that_behaves_differently_the_second_time_is_reported():
    for then in (lambda x, y: y, lambda x, y: y * x * x, lambda x, y: y / x):  # less, more, other
        turn = iter((lambda x, y: y * x, then))
        y = checkpoint(lambda x, turn=turn: next(turn)(x, x * x), leaf(2))
        with pytest.raises(RuntimeError, match=r"checkpoint: run again, the function did.*same each time"):
            y.sum().backward()
