"""The picture of a roofline: its corners, and where prefill and decode lie."""

import numpy as np
import pytest

from minidist.nn.gpt import GPTConfig
from minidist.plan.cluster.hardware import load
from minidist.show.figures.roofline import BATCHES, Dot, draw, ends_of_the_roofline, written

H100 = load().accelerators["h100"]
ROOF = H100.flops["bf16"], H100.memory_bandwidth
MODEL = GPTConfig(vocab=50257, context=2048, layers=32, heads=32, width=4096)


def lines(figure) -> dict[str, np.ndarray]:
    """Label -> points, (n, 2)."""
    (axes,) = figure.axes
    return {line.get_label(): line.get_xydata() for line in axes.get_lines()}


def test_dots_that_were_not_measured_lie_on_the_roof():
    found = lines(draw(*ROOF, ends_of_the_roofline(MODEL), ""))
    dots = np.concatenate([points for name, points in found.items() if name.startswith(("decode", "prefill"))])
    assert len(dots) == len(BATCHES) + 1 + 3
    np.testing.assert_allclose(dots[:, 1], np.minimum(989.4e12, dots[:, 0] * 3.35e12), rtol=1e-12)
    assert (
        found["decode: products, by batch"][0, 0]
        < 1.01
        < 295
        < found["prefill: products, by tokens of the prompt"][-1, 0]
    )


def test_measured_dots_lie_where_they_were_measured():
    works = {"here": [Dot("1", 2.0, 4e9), Dot("2", 4.0, 1.6e10)]}
    found = lines(draw(*ROOF, works, ""))
    np.testing.assert_allclose(found["here"], [[2.0, 4e9], [4.0, 1.6e10]])


def test_the_roof_bends_at_the_ridge_and_all_dots_are_inside():
    figure = draw(*ROOF, ends_of_the_roofline(MODEL), "a title", "bf16")
    (axes,) = figure.axes
    slope, flat = (line.get_xydata() for line in axes.get_lines()[:2])
    for corner in (slope[1], flat[0]):
        np.testing.assert_allclose(corner, [989.4e12 / 3.35e12, 989.4e12])
    (low, high), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    for points in lines(figure).values():
        assert ((low <= points[:, 0]) & (points[:, 0] <= high)).all()
        assert ((bottom <= points[:, 1]) & (points[:, 1] <= top)).all()
    texts = [text.get_text() for text in axes.texts]
    assert axes.get_title(loc="left") == "a title" and "3.35 TB/s of memory bandwidth" in texts
    assert "989.4 TFLOP/s, bf16" in texts and "ridge: 295 FLOPs per byte" in texts


@pytest.mark.parametrize(
    ("value", "text"), [(3.35e12, "3.35 T"), (989.4e12, "989.4 T"), (1.9789e15, "1.979 P"), (5.0, "5 ")]
)
def test_rates_have_the_largest_unit_that_fits(value, text):
    assert written(value) == text
