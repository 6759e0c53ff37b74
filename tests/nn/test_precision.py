"""Mixed precision in one process: what is rounded, what is stored in 16 bits, and what must not be."""

from math import inf, nan

import numpy as np
import pytest

from minidist import flops
from minidist.nn import functional, kernels
from minidist.nn.attention.plain import causal_attention
from minidist.nn.attention.tiled import tiled_attention
from minidist.nn.gpt import GPT, GPTConfig
from minidist.nn.layers import Parameter
from minidist.nn.modes import Mode, within
from minidist.nn.optim.optimizers import AdamW, adamw_update, average_gradients
from minidist.nn.precision.formats import BFLOAT16, E4M3, E5M2, round_scaled
from minidist.nn.precision.policy import POLICIES, autocast, current
from minidist.nn.precision.underflow import GradScaler, MasterWeights
from minidist.nn.recompute import checkpoint
from minidist.nn.tensor import Tensor, no_grad

CONFIG = GPTConfig(vocab=64, layers=2, heads=4, width=32, context=16)


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def is_rounded(array, form) -> bool:
    return bool((form.round(np.ascontiguousarray(array)) == array).all())


def batch():
    return np.random.default_rng(0).integers(0, CONFIG.vocab, (2, 3, CONFIG.context))


@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp8"])
def test_every_output_and_every_gradient_between_operations_is_rounded(precision):
    policy, seen = POLICIES[precision], []

    class Spy(Mode):
        def after_backward(self, ctx, gradient, found):
            seen.append((ctx.name, ctx.rounds, np.array(gradient)))

    model = GPT(CONFIG)
    with within(Spy()), autocast(precision):
        hidden = model.blocks[1](model.blocks[0](model.embeddings(batch()[0], None), None), None)
        loss = model.head.loss(hidden, batch()[1])
    *_, probabilities = loss.grad_fn.saved_arrays
    loss.backward()
    assert is_rounded(hidden.data, policy.compute)
    assert loss.dtype == np.float32 and not is_rounded(loss.data, policy.compute)
    assert {"Linear", "LayerNorm", "CausalAttention", "Gelu", "Add"} <= {name for name, *_ in seen}
    for name, rounds, gradient in seen:
        assert not rounds or is_rounded(gradient, policy.compute), name
    terms = {name for name, rounds, _ in seen if not rounds}
    assert terms == {"CopyToHeads", "CrossEntropy", "Linear"}  # Linear where its blocks' outputs are added up
    assert probabilities.dtype == np.float32 and not is_rounded(probabilities, policy.compute)


def test_a_policy_ends_with_its_block_and_without_a_graph_the_bits_are_the_same():
    """An operation's output is not rounded again, terms of a sum are not rounded, and fp32 rounds nothing."""
    model, losses = GPT(CONFIG), {}
    for precision in POLICIES:
        with autocast(precision):
            losses[precision] = model(*batch()).item()
            with no_grad():
                assert model(*batch()).item() == losses[precision], precision
    assert losses["fp32"] == model(*batch()).item() and len(set(losses.values())) == len(losses)
    before = flops.snapshot()
    with pytest.raises(KeyError), autocast("bf16"), flops.phase("recompute"):
        raise KeyError
    flops.add(1)
    assert current() is POLICIES["fp32"] and flops.snapshot() - before == {"forward": 1}


def test_products_by_hand():
    """Factors are rounded, for fp8 twice; a leaf is read anew, and its gradient is a sum yet to be taken."""
    gradient = BFLOAT16.round(random(1, 6, 4))
    for precision, eight in (("bf16", lambda form, array: array[0]), ("fp8", lambda *of: round_scaled(*of, (1, 2))[0])):
        inputs, weight = Tensor(random(1, 6, 8), requires_grad=True), Tensor(random(1, 8, 4), requires_grad=True)
        for factor in (1, 3):
            inputs.data, inputs.grad, weight.grad = random(1, 6, 8) * np.float32(factor), None, None
            with autocast(precision):
                y = functional.linear(inputs, weight)
            y.backward(gradient)
            x, w = eight(E4M3, BFLOAT16.round(inputs.data)), eight(E4M3, BFLOAT16.round(weight.data))
            g = eight(E5M2, gradient)
            np.testing.assert_array_equal(y.data[0], BFLOAT16.round(x @ w))
            np.testing.assert_array_equal(inputs.grad[0], g @ w.T)
            np.testing.assert_array_equal(weight.grad[0], x.T @ g)
            assert (x != inputs.data[0]).any() and (w != weight.data[0]).any()
            assert (g != gradient[0]).any() == (precision == "fp8")


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_attention_multiplies_rounded_factors(precision, monkeypatch):
    policy, factors = POLICIES[precision], []

    def watched(a, b, out=None):
        factors.extend((a.copy(), b.copy()))
        return np.matmul(a, b, out=out)

    monkeypatch.setattr(kernels, "matmul_each", watched)
    keep = np.random.default_rng(0).random((2, 3, 5, 5)) > 0.3
    for attention, count in (
        (causal_attention, 2 * (2 + 4)),  # of two heads: q k and P v, and four products in backward
        (lambda x: causal_attention(x, keep, 0.3), 2 * (2 + 4)),
        (lambda x: tiled_attention(x, lambda h, i, j: keep[h], 0.3), 2 + 5),  # both heads at once; q k again
    ):
        factors.clear()
        qkv = Tensor(random(2, 3, 5, 12), requires_grad=True)  # (H, B, T, 3 D)
        with autocast(policy):
            attention(qkv).sum().backward()
        assert len(factors) == 2 * count and all(is_rounded(factor, policy.compute) for factor in factors)


def test_what_comes_from_another_precision_is_rounded():
    x = Tensor(random(3, 4), requires_grad=True)
    h = x * x
    with autocast("bf16"):
        y, z = h + 0.0, checkpoint(lambda h: h + 0.0, h)
        number = (x * 2.0 / np.float32(4)).mean()
    np.testing.assert_array_equal(y.data, BFLOAT16.round(h.data))
    np.testing.assert_array_equal(z.data, y.data)
    number.backward()
    np.testing.assert_allclose(x.grad, 0.5 / 12, rtol=2**-8)


# Master weights


def parameter(values, name: str = "weight", gradient=None) -> Parameter:
    made = Parameter((0,))
    made.name, made.data = name, np.float32(values)
    made.grad = gradient and np.array(gradient, np.float64)
    return made


def test_masters_get_the_gradients_and_hand_on_the_weights():
    """A parameter in 16 bits refuses updates, which would be lost."""
    weights = MasterWeights([parameter([1.001], "a"), parameter([2.0, 3.0], "b")], BFLOAT16)
    first = weights.parameters[0]
    assert first.stored.dtype == np.uint16 and (first.shape, first.size, first.dtype) == ((1,), 1, np.float32)
    assert first.data == BFLOAT16.round(np.float32([1.001])) != weights.masters[0].data == np.float32(1.001)
    with pytest.raises(ValueError, match="read-only"):
        adamw_update(first.data, *np.ones((3, 1), np.float32), 1, 1e-3, (0.9, 0.99), 1e-8, 0.0)
    for number, weight in enumerate(weights.parameters):
        weight.grad = np.full(weight.shape, 8.0 * (number + 1))
    weights.take_gradients()
    average_gradients(weights.masters, 2)
    AdamW(weights.masters, lr=0.5, weight_decay=0.0).step()
    weights.sync_params()  # Adam's first step is lr
    np.testing.assert_allclose(weights.masters[0].data, [0.501], rtol=1e-6)
    np.testing.assert_allclose([w.data[0] for w in weights.parameters], [0.5, 1.5], rtol=2**-8)


# Loss scaling


def test_the_scale_follows_the_overflows():
    scaler, fixed, history = GradScaler(init_scale=8.0, growth_interval=2), GradScaler(4.0, growth_interval=0), []
    bad = iter((inf, -inf, nan))
    for overflow in (False, True, False, False, True, True, False, False, False, False):
        weight, before = parameter([0, 0], gradient=[8.0, next(bad) if overflow else 16.0]), scaler.scale
        assert scaler.unscale([weight, parameter([0.0])]) is overflow and weight.grad[0] == 8.0 / before
        scaler.update(overflow)
        fixed.update(overflow)
        history.append(scaler.scale)
    assert history == [8, 4, 4, 8, 4, 2, 2, 4, 4, 8] and (fixed.scale, fixed.skipped, scaler.skipped) == (4.0, 3, 3)
    for elsewhere in (0.0, 1.0):
        found = scaler.unscale([parameter([0], gradient=[1.0])], lambda mine, other=elsewhere: max(mine, other))
        assert found is bool(elsewhere)
