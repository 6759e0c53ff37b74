"""The scores of causal attention, queries by keys, in tiles: which are computed, by whom, and which are skipped."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from minidist.nn.attention.tiled import TileMask, tiles
from minidist.show.figures.subplots import subplots
from minidist.show.palette import of_rank

SKIPPED, HIDDEN, NEEDED = 0, 1, 2  # of a score: not computed; computed, and hidden by the mask; computed and used
PALE, GREY = 0.35, "#F0F0F0"  # opacity of hidden scores; colour of skipped ones


@dataclass(frozen=True)
class Panel:
    """One grid.

    Args:
        title: above it.
        length: tokens.
        tile: tokens in a tile.
        ranks: which rank computes each tile of queries; empty for one process.
    """

    title: str
    length: int
    tile: int
    ranks: Sequence[int] = ()


def states(length: int, tile: int) -> np.ndarray:
    """Return what becomes of each score: (queries, keys), SKIPPED, HIDDEN or NEEDED."""
    found = np.full((length, length), SKIPPED)
    for _, queries, _, keys in TileMask(tiles(length, tile)).pairs():
        found[queries, keys] = HIDDEN
    found[np.tril_indices(length)] = NEEDED
    return found


def draw(panels: Sequence[Panel]):
    """Return a matplotlib Figure: a grid for each panel, queries down and keys across; tiles are framed."""
    from matplotlib.colors import to_rgba
    from matplotlib.patches import Rectangle

    figure, all_axes = subplots(11, min(3.6, 11 / len(panels)) + 0.6, 1, len(panels))
    for axes, panel in zip(all_axes, panels, strict=True):
        parts = tiles(panel.length, panel.tile)
        what = states(panel.length, panel.tile)
        image = np.empty((panel.length, panel.length, 4))
        image[:] = to_rgba(GREY)
        for i, rows in enumerate(parts):
            colour = of_rank(panel.ranks[i] if panel.ranks else 0)
            for state, opacity in ((HIDDEN, PALE), (NEEDED, 1.0)):
                image[rows][what[rows] == state] = to_rgba(colour, opacity)
        axes.imshow(image, interpolation="nearest")
        for rows in parts:
            for columns in parts:
                corner = columns.start - 0.5, rows.start - 0.5
                size = columns.stop - columns.start, rows.stop - rows.start
                axes.add_patch(Rectangle(corner, *size, fill=False, edgecolor="white", linewidth=1.4))
        axes.set_title(panel.title, fontsize=10)
        axes.set(xticks=[], yticks=[], xlabel="keys →", ylabel="← queries")
        axes.spines[:].set_visible(False)
    ranks = sorted({rank for panel in panels for rank in panel.ranks})
    if ranks:
        handles = [Rectangle((0, 0), 1, 1, color=of_rank(rank), label=f"rank {rank}") for rank in ranks]
    else:
        kinds = (("needed", of_rank(0), 1.0), ("computed, then hidden", of_rank(0), PALE), ("skipped", GREY, 1.0))
        handles = [Rectangle((0, 0), 1, 1, color=to_rgba(colour, a), label=label) for label, colour, a in kinds]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=9)
    return figure
