"""Figures keep their size and their colours when they are made small."""

import io

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image

from minidist.show import notebook
from minidist.show.palette import RANKS


def test_a_palette_keeps_size_and_colours():
    figure = Figure(figsize=(4, 1))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.bar(range(8), [1] * 8, width=1, color=RANKS)
    axes.set(xlim=(-0.5, 7.5), ylim=(0, 1))
    axes.axis("off")
    image = Image.open(io.BytesIO(notebook.png(figure, dpi=100)))
    assert image.mode == "P"
    pixels = np.asarray(image.convert("RGB"))  # (height, width, 3)
    middles = pixels[50, (np.arange(8) * pixels.shape[1] // 8) + pixels.shape[1] // 16]
    expected = np.array([to_rgb(colour) for colour in RANKS]) * 255
    np.testing.assert_allclose(middles, expected, atol=6)


def test_outside_of_a_notebook_nothing_happens():
    notebook.compact_figures()
