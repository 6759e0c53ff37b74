"""Figure of the pairs of query and key that see each other in packed documents, and of the tiles that are computed."""

from collections.abc import Mapping

import numpy as np

from minidist.nn.attention.tiled import TileMask, tiles
from minidist.nn.documents import Documents, hidden_keys
from minidist.show.figures.subplots import subplots
from minidist.show.palette import MEANINGS

SKIPPED, HIDDEN, SEEN = 0, 1, 2  # of a score: not computed; computed, and hidden by the mask; computed and used
COLOURS = ("#F0F0F0", "#DDBBCE", MEANINGS["attention"])


def states(first: np.ndarray, tile: int) -> np.ndarray:
    """Return what becomes of each score of the first sample: (queries, keys), SKIPPED, HIDDEN or SEEN.

    Args:
        first: integers (B, T), the place of the first token that each token sees.
        tile: tokens in a tile.
    """
    length = first.shape[1]
    mask = TileMask(tiles(length, tile), Documents(first))
    found = np.full((length, length), SKIPPED)
    for _, queries, _, keys in mask.pairs():
        found[queries, keys] = np.where(hidden_keys(first, queries, keys)[0].T, HIDDEN, SEEN)
    return found


def draw(panels: Mapping[str, np.ndarray], tile: int):
    """Return a matplotlib Figure: queries down and keys across, in tiles.

    Args:
        panels: title -> ``first``, as for ``states``.
        tile: tokens in a tile.
    """
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Rectangle

    figure, grid = subplots(8.4, 4.1, 1, len(panels))
    for axes, (title, first) in zip(grid, panels.items(), strict=True):
        what = states(first, tile)
        length = len(what)
        axes.imshow(what, cmap=ListedColormap(COLOURS), vmin=SKIPPED, vmax=SEEN, interpolation="nearest")
        lines = np.arange(0, length + 1, tile) - 0.5
        axes.hlines(lines, -0.5, length - 0.5, color="white", linewidth=1.2)
        axes.vlines(lines, -0.5, length - 0.5, color="white", linewidth=1.2)
        computed = (what[::tile, ::tile] != SKIPPED).sum()
        axes.set_title(f"{title}: {computed} tiles", fontsize=10)
        axes.set(xticks=[], yticks=[], xlabel="keys →", ylabel="← queries")
        axes.spines[:].set_visible(False)
    labels = zip(("skipped", "computed, then hidden", "computed and used"), COLOURS, strict=True)
    handles = [Rectangle((0, 0), 1, 1, color=colour, label=label) for label, colour in labels]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=9)
    return figure
