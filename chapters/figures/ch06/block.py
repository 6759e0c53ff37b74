"""One transformer block from a real run: what each rank holds after every operation, and where ranks communicate."""

from collections.abc import Sequence
from dataclasses import dataclass

from minidist.show.figures.subplots import subplots
from minidist.show.palette import MEANINGS, of_rank
from minidist.trace import Event

COMMUNICATION = MEANINGS["communication"]
OPERATIONS = ("LayerNorm", "CopyToHeads", "Linear", "CausalAttention", "Gelu", "ReduceFromHeads", "Residual")
NAMES = {
    "LayerNorm": "LayerNorm",
    "CopyToHeads": "input",
    "Linear": "column\nparallel",
    "CausalAttention": "attention",
    "Gelu": "GELU",
    "ReduceFromHeads": "row\nparallel",
    "Residual": "x + …",
}


@dataclass(frozen=True)
class Call:
    """A collective between two operations."""

    name: str  # "all_reduce"
    place: int  # the number of the block's operations before it, in the order of forward
    elements: int


def operations(log: Sequence) -> list[str]:
    """Return the forward operations in a rank's log, in order. (The name of a backward one ends with ".backward".)"""
    return [e.name for e in _in_order(log) if e.track == "compute" and e.name[0].isupper() and "." not in e.name]


def block(log: Sequence, smallest: int) -> tuple[list[str], list[Call], list[Call]]:
    """Return the first block's operations in forward order, and the collectives of its forward and of its backward.

    Args:
        log: one rank's, of a step with one micro-batch and without dropout.
        smallest: collectives with fewer bytes are skipped.
    """
    entries = _in_order(log)
    backward = next(i for i, entry in enumerate(entries) if entry.name.startswith("backward"))
    names, there = _walk(entries[:backward], smallest)
    length = next(i for i, name in enumerate(names) if name == "Residual" and names[:i].count("Residual")) + 1
    back_names, back = _walk(entries[backward:], smallest)
    total = len(back_names)
    there = [call for call in there if 0 < call.place < length]
    back = [Call(call.name, total - call.place, call.elements) for call in back]
    return names[:length], there, [call for call in back if 0 < call.place < length]


def _in_order(log: Sequence) -> list[Event]:
    return sorted((entry for entry in log if isinstance(entry, Event)), key=lambda event: event.start)


def _walk(entries: Sequence[Event], smallest: int) -> tuple[list[str], list[Call]]:
    names, calls, adds = [], [], 0
    for entry in entries:
        backwards = entry.name.endswith(".backward")
        name = entry.name.removesuffix(".backward")
        if entry.track == "communication" and entry.details["bytes"] >= smallest and names:
            size = 8 if "float64" in entry.name else 4
            calls.append(Call(entry.name.split("(")[0], len(names), entry.details["bytes"] // size))
        if name == "Add":  # of each two, one adds the bias and one the residual
            adds += 1
            name = "Residual" if adds % 2 == backwards else name
        if name in OPERATIONS and not (name == "Linear" and _is_rows(names, backwards)):
            names.append(name)
    return names, calls


def _is_rows(names: Sequence[str], backwards: bool) -> bool:
    """Return whether a Linear is the row-parallel one, which is shown after its partial sums are added up."""
    last = names[-1] if names else ""
    return last == "ReduceFromHeads" if backwards else last in ("CausalAttention", "Gelu")


def _short(name: str) -> str:
    return name.removesuffix("_tensor").removesuffix("_into").replace("_", "-")


def draw(names: Sequence[str], shares: Sequence[tuple[float, float]], passes: dict[str, Sequence[Call]], ranks: int):
    """Return a matplotlib Figure: a panel for each pass, a row for each rank, a box for each operation.

    Tokens run down a box, values across it.

    Args:
        names: of the operations.
        shares: for each, the share of its tokens and the share of its values that one rank holds.
        passes: title -> its collectives. A title that begins with "backward" runs from right to left.
        ranks: number of ranks; where a share is below 1, each holds a different part.
    """
    from matplotlib.patches import FancyArrowPatch, Rectangle

    figure, grid = subplots(11, 0.9 + len(passes) * (0.55 + 0.5 * ranks), len(passes), 1)
    for axes, (title, calls) in zip(grid, passes.items(), strict=True):
        for column, (name, (tokens, values)) in enumerate(zip(names, shares, strict=True)):
            for rank in range(ranks):
                top, left = rank + 0.1, column + 0.17
                part, across = rank if tokens < 1 else 0, rank if values < 1 else 0
                corner = (left + 0.66 * across * values, top + 0.8 * part * tokens)
                partial_sum = name == ("CopyToHeads" if title.startswith("backward") else "ReduceFromHeads")
                axes.add_patch(Rectangle((left, top), 0.66, 0.8, facecolor="#F0F0F0", edgecolor="#C0C0C0", lw=0.6))
                hatch = {"hatch": "/////", "edgecolor": "white"} if partial_sum else {}
                axes.add_patch(
                    Rectangle(corner, 0.66 * values, 0.8 * tokens, facecolor=of_rank(rank), linewidth=0, **hatch)
                )
            axes.text(column + 0.5, ranks + 0.12, NAMES[name], ha="center", va="top", fontsize=8)
        for column in (i for i, name in enumerate(names[:-1]) if name == "Residual"):
            axes.axvline(column + 1, 0.2, 0.85, color="#909090", linewidth=0.8, linestyle=":")
        for call in calls:
            axes.add_patch(Rectangle((call.place - 0.11, -0.12), 0.22, ranks + 0.24, color=COMMUNICATION, lw=0))
            letter = "f" if names[call.place] == "CopyToHeads" else "g"
            axes.text(call.place, -0.2, f"{letter}: {_short(call.name)}", ha="center", va="bottom", fontsize=9)
        ends = (0.05, len(names) - 0.05)
        ends = ends[::-1] if title.startswith("backward") else ends
        axes.add_patch(
            FancyArrowPatch(
                (ends[0], ranks + 0.95), (ends[1], ranks + 0.95), arrowstyle="-|>", mutation_scale=12, color="#808080"
            )
        )
        axes.set_yticks([rank + 0.5 for rank in range(ranks)], [f"rank {rank}" for rank in range(ranks)])
        axes.set(xlim=(-0.05, len(names) + 0.05), ylim=(ranks + 1.1, -0.65), xticks=[])
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set_title(title, loc="left", fontsize=11)
    return figure
