"""Figure of what one rank holds in several layouts: stacked bars, from the memory ledgers of real runs."""

from collections.abc import Mapping

from minidist.show.figures.memory import COLOURS
from minidist.show.figures.subplots import subplot

KINDS = ("parameters", "gradients", "optimizer", "activations")


def stacks(memories: Mapping[str, Mapping[str, int]], kinds=KINDS) -> dict[str, list[tuple[str, int, int]]]:
    """Return each layout's segments (kind, from, to) in bytes, from the bottom up."""
    found = {}
    for layout, memory in memories.items():
        level, found[layout] = 0, []
        for kind in kinds:
            found[layout].append((kind, level, level + memory[kind]))
            level += memory[kind]
    return found


def draw(memories: Mapping[str, Mapping[str, int]], title: str, kinds=KINDS):
    """Return a matplotlib Figure: a bar for each layout, a segment for each kind.

    Args:
        memories: name of the layout -> bytes of each kind, such as ``RankResult.memory``.
        kinds: which of them to show, from the bottom up.
    """
    figure, axes = subplot(min(11, 2.6 + 1.3 * len(memories)), 3.4)
    for place, pieces in enumerate(stacks(memories, kinds).values()):
        for kind, low, high in pieces:
            axes.bar(place, (high - low) / 1e6, 0.7, low / 1e6, color=COLOURS[kind])
        axes.text(place, pieces[-1][2] / 1e6, f"{pieces[-1][2] / 1e6:.1f}", ha="center", va="bottom", fontsize=9)
    axes.set_xticks(range(len(memories)), list(memories))
    axes.set_ylabel("MB held by a rank")
    axes.set_title(title, loc="left", fontsize=11)
    handles = [axes.bar(0, 0, color=COLOURS[kind], label=kind) for kind in kinds[::-1]]
    figure.legend(handles=handles, loc="outside right center", frameon=False)
    return figure
