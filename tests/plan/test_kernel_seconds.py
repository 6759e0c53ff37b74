"""The roofline's arithmetic: which of arithmetic and memory decides, and where they meet."""

import pytest

from minidist.plan.cluster.hardware import load
from minidist.plan.cluster.roofline import (
    Work,
    attainable_flops,
    kernel_seconds,
    peak_flops,
    ridge_point,
    total_seconds,
)

H100, V100 = (load().accelerators[name] for name in ("h100", "v100"))


def test_the_longer_of_arithmetic_and_memory_decides():
    assert kernel_seconds(H100, 989.4e12, 1.0, "bf16") == pytest.approx(1.0)
    assert kernel_seconds(H100, 1.0, 3.35e12, "bf16") == pytest.approx(1.0)
    assert kernel_seconds(H100, 989.4e12, 2 * 3.35e12, "bf16") == pytest.approx(2.0)
    assert kernel_seconds(H100, 0, 0, "bf16") == 0.0


def test_efficiencies_lower_their_own_roof():
    work = Work(989.4e12, 3.35e12)
    assert kernel_seconds(H100, work.flops, work.nbytes, "bf16", flops_efficiency=0.5) == pytest.approx(2.0)
    assert kernel_seconds(H100, work.flops, work.nbytes, "bf16", memory_efficiency=0.8) == pytest.approx(1.25)
    assert total_seconds(H100, [work, work], "bf16", flops_efficiency=0.5, memory_efficiency=0.8) == pytest.approx(4.0)


def test_the_roof_bends_at_the_ridge_point():
    ridge = ridge_point(H100, "bf16")
    assert ridge == pytest.approx(295.3, abs=0.05)
    assert attainable_flops(H100, "bf16", ridge) == pytest.approx(peak_flops(H100, "bf16"))
    assert attainable_flops(H100, "bf16", ridge / 2) == pytest.approx(peak_flops(H100, "bf16") / 2)
    assert attainable_flops(H100, "bf16", ridge * 2) == peak_flops(H100, "bf16")


def test_work_has_an_intensity_and_adds_up():
    assert Work(6, 3).intensity == 2 and Work(6, 0).intensity == float("inf")
    assert Work(6, 3) + Work(1, 2) == Work(7, 5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((V100, 1, 1, "bf16"), "V100 SXM2 32 GB has no bf16 arithmetic: choose from fp32, fp16"),
        ((H100, -1, 1, "bf16"), "flops must be 0 or more and finite, got -1"),
        ((H100, 1, float("inf"), "bf16"), "nbytes must be 0 or more and finite, got inf"),
        ((H100, 1, 1, "bf16", 0.0), "flops_efficiency must be above 0 and at most 1, got 0"),
        ((H100, 1, 1, "bf16", 1.0, 1.1), "memory_efficiency must be above 0 and at most 1, got 1.1"),
    ],
)
def test_what_cannot_be_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        kernel_seconds(*arguments)
