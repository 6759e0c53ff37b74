"""Figure of how many different numbers one output takes, if the same terms are added in several orders."""

from collections.abc import Mapping

import numpy as np


def count(results: np.ndarray) -> np.ndarray:
    """Return the number of distinct values of each output: (orders, *shape) float32 -> shape."""
    return 1 + (np.diff(np.sort(results.view(np.int32), axis=0), axis=0) != 0).sum(axis=0)


def draw(distinct: Mapping[str, np.ndarray], most: int, queries: int = 96):
    """Return a matplotlib Figure: for each softmax a panel with the first queries of one head.

    Args:
        distinct: title -> number of distinct values of each output, (H, B, T, D).
        most: number of orders that were tried.
        queries: how many to show.
    """
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 2.9), layout="constrained")
    panels = figure.subplots(1, len(distinct), squeeze=False)[0]
    colours = colormaps["YlOrBr"].resampled(most)
    for axes, (title, numbers) in zip(panels, distinct.items(), strict=True):
        image = axes.imshow(numbers[0, 0, :queries].T, cmap=colours, vmin=0.5, vmax=most + 0.5, aspect="auto")
        depend = f"{(numbers > 1).sum():,} of {numbers.size:,} outputs depend on the order"
        axes.set_title(f"{title}: {depend}", fontsize=10)
        axes.set(xlabel="queries", ylabel="values of a head", xticks=[], yticks=[])
    figure.colorbar(image, ax=panels, ticks=[1, *range(2, most + 1, 2)], label="different results")
    return figure
