"""Figure of the errors in the distance of a query and a key, where tokens get positions other than their own."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from minidist.show.figures.subplots import subplots
from minidist.show.palette import SIGNED


@dataclass(frozen=True)
class Panel:
    """One way to number the tokens of a sequence, chunk by chunk.

    Args:
        title: above it.
        ranks: on which rank each chunk is.
        places: the chunk whose positions each chunk is given.
    """

    title: str
    ranks: Sequence[int]
    places: Sequence[int]


def errors(places: Sequence[int]) -> np.ndarray:
    """Return the distance that attention sees, minus the right one, in chunks: (chunks of queries, chunks of keys)."""
    off = np.asarray(places) - np.arange(len(places))
    return off[:, None] - off[None]


def share_right(places: Sequence[int], chunk: int) -> float:
    """Return the share of pairs with the right distance, among those in which a query sees a key, its own included.

    Args:
        places: the chunk whose positions each chunk is given.
        chunk: tokens in a chunk.
    """
    seen = np.kron(errors(places), np.ones((chunk, chunk), int))[np.tril_indices(chunk * len(places))]
    return float((seen == 0).mean())


def draw(panels: Sequence[Panel], chunk: int):
    """Return a matplotlib Figure: for each panel the pairs of queries (down) and keys (across), coloured by the error.

    Args:
        panels: from left to right.
        chunk: tokens in a chunk.
    """
    from matplotlib.colors import LinearSegmentedColormap, Normalize

    colours = LinearSegmentedColormap.from_list("signed", SIGNED)
    largest = chunk * max(abs(errors(panel.places)).max() for panel in panels)
    figure, drawn = subplots(11, 3.2, 1, len(panels))
    for axes, panel in zip(drawn, panels, strict=True):
        length = chunk * len(panel.places)
        error = chunk * np.kron(errors(panel.places), np.ones((chunk, chunk), int))
        seen = np.ma.masked_where(~np.tri(length, dtype=bool), error)
        image = axes.imshow(seen, cmap=colours, norm=Normalize(-largest, largest), interpolation="nearest")
        inner = np.arange(length - 1) + 0.5
        axes.hlines(inner, -0.5, inner + 1, color="white", linewidth=0.6)
        axes.vlines(inner, inner, length - 0.5, color="white", linewidth=0.6)
        axes.plot([-0.5, length - 0.5], [-0.5, length - 0.5], color="#909090", linewidth=0.6)
        middles = np.arange(len(panel.places)) * chunk + (chunk - 1) / 2
        given = [f"{place * chunk}–{(place + 1) * chunk - 1}" for place in panel.places]
        axes.set_xticks(middles, given, fontsize=9)
        axes.set_yticks(middles, [f"rank {rank}" for rank in panel.ranks], fontsize=9)
        axes.set_title(f"{panel.title}: {share_right(panel.places, chunk):.0%} right", fontsize=10)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set_xlabel("keys, by the positions they are given")
    drawn[0].set_ylabel("queries")
    figure.colorbar(image, ax=list(drawn), shrink=0.8).set_label("error of the distance, tokens")
    return figure
