"""Averaging, clipping and optimizers: exact sums, whatever the order. (What optimizers compute: test_torch.py.)"""

from fractions import Fraction
from itertools import product
from math import inf, nan, nextafter, sqrt

import numpy as np
import pytest

from minidist import trace
from minidist.nn.layers import Parameter
from minidist.nn.optim import clip
from minidist.nn.optim.clip import NotFinite, clip_factor, clip_grad_norm, grad_norm
from minidist.nn.optim.lamb import LAMB, trust_ratios
from minidist.nn.optim.optimizers import SGD, AdamW, average_gradients, warmup_stable_decay


def parameter(gradient, name: str = "weight") -> Parameter:
    made = Parameter(np.shape(gradient))
    made.name, made.grad = name, np.array(gradient, np.float32)
    return made


def spread(size: int = 50_003, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    """Numbers whose sizes spread over many powers of ten, as gradients' do in real training."""
    random = np.random.default_rng(seed)
    return (scale * random.standard_normal(size) * 10 ** random.uniform(-6, 0, size)).astype(np.float32)


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


def test_the_norm_is_the_exact_one_on_its_grid_whatever_the_scale():
    """The grid is so fine that the total of squares just cannot overflow."""
    values = spread(1000)
    scale = clip.grid_scale(float(np.abs(values).max()), values.size)
    exact = sum(round((Fraction(float(value)) * Fraction(scale)) ** 2) for value in values)
    assert grad_norm([parameter(values)]) == sqrt(exact) / scale
    for scale in (1.0, 1e-30, 1e30, 1e-42):
        values = spread(scale=scale)
        expected = scale * np.linalg.norm(values.astype(np.float64) / scale)
        assert grad_norm([parameter(values)]) == pytest.approx(expected, rel=1e-9), scale
    tiny = parameter([0.0])
    tiny.grad = np.array([1e-300, 5e-324])
    assert grad_norm([tiny]) == pytest.approx(1e-300, rel=1e-9)
    for count, largest in product((1, 3, 2**20 - 1, 2**20, 2**34), (1.0, nextafter(1.0, 0), nextafter(2.0, 0), 1e-38)):
        square = round((Fraction(largest) * Fraction(clip.grid_scale(largest, count))) ** 2)
        assert 2**60 < square * 16 * count <= 2**66, (count, largest)


def test_the_factor_has_torchs_epsilon_in_its_denominator():
    """The epsilon shows where the norm is small, and in the last bits everywhere."""
    assert clip_factor(3e-6, 1e-6) == 1e-6 / (3e-6 + 1e-6) == pytest.approx(0.25)
    assert clip_factor(4.0, 1.0) == 1.0 / (4.0 + 1e-6) != 0.25
    assert clip_grad_norm([], 1.0) == clip_grad_norm([Parameter((2,)), parameter([0.0]), parameter([])], 1.0) == 0.0
    assert clip_factor(1.0, 1.0 + 1e-6) == clip_factor(0.0, 1e-6) == clip_factor(1e9, inf) == 1.0


def test_what_is_not_finite_is_named():
    for bad in (nan, inf, -inf):
        fine, broken = parameter([1.0, 2.0], "fine"), parameter([1.0, bad, bad], "blocks.1.mlp.fc.weight")
        for order in ([fine, broken], [broken, fine]):
            with pytest.raises(FloatingPointError, match=r"blocks\.1\.mlp\.fc\.weight is not finite: 2 of its 3"):
                clip_grad_norm(order, 1.0)
        with pytest.raises(NotFinite, match="another process") as error:
            grad_norm([fine], all_max=lambda _, bad=bad: bad)
        assert error.value.found == ""


def test_without_a_gradient_a_step_is_none_and_what_is_zero_has_trust_ratio_one():
    weight, sizes = parameter([1.0, 2.0]), {"weight": 2}
    weight.grad = None
    for optimizer in (AdamW([weight], 0.1), LAMB([weight], 0.1, sizes), SGD([weight], 0.1, momentum=0.9)):
        optimizer.step()
        average_gradients([weight], 2)
        assert optimizer.steps == 0 and weight.grad is None and not weight.data.any()
    for optimizer in (AdamW([], 0.1), LAMB([], 0.1, {}), SGD([], 0.1)):
        optimizer.step()
        assert optimizer.steps == 1  # a rank without parameters, which may play another's role in a replay
    zeros, ones = np.zeros(4, np.float32), np.ones(4, np.float32)
    weights, updates = {"a": zeros, "b": ones, "c": ones}, {"a": ones, "b": zeros, "c": 2 * ones}
    assert trust_ratios(weights, updates, dict.fromkeys("abc", 4)) == {"a": 1.0, "b": 1.0, "c": 0.5}


def test_kernels_read_and_write_what_an_update_needs():
    """Weight, gradient, mean and square of gradients, update: each once, and LAMB's again for norms and step."""
    weight, sizes = parameter([1.0, 2.0, 3.0]), {"weight": 3}
    for step, reads, writes in (
        (SGD([weight], 0.1).step, "w g", "w"),
        (SGD([weight], 0.1, momentum=0.9).step, "w g m", "w m"),
        (AdamW([weight], 0.1).step, "w g m v", "w m v"),
        (LAMB([weight], 0.1, sizes).step, "w g m v w u w u", "m v u w"),
        (lambda: clip_grad_norm([weight], 0.5), "g g", "g"),
    ):
        trace.start()
        step()
        (kernel,) = trace.stop()
        assert kernel.nbytes == 3 * 4 * len((reads + writes).replace(" ", "")), kernel.name


def test_a_run_that_ends_while_it_warms_up_never_climbs():
    rates = [warmup_stable_decay(step, 5, 1.0, warmup=9, decay=4, final=0.1) for step in range(5)]
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.325, 0.1])  # of the warm-up and of the decay the lower one
