"""One rank's step of ZeRO stage 3, moment by moment: which units are unsharded, sharded, or in flight."""

from collections.abc import Sequence
from dataclasses import dataclass

from minidist.show.figures.memory import COLOURS
from minidist.show.figures.subplots import subplot
from minidist.show.palette import MEANINGS

IN_FLIGHT, FAINT = MEANINGS["communication"], 0.55


@dataclass(frozen=True)
class UnitState:
    """State of one unit on a rank at one moment. The rank always holds its own shard."""

    parameters: str  # "sharded", "in flight" or "unsharded"
    gradients: str  # "sharded" or "unsharded"


def most_unsharded(moments: Sequence[tuple[str, Sequence[UnitState]]]) -> int:
    """Return the largest number of units whose parameters were unsharded on this rank at once."""
    return max(sum(unit.parameters == "unsharded" for unit in units) for _, units in moments)


def draw(names: Sequence[str], moments: Sequence[tuple[str, Sequence[UnitState]]], shard: float, title: str):
    """Return a matplotlib Figure: a column for each moment; for each unit its parameters, and below them its gradients.

    Args:
        names: of the units.
        moments: (what happens, the state of each unit).
        shard: the share of a unit in one shard, 1 / N.
    """
    figure, axes = subplot(11, 1.4 + 0.5 * len(names))
    for column, (_, units) in enumerate(moments):
        for row, unit in enumerate(units):
            for kind, top in (("parameters", row - 0.38), ("gradients", row + 0.02)):
                state = getattr(unit, kind)
                axes.broken_barh([(column, 0.86)], (top, 0.34), facecolors="none", edgecolor="#C8C8C8", linewidth=0.6)
                if state == "in flight":
                    axes.broken_barh([(column, 0.86)], (top, 0.34), facecolors=IN_FLIGHT, alpha=FAINT)
                filled = 0.86 * (1 if state == "unsharded" else shard)
                axes.broken_barh([(column, filled)], (top, 0.34), facecolors=COLOURS[kind])
    axes.set_xlim(-0.1, len(moments))
    axes.set_ylim(len(names) - 0.5, -0.55)
    axes.set_yticks(range(len(names)), names)
    axes.set_xticks([column + 0.43 for column in range(len(moments))], [name for name, _ in moments], fontsize=8)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_title(title, loc="left", fontsize=11)
    labels = {"parameters": COLOURS["parameters"], "gradients": COLOURS["gradients"], "in flight": IN_FLIGHT}
    present = {unit.parameters for _, units in moments for unit in units}
    handles = [
        axes.barh(0, 0, color=colour, label=label, alpha=FAINT if label == "in flight" else 1)
        for label, colour in labels.items()
        if label != "in flight" or "in flight" in present
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    return figure
