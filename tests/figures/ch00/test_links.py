"""Bars of bandwidth, labelled with the time of one message."""

import pytest
from figures.ch00 import links


@pytest.mark.parametrize("value, text", [(2.8, "2.8 s"), (0.0418, "41.8 ms"), (3e-5, "30 µs"), (1.0, "1 s")])
def test_seconds(value, text):
    assert links.seconds(value) == text


def test_the_picture():
    axes = links.draw({"memory": (3350e9, 3350e9), "wire": (450e9, 900e9)}, 140e9, "a title").axes[0]
    assert [bar.get_width() for bar in axes.patches] == [3350, 900, 450]  # both directions are behind one direction
    labels = [text.get_text().strip() for text in axes.texts]
    assert labels == ["3,350 GB/s:  41.8 ms", "450 GB/s each way, 900 both:  311 ms"]
