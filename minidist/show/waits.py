"""Who waits for whom: the wait-for graph. A cycle in it, none of whose ranks can act, is a deadlock."""

import re
from collections.abc import Iterable

import numpy as np

STUCK, PATIENT, RUNNING, FINISHED = "#B00020", "#E69F00", "#009E73", "#999999"


def edges(waiting: dict[int, str]) -> dict[int, int]:
    """Rank -> the rank that it waits for, from ``Deadlock.waiting``."""
    return {rank: int(re.search(r"waits for .*?rank (\d+)", text).group(1)) for rank, text in waiting.items()}


def colour_of(rank: int, waits: dict[int, int], finished: set[int]) -> str:
    """Follow the arrows: somebody who can act ends the wait, a circle or a finished rank never does."""
    first, seen = rank, set()
    while rank in waits and rank not in seen:
        seen.add(rank)
        rank = waits[rank]
    if rank in waits or (rank in finished and rank != first):
        return STUCK
    if rank in finished:
        return FINISHED
    return RUNNING if rank == first else PATIENT


def positions(ranks: int) -> np.ndarray:
    """(ranks, 2) places on a circle, clockwise from the top."""
    angles = np.pi / 2 - 2 * np.pi * np.arange(ranks) / ranks
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def draw(graphs: Iterable[tuple[str, int, dict[int, int], set[int]]]):
    """A matplotlib Figure of wait-for graphs side by side: (title, number of ranks, edges, finished ranks) each.

    Who can act is green, who waits for such a one orange, who has finished grey, and who can never go on red.
    """
    from matplotlib.figure import Figure

    graphs = list(graphs)
    figure = Figure(figsize=(2.7 * len(graphs), 2.8), layout="constrained")
    for axes, (title, ranks, waits, finished) in zip(
        figure.subplots(1, len(graphs), squeeze=False)[0], graphs, strict=True
    ):
        places = positions(ranks)
        for rank, place in enumerate(places):
            axes.plot(*place, "o", markersize=30, color=colour_of(rank, waits, finished))
            axes.text(*place, str(rank), ha="center", va="center", color="white", fontweight="bold", size=13)
        for rank, awaited in waits.items():
            axes.annotate(
                "",
                xy=places[awaited],
                xytext=places[rank],
                arrowprops={
                    "arrowstyle": "-|>",
                    "color": "black",
                    "linewidth": 1.6,
                    "mutation_scale": 16,
                    "shrinkA": 19,
                    "shrinkB": 19,
                    "connectionstyle": "arc3,rad=-0.2",
                },
            )
        axes.set_title(title, fontsize=10)
        axes.set_xlim(-1.6, 1.6)
        axes.set_ylim(-1.5, 1.5)
        axes.set_aspect("equal")
        axes.axis("off")
    return figure
