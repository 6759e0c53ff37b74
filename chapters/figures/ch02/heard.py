"""Figure of which ranks each rank has heard of, round after round of a barrier."""

from collections.abc import Sequence

import numpy as np


def draw(history: Sequence[np.ndarray]):
    """Return a matplotlib Figure with one matrix (rank, the ranks it has heard of) before and after each round."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 2.6), layout="constrained")
    for number, (axes, known) in enumerate(zip(figure.subplots(1, len(history)), history, strict=True)):
        axes.imshow(known, cmap="Blues", vmin=0, vmax=1.3)
        axes.set_title("before" if number == 0 else f"after round {number}", fontsize=10)
        axes.set(xticks=range(len(known)), yticks=range(len(known)), xlabel="has heard of")
        axes.set_ylabel("rank" if number == 0 else "")
    return figure
