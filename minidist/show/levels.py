"""How much memory one rank holds over the time of a step: areas on top of each other, from the ledger's changes."""

from collections.abc import Mapping, Sequence

from minidist.show.memory import COLOURS

KINDS = ("parameters", "optimizer", "gradients", "activations")  # from the bottom: what changes least
Level = tuple[int, Mapping[str, int]]  # a moment in ns, and the bytes of each kind from then on


def edges(levels: Sequence[Level], kinds: Sequence[str] = KINDS) -> list[list[int]]:
    """For each kind the upper edge of its area, in bytes, at each moment."""
    found, below = [], [0] * len(levels)
    for kind in kinds:
        below = [low + held[kind] for low, (_, held) in zip(below, levels, strict=True)]
        found.append(below)
    return found


def draw(panels: Mapping[str, Sequence[Level]], kinds: Sequence[str] = KINDS, marks: Mapping[str, Mapping] = {}):
    """A matplotlib Figure: side by side, for each run by its title, what was held over time.

    Args:
        kinds: which to show, from the bottom up.
        marks: for a title, moments in ns with what happens there, drawn as lines.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.1), layout="constrained")
    row = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    highest = max(max(edges(levels, kinds)[-1]) for levels in panels.values()) / 1e6
    for axes, (title, levels) in zip(row, panels.items(), strict=True):
        start = levels[0][0]
        times, below = [(time - start) / 1e6 for time, _ in levels], [0.0] * len(levels)
        for kind, edge in zip(kinds, edges(levels, kinds), strict=True):
            above = [nbytes / 1e6 for nbytes in edge]
            axes.fill_between(times, below, above, step="post", color=COLOURS[kind], linewidth=0)
            below = above
        for time, name in marks.get(title, {}).items():
            place = (time - start) / 1e6
            axes.axvline(place, color="#606060", linewidth=0.8, linestyle=":")
            axes.text(place, 0.99, f" {name}", transform=axes.get_xaxis_transform(), fontsize=7, va="top", rotation=90)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("ms")
        axes.margins(x=0)
        axes.set_ylim(0, 1.25 * highest)
        axes.spines[["top", "right"]].set_visible(False)
    row[0].set_ylabel("MB held by a rank")
    handles = [row[0].barh(0, 0, color=COLOURS[kind], label=kind) for kind in kinds[::-1]]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(kinds), frameon=False)
    return figure
