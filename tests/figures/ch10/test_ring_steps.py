"""Who computes what in each step of a ring, and for how long."""

import numpy as np
import pytest
from figures.ch10 import ring_steps
from matplotlib.colors import to_hex

from minidist.show.palette import of_rank

CONTIGUOUS = np.tril(np.ones((4, 4), int))


def test_efficiency():
    assert ring_steps.efficiency(CONTIGUOUS) == (4 + 1) / (2 * 4)
    assert ring_steps.efficiency(np.tile([3, 2, 2], (3, 1))) == 1


def test_bars_have_the_colour_of_whose_keys_they_are():
    axes = ring_steps.draw({"contiguous": CONTIGUOUS}).axes[0]
    found = {}
    for bar in axes.patches:
        if to_hex(bar.get_facecolor()).upper() != ring_steps.IDLE:
            found[round(bar.get_y() + bar.get_height() / 2), round(bar.get_x())] = to_hex(bar.get_facecolor()).upper()
    assert found == {(rank, step): of_rank(rank - step) for rank in range(4) for step in range(rank + 1)}
    assert [text.get_text() for text in axes.texts].count("idle") == 6
    assert axes.get_title(loc="left") == "contiguous: 62.5% busy"


def test_time_has_one_scale():
    figure = ring_steps.draw({"contiguous": 4 * CONTIGUOUS, "zigzag": np.tile([3, 2, 2, 2], (4, 1))})
    assert [axes.get_xlim() for axes in figure.axes] == [(0, 16)] * 2
    ends = [max(bar.get_x() + bar.get_width() for bar in axes.patches) for axes in figure.axes]
    assert ends == pytest.approx([16, 9])
