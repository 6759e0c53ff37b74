"""A flat unit of ZeRO: the parameters side by side in it, and how it is split into shards.

Shard boundaries ignore parameters: one parameter can be in several shards, and the last shard ends with padding.
"""

from collections.abc import Sequence

from minidist.show.figures.subplots import subplot
from minidist.show.palette import MEANINGS, ink_on, of_rank

PARAMETERS = (MEANINGS["parameters"], "#A6D8F3")  # alternating, so that neighbours differ
PADDING = "#A0A0A0"
LETTER = 0.0064  # width of one letter of a label, as a share of the picture


def spans(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Return (start, end) of each array when they are laid side by side."""
    found, start = [], 0
    for size in sizes:
        found.append((start, start + size))
        start += size
    return found


def draw(parameters: Sequence[tuple[str, int]], shards: Sequence[slice], title: str):
    """Return a matplotlib Figure: the parameters in their order, the padding hatched, and below them the ranks' shards.

    Args:
        parameters: (name, elements) of each.
        shards: of each rank, in elements of the flat unit; together they may extend beyond the parameters.
    """
    end, width = sum(size for _, size in parameters), shards[-1].stop
    figure, axes = subplot(11, 2.5)
    axes.set_title(title, loc="left", fontsize=11)
    right_of = [2.0] * 5  # for each row of labels, where the label to the right begins
    places = spans([size for _, size in parameters])
    for number, ((name, size), (start, _)) in reversed(list(enumerate(zip(parameters, places, strict=True)))):
        axes.barh(0, size, 0.5, start, color=PARAMETERS[number % 2], edgecolor="white", linewidth=0.6)
        middle = start + size / 2
        if size > 1.2 * LETTER * len(name) * width:
            axes.text(middle, 0, f"{name}\n{size:,}", ha="center", va="center", fontsize=8)
            continue
        label, place = f" {name} {size:,}", middle / width
        height = next((i for i, limit in enumerate(right_of) if place + LETTER * len(label) < limit), len(right_of) - 1)
        right_of[: height + 1] = [place] * (height + 1)  # lower rows too: the line crosses them
        axes.plot([middle, middle], [-0.26, -0.45 - 0.2 * height], color="#808080", linewidth=0.6)
        axes.text(middle, -0.45 - 0.2 * height, label, ha="left", va="center", fontsize=8, color="#404040")
    if width > end:
        axes.barh(0, width - end, 0.5, end, color="white", edgecolor=PADDING, hatch="//////", linewidth=0)
        axes.text(width, 0.375, f"padding {width - end}", ha="right", va="center", fontsize=8, color="#606060")
    for rank, shard in enumerate(shards):
        colour = of_rank(rank)
        axes.barh(0.75, shard.stop - shard.start, 0.5, shard.start, color=colour, edgecolor="white", linewidth=2)
        label = f"rank {rank}\n{shard.start:,} to {shard.stop - 1:,}"
        middle = (shard.start + shard.stop) / 2
        axes.text(middle, 0.75, label, ha="center", va="center", fontsize=8, color=ink_on(colour))
        axes.plot([shard.start, shard.start], [-0.25, 1], color="black", linewidth=1, linestyle=":")
    axes.set_ylim(1.05, -1.4)
    axes.set_xlim(-0.002 * width, 1.002 * width)
    axes.set_yticks([0, 0.75], ["parameters", "shards"])
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return figure
