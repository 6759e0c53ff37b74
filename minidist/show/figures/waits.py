"""Wait-for graphs: ranks on a circle, and an arrow to the rank that each one waits for."""

from collections.abc import Iterable

import numpy as np

from minidist.analysis.traffic import FINISHED, PATIENT, RUNNING, STUCK, state_of
from minidist.show.palette import ink_on, on_paper

OF_STATES = {STUCK: "wrong", PATIENT: "idle", RUNNING: "computing", FINISHED: "result"}  # state -> what it means
COLOURS = {state: on_paper(meaning) for state, meaning in OF_STATES.items()}


def positions(ranks: int) -> np.ndarray:
    """Return the ranks' places on a circle, (ranks, 2), clockwise from the top."""
    angles = np.pi / 2 - 2 * np.pi * np.arange(ranks) / ranks
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def draw(graphs: Iterable[tuple[str, int, dict[int, int], set[int]]]):
    """Return a matplotlib Figure of wait-for graphs in a row, each as (title, number of ranks, edges, finished ranks).

    A rank that can act is blue, one that waits for such a rank grey, a finished one green, and one that can never go on
    red.
    """
    from matplotlib.figure import Figure

    graphs = list(graphs)
    figure = Figure(figsize=(2.7 * len(graphs), 2.8), layout="constrained")
    for axes, (title, ranks, waits, finished) in zip(
        figure.subplots(1, len(graphs), squeeze=False)[0], graphs, strict=True
    ):
        places = positions(ranks)
        for rank, place in enumerate(places):
            colour = COLOURS[state_of(rank, waits, finished)]
            axes.plot(*place, "o", markersize=30, color=colour)
            axes.text(*place, str(rank), ha="center", va="center", color=ink_on(colour), fontweight="bold", size=13)
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
