"""Range and spacing of the formats, against their own numbers."""

import numpy as np
import pytest
from figures.ch08.spacing import corners, draw_ticks, numbers_between

from minidist.nn.precision.formats import BFLOAT16, E4M3, E5M2, FLOAT16


@pytest.mark.parametrize("format", [FLOAT16, E5M2, E4M3, BFLOAT16], ids=lambda f: f.name)
def test_corners_are_what_neighbours_say(format):
    smallest, normal, end = corners(format)
    numbers = numbers_between(format, 0, format.largest).astype(np.float64)
    assert np.log2(numbers[1]) == smallest[0] and np.log2(numbers[-1]) == end[0]
    for exponent, spacing in (normal, (0, end[1])):  # from a power of two to the next number
        place = np.searchsorted(numbers, 2.0**exponent)
        assert np.log2((numbers[place + 1] - numbers[place]) / numbers[place]) == spacing
    assert np.log2((numbers[2] - numbers[1]) / numbers[1]) == smallest[1] == 0


def test_float32():
    info = np.finfo(np.float32)
    smallest, normal, end = corners(None)
    assert 2.0 ** smallest[0] == info.smallest_subnormal and 2.0 ** normal[0] == info.tiny
    assert end == (128, -23)


def test_a_tick_for_each_number():
    (axes,) = draw_ticks([E4M3, E5M2], 0, 1).axes
    assert [len(lines.get_segments()) for lines in axes.collections] == [57, 61]
