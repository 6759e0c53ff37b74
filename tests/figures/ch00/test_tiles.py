"""How often a tiled product loads each element."""

import numpy as np
import pytest
from figures.ch00 import tiles


@pytest.mark.parametrize("tile", [1, 2, 4, 8])
def test_each_element_is_loaded_once_for_each_tile_across(tile):
    a, b = tiles.loads(8, tile)
    assert np.all(a == 8 // tile) and np.all(b == 8 // tile)
    assert a.sum() + b.sum() == 2 * 8**3 // tile


def test_the_picture_colours_what_one_tile_of_c_needs():
    from matplotlib.colors import to_hex

    axes = tiles.draw(8, (2,), row=3, column=5).axes[0]
    cells = {colour: set() for colour in (tiles.A, tiles.B, tiles.C)}
    for cell in axes.patches:
        colour = to_hex(cell.get_facecolor()).upper()
        if colour in cells:
            cells[colour].add((cell.get_x(), cell.get_y()))
    assert cells[tiles.A] == {(x, 10 + y) for x in range(8) for y in (2, 3)}  # two rows of A
    assert cells[tiles.B] == {(10 + x, y) for x in (4, 5) for y in range(8)}  # two columns of B
    assert cells[tiles.C] == {(10 + x, 10 + y) for x in (4, 5) for y in (2, 3)}
