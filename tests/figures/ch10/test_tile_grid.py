"""Which scores tiled attention computes, and in whose colour."""

import numpy as np
from figures.ch10 import tile_grid
from figures.ch10.tile_grid import HIDDEN, NEEDED, SKIPPED, Panel
from matplotlib.colors import to_rgba

from minidist.show.palette import of_rank


def test_tiles_above_the_diagonal_are_skipped():
    found = tile_grid.states(6, 2)
    assert found[0].tolist() == [NEEDED, HIDDEN] + 4 * [SKIPPED]
    assert found[3].tolist() == 4 * [NEEDED] + 2 * [SKIPPED]
    assert [(found == state).sum() for state in (NEEDED, HIDDEN, SKIPPED)] == [21, 3, 12]
    assert (tile_grid.states(6, 6) == SKIPPED).sum() == 0


def test_a_row_of_tiles_has_the_colour_of_its_rank():
    axes = tile_grid.draw([Panel("one", 4, 2, (1, 0))]).axes[0]
    image = axes.images[0].get_array()
    assert np.allclose(image[1, 0], to_rgba(of_rank(1))) and np.allclose(image[3, 0], to_rgba(of_rank(0)))
    assert np.allclose(image[0, 1], to_rgba(of_rank(1), tile_grid.PALE))
    assert np.allclose(image[0, 2], to_rgba(tile_grid.GREY))
    assert len(axes.patches) == 4 and axes.get_title() == "one"


def test_without_ranks_the_legend_says_what_is_skipped():
    legend = tile_grid.draw([Panel("one", 4, 2)]).legends[0]
    assert [text.get_text() for text in legend.get_texts()] == ["needed", "computed, then hidden", "skipped"]
