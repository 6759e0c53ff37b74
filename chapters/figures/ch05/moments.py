"""One rank's step of ZeRO stage 3, moment by moment: which units are whole, which a shard, which on their way."""

from collections.abc import Sequence
from dataclasses import dataclass

from minidist.show.memory import COLOURS

COMING = "#E69F00"  # the colour of communication


@dataclass(frozen=True)
class Seen:
    """What a rank holds of one unit at one moment. Its own shard it always holds."""

    parameters: str  # "shard", "coming" or "whole"
    gradients: str  # "shard" or "whole"


def most_whole(moments: Sequence[tuple[str, Sequence[Seen]]]) -> int:
    """How many units had all their parameters in this rank at once, at most."""
    return max(sum(seen.parameters == "whole" for seen in units) for _, units in moments)


def draw(names: Sequence[str], moments: Sequence[tuple[str, Sequence[Seen]]], shard: float, title: str):
    """A matplotlib Figure: a column for each moment, a row for each unit; above its parameters, below its gradients.

    Args:
        names: of the units.
        moments: what happens, and what is held of each unit.
        shard: the part of a unit that is a shard, 1 / N.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 1.4 + 0.5 * len(names)), layout="constrained")
    axes = figure.subplots()
    for column, (_, units) in enumerate(moments):
        for row, seen in enumerate(units):
            for kind, top in (("parameters", row - 0.38), ("gradients", row + 0.02)):
                state = getattr(seen, kind)
                axes.broken_barh([(column, 0.86)], (top, 0.34), facecolors="none", edgecolor="#C8C8C8", linewidth=0.6)
                if state == "coming":
                    axes.broken_barh([(column, 0.86)], (top, 0.34), facecolors=COMING, alpha=0.55)
                filled = 0.86 * (1 if state == "whole" else shard)
                axes.broken_barh([(column, filled)], (top, 0.34), facecolors=COLOURS[kind])
    axes.set_xlim(-0.1, len(moments))
    axes.set_ylim(len(names) - 0.5, -0.55)
    axes.set_yticks(range(len(names)), names)
    axes.set_xticks([column + 0.43 for column in range(len(moments))], [name for name, _ in moments], fontsize=8)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_title(title, loc="left", fontsize=11)
    labels = {"parameters": COLOURS["parameters"], "gradients": COLOURS["gradients"], "on their way": COMING}
    present = {seen.parameters for _, units in moments for seen in units}
    handles = [
        axes.barh(0, 0, color=colour, label=label)
        for label, colour in labels.items()
        if label != "on their way" or "coming" in present
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    return figure
