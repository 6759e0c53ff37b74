"""Logits of a split vocabulary at some positions, and the three numbers that each rank sends for each of them."""

from collections.abc import Sequence

import numpy as np

from minidist.show.palette import of_rank


def draw(parts: Sequence[np.ndarray], tokens: np.ndarray, targets: np.ndarray):
    """Return a matplotlib Figure: for each rank its logits, with the targets framed, next to what it sends.

    Args:
        parts: each rank's logits, (positions, tokens per rank).
        tokens, targets: (positions,), bytes that the model sees, and those to predict.
    """
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.1), layout="constrained")
    axes = figure.subplots(1, 2 * len(parts), width_ratios=[5, 1] * len(parts))
    largest = np.max(parts, axis=(0, 2))[:, None]
    for rank, part in enumerate(parts):
        each = part.shape[1]
        column = targets.astype(int) - each * rank  # where the target is, if it is here
        here = (column >= 0) & (column < each)
        left, right = axes[2 * rank], axes[2 * rank + 1]
        blues, oranges = colormaps["Blues"].resampled(16), colormaps["Oranges"].resampled(16)
        left.imshow(part, aspect="auto", cmap=blues, vmin=-6, vmax=10, interpolation="nearest")
        left.plot(column[here], np.flatnonzero(here), "s", mfc="none", mec="#D55E00", markersize=6, mew=1.5)
        title = f"rank {rank}: tokens {each * rank}–{each * rank + each - 1}"
        left.set_title(title, fontsize=9, color=of_rank(rank))
        left.set_xticks([])
        sums = np.log(np.exp(part - largest).sum(axis=1)) + largest[:, 0]
        at_target = np.where(here, part[np.arange(len(part)), column % each], np.nan)
        numbers = np.stack([part.max(axis=1), sums, at_target], axis=1)
        right.imshow(numbers, aspect="auto", cmap=oranges, vmin=-8, vmax=12)
        right.set_xticks(range(3), ["max", "sum", "target"], rotation=90, fontsize=8)
    for panel in axes:
        panel.set_yticks([])
        panel.spines[:].set_color("#C0C0C0")
    seen = [f"{chr(one)!r} → {chr(two)!r}" for one, two in zip(tokens, targets, strict=True)]
    axes[0].set_yticks(range(len(seen)), seen, fontsize=8)
    return figure
