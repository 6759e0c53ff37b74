"""Averaging, clipping, the optimizers' states and the schedule."""

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from minidist.nn.gpt import GPT, GPTConfig
from minidist.nn.layers import Parameter
from minidist.nn.optim import clip
from minidist.nn.optim.clip import NotFinite, clip_factor, clip_grad_norm, grad_norm
from minidist.nn.optim.lamb import LAMB
from minidist.nn.optim.optimizers import SGD, AdamW, adamw_update, average_gradients, warmup_cosine


def parameter(gradient, name: str = "weight") -> Parameter:
    made = Parameter(np.shape(gradient))
    made.name, made.grad = name, np.array(gradient, np.float32)
    return made


def gradients(seed: int = 0, scale: float = 1.0) -> np.ndarray:
    """A hundred thousand of them, whose sizes spread over many powers of ten as in real training."""
    random = np.random.default_rng(seed)
    return (scale * random.standard_normal(100_003) * 10 ** random.uniform(-6, 0, 100_003)).astype(np.float32)


def test_averages_are_rounded_once():
    p = Parameter((1000,))
    total = np.random.default_rng(0).standard_normal(1000)
    kept = total.copy()
    p.grad = total
    average_gradients([p], 3)
    assert p.grad.dtype == np.float32
    np.testing.assert_array_equal(p.grad, (total / 3).astype(np.float32))
    assert (p.grad != total.astype(np.float32) / np.float32(3)).any()  # which would be rounded twice
    np.testing.assert_array_equal(total, kept)  # a communication buffer keeps its sum
    with pytest.raises(ValueError, match="not 0"):
        average_gradients([p], 0)


@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30, 1e-42])
def test_norm_is_that_of_a_float64_sum(scale):
    values = gradients(scale=scale)
    expected = scale * np.linalg.norm(values.astype(np.float64) / scale)
    assert grad_norm([parameter(values)]) == pytest.approx(expected, rel=1e-9)


def test_norm_of_a_float64_gradient_however_small():
    p = parameter([0.0])
    p.grad = np.array([1e-300, 5e-324])
    assert grad_norm([p]) == pytest.approx(1e-300, rel=1e-9)


def test_norm_is_the_exact_one_on_the_grid():
    values = gradients()[:1000]
    scale = clip.grid_scale(float(np.abs(values).max()), values.size)
    exact = sum(round((Fraction(float(value)) * Fraction(scale)) ** 2) for value in values)
    assert exact < 2**62
    assert grad_norm([parameter(values)]) == math.sqrt(exact) / scale


def test_the_total_cannot_overflow():
    for count in (1, 2, 3, 1000, 2**20 - 1, 2**20, 2**34):
        for largest in (1.0, math.nextafter(1.0, 0), math.nextafter(2.0, 0), 1e-38, 3e38):
            square = round((Fraction(largest) * Fraction(clip.grid_scale(largest, count))) ** 2)
            assert square * count <= 2**62
            if largest != 3e38:  # nor is it coarser than it must be: a bit more of each element might overflow
                assert square * 16 * count > 2**60


@pytest.mark.parametrize("seed", range(4))
def test_norm_has_the_same_bits_in_any_order_and_any_shards(seed):
    values = gradients()
    expected = grad_norm([parameter(values)])
    random = np.random.default_rng(seed)
    shards = np.split(random.permutation(values), np.sort(random.integers(0, values.size, 7)))
    assert grad_norm([parameter(shard) for shard in shards]) == expected

    # And where each shard is a rank's, which joins its largest, count and total with the others'.
    largest = max(clip.largest_magnitude(shard) for shard in shards)
    total = sum(clip.squares_on_grid(shard, clip.grid_scale(largest, values.size)) for shard in shards)
    for shard in shards:
        sums = iter((values.size, total))
        assert grad_norm([parameter(shard)], lambda _: largest, lambda _, sums=sums: next(sums)) == expected


def test_a_float_sum_of_squares_does_depend_on_the_order():
    values = gradients()
    norms = {float(np.linalg.norm(np.random.default_rng(seed).permutation(values))) for seed in range(20)}
    assert len(norms) > 1


def test_clipping_scales_all_gradients_alike():
    a, b = parameter([3.0, 0.0]), parameter([[4.0]])
    assert clip_grad_norm([a, b], 1.0) == 5.0
    np.testing.assert_allclose(np.array([*a.grad, *b.grad[0]]), [0.6, 0, 0.8], rtol=1e-6)
    assert a.grad.dtype == np.float32
    before = a.grad.copy()
    assert clip_grad_norm([a, b], 10.0) == pytest.approx(1.0, rel=1e-6)
    np.testing.assert_array_equal(a.grad, before)


def test_the_factor_has_torchs_epsilon_in_its_denominator():
    """It shows where the norm is small, and in the last bits everywhere."""
    assert clip_factor(3e-6, 1e-6) == 1e-6 / (3e-6 + 1e-6) == pytest.approx(0.25)
    assert clip_factor(4.0, 1.0) == 1.0 / (4.0 + 1e-6) != 0.25
    assert clip_factor(1.0, 1.0) == 1.0 / (1.0 + 1e-6) < 1
    assert clip_factor(1.0, 1.0 + 1e-6) == clip_factor(0.0, 1e-6) == 1.0


def test_nothing_to_clip():
    assert clip_grad_norm([], 1.0) == 0.0
    assert clip_grad_norm([Parameter((2,)), parameter([0.0, 0.0]), parameter([])], 1.0) == 0.0
    assert clip_factor(1e9, math.inf) == 1.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_gradient_that_is_not_finite_is_named(bad):
    fine, broken = parameter([1.0, 2.0], "fine"), parameter([1.0, bad, bad], "blocks.1.mlp.fc.weight")
    for order in ([fine, broken], [broken, fine]):
        with pytest.raises(FloatingPointError, match=r"blocks\.1\.mlp\.fc\.weight is not finite: 2 of its 3"):
            clip_grad_norm(order, 1.0)
    with pytest.raises(NotFinite, match="another process") as error:
        grad_norm([fine], all_max=lambda _: bad)
    assert error.value.found == ""


def test_max_norm_must_be_positive():
    for bad in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="positive"):
            clip_grad_norm([parameter([1.0])], bad)


def test_only_matrices_decay():
    model = GPT(GPTConfig(context=4, layers=1, heads=2, width=4))
    decaying = {name for name, p in model.named_parameters() if p.decay}
    assert decaying == {
        "embeddings.token.weight",
        "blocks.0.attention.qkv.weight",
        "blocks.0.attention.out.weight",
        "blocks.0.mlp.fc.weight",
        "blocks.0.mlp.proj.weight",
    }
    for p in model.parameters():
        p.data += 1
        p.grad = np.zeros(p.shape, np.float32)
    before = {name: p.data.copy() for name, p in model.named_parameters()}
    AdamW(model.parameters(), lr=0.1, weight_decay=0.5).step()
    for name, p in model.named_parameters():
        np.testing.assert_allclose(p.data, before[name] * (0.95 if name in decaying else 1), rtol=1e-6)


def test_adamw_on_slices_has_the_bits_of_the_whole():
    random = np.random.default_rng(0)
    start, grads = random.standard_normal(1001, np.float32), random.standard_normal((3, 1001), np.float32)

    def train(part: slice) -> list[np.ndarray]:
        data, first, second = start[part].copy(), np.zeros_like(start[part]), np.zeros_like(start[part])
        for step, grad in enumerate(grads, 1):
            adamw_update(data, grad[part], first, second, step, 1e-2, (0.9, 0.95), 1e-8, 0.1)
        return [data, first, second]

    for whole, *parts in zip(*map(train, (slice(None), slice(0, 7), slice(7, 500), slice(500, None))), strict=True):
        np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_states_are_named_and_live():
    model = GPT(GPTConfig(context=4, layers=1, heads=2, width=4))
    names = [name for name, _ in model.named_parameters()]
    adamw, sgd = AdamW(model.parameters(), lr=0.1), SGD(model.parameters(), lr=0.1, momentum=0.9)
    assert list(adamw.state()) == [f"exp_avg.{name}" for name in names] + [f"exp_avg_sq.{name}" for name in names]
    assert list(sgd.state()) == [f"momentum_buffer.{name}" for name in names]
    tokens = np.zeros((1, 4), np.int64)
    model(tokens, tokens).backward()
    average_gradients(model.parameters(), 1)
    adamw.step()
    for name, array in adamw.state().items():
        assert array.dtype == np.float32 and (array.any() or name.endswith("qkv.bias")), name


def test_sgd_without_momentum_keeps_nothing():
    p = parameter([1.0, -2.0])
    sgd = SGD([p], lr=0.5)
    sgd.step()
    np.testing.assert_array_equal(p.data, [-0.5, 1.0])
    assert sgd.state() == {} and sgd.kinds == {} and sgd.steps == 1


def test_sgd_decays_weights_as_adamw_does():
    """Before the step, by lr times the decay, and only what decays."""
    for decay, rest in ((True, np.float32(0.95)), (False, np.float32(1))):
        p = Parameter((2,), mean=3.0, decay=decay)
        p.name, p.grad = "p", np.array([1, 0], np.float32)
        SGD([p], lr=0.1, weight_decay=0.5).step()
        expected = np.float32(3) * rest - np.float32(0.1) * p.grad
        np.testing.assert_array_equal(p.data, expected)


def test_parameters_without_a_gradient_stay():
    """And a step without any gradient is none: AdamW's bias correction begins with the first one."""
    p = Parameter((2,), mean=1.0)
    p.name = "p"
    for optimizer in (AdamW([p], lr=0.1), SGD([p], lr=0.1), LAMB([p], 0.1, {"p": 2})):
        optimizer.step()
        assert optimizer.steps == 0
    average_gradients([p], 2)
    np.testing.assert_array_equal(p.data, [1, 1])


def test_schedule():
    rates = [warmup_cosine(step, 100, peak=1.0, warmup=10, final=0.1) for step in range(120)]
    assert rates[0] == pytest.approx(1 / 11) and rates[10] == 1.0
    assert all(a < b for a, b in pairwise(rates[:11]))
    assert all(a > b for a, b in pairwise(rates[10:101]))
    assert rates[55] == pytest.approx(0.55) and rates[100:] == [pytest.approx(0.1)] * 20
    assert warmup_cosine(0, 10, peak=2.0) == 2.0
    assert warmup_cosine(5, 5, peak=1.0, warmup=5) == 1.0  # a run that ends with its warmup
