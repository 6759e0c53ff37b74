"""Packed samples: a row for each, with the pieces of documents in it; and what a packing wastes."""

from collections.abc import Sequence

import numpy as np

from minidist.data.packing import Packing
from minidist.show.figures.subplots import subplots
from minidist.show.palette import MEANINGS

WHOLE, PIECE, CUT, EMPTY = MEANINGS["parameters"], MEANINGS["gradients"], MEANINGS["lost"], "#ECECEC"


def waste(packing: Packing) -> tuple[float, float]:
    """Return the share of all places that are empty, and of the documents that fit into a sample the share cut."""
    empty = 1 - packing.places / (len(packing) * packing.context)
    pieces = np.bincount([piece.document for number in range(len(packing)) for piece in packing.sample(number)])
    fits = places_of(packing)[: len(pieces)] <= packing.context
    return float(empty), float((pieces[fits] > 1).sum() / (pieces[fits] > 0).sum())


def places_of(packing: Packing) -> np.ndarray:
    """Return the places of each document: one less than it has tokens."""
    return np.diff(packing.documents.bounds[:, 0], prepend=0) - 1


def draw(packings: Sequence[Packing], samples: int):
    """Return a matplotlib Figure: a panel for each packing, with samples from its first one to its last one.

    Args:
        packings: from left to right.
        samples: rows of a panel.
    """
    from matplotlib.patches import Rectangle

    figure, grid = subplots(11, 0.9 + 0.22 * samples, 1, len(packings))
    for axes, packing in zip(grid, packings, strict=True):
        places = places_of(packing)
        for row, number in enumerate(np.linspace(0, len(packing) - 1, samples).astype(int)):
            left = 0
            for piece in packing.sample(number):
                length = places[piece.document]
                colour = WHOLE if piece.places == length else PIECE if length > packing.context else CUT
                axes.barh(row, piece.places, 0.8, left, color=colour, edgecolor="white", linewidth=0.8)
                left += piece.places
            axes.barh(row, packing.context - left, 0.8, left, color=EMPTY)
        axes.set_title(f"{packing.kind}: {waste(packing)[0]:.1%} empty", fontsize=10)
        axes.set(xlim=(0, packing.context), ylim=(samples - 0.4, -0.6), xticks=[0, packing.context], yticks=[])
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    names = "a document", "a piece of one that is too long", "a part of one that would fit", "empty"
    colours = zip(names, (WHOLE, PIECE, CUT, EMPTY), strict=True)
    handles = [Rectangle((0, 0), 1, 1, color=colour, label=name) for name, colour in colours]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=9)
    return figure
