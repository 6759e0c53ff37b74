"""How many bits numbers need, and boxes as long as what was saved."""

import numpy as np
from figures.ch08.bit_widths import Operation, bits_needed, draw

from minidist.nn.precision.formats import BFLOAT16


def test_bits_needed():
    values = np.random.default_rng(0).standard_normal(100).astype(np.float32)
    assert bits_needed(values) == 32 and bits_needed(BFLOAT16.round(values)) == 16
    assert bits_needed(values.astype(np.float64)) == 64 and bits_needed(values.reshape(10, 10).T) == 32


def test_lengths_are_to_scale():
    operations = [Operation("Linear", 16, 16, {16: 400}), Operation("LayerNorm", 16, 16, {16: 200, 32: 100})]
    (axes,) = draw(operations).axes
    bars = [box for box in axes.patches if box.get_x() >= 2.3]
    assert [round(box.get_width(), 9) for box in bars] == [4, 1, 2]
    texts = [text.get_text() for text in axes.texts]
    assert "100 (32 bits) + 200 (16 bits)" in texts and texts.count("16") == 4
