"""One transformer block as ranks really ran it: what each holds after every operation, and where they talk."""

from collections.abc import Sequence
from dataclasses import dataclass

from minidist.show.palette import of_rank
from minidist.trace import Event

COMMUNICATION = "#E69F00"
OPERATIONS = ("LayerNorm", "CopyToHeads", "Linear", "CausalAttention", "Gelu", "ReduceFromHeads", "Residual")
NAMES = {
    "LayerNorm": "LayerNorm",
    "CopyToHeads": "input of\nthe pair",
    "Linear": "cut by\ncolumns",
    "CausalAttention": "attention",
    "Gelu": "GELU",
    "ReduceFromHeads": "cut by\nrows",
    "Residual": "x + …",
}


@dataclass(frozen=True)
class Talk:
    """A collective between two operations."""

    name: str  # "all_reduce"
    place: int  # it comes after so many operations of the block, counted in the order of forward
    elements: int


def operations(log: Sequence) -> list[str]:
    """The forward operations in a rank's log, in their order. (A span of backward ends in ".backward".)"""
    return [e.name for e in _in_order(log) if e.track == "compute" and e.name[0].isupper() and "." not in e.name]


def block(log: Sequence, smallest: int) -> tuple[list[str], list[Talk], list[Talk]]:
    """The first block's operations, in the order of forward, and the collectives of its forward and its backward.

    Args:
        log: of one rank, of a step with one micro-batch and no dropout.
        smallest: collectives of fewer bytes are left out.
    """
    entries = _in_order(log)
    backward = next(i for i, entry in enumerate(entries) if entry.name.startswith("backward"))
    names, there = _walk(entries[:backward], smallest)
    length = next(i for i, name in enumerate(names) if name == "Residual" and names[:i].count("Residual")) + 1
    back_names, back = _walk(entries[backward:], smallest)
    total = len(back_names)
    there = [talk for talk in there if 0 < talk.place < length]
    back = [Talk(talk.name, total - talk.place, talk.elements) for talk in back]
    return names[:length], there, [talk for talk in back if 0 < talk.place < length]


def _in_order(log: Sequence) -> list[Event]:
    return sorted((entry for entry in log if isinstance(entry, Event)), key=lambda event: event.start)


def _walk(entries: Sequence[Event], smallest: int) -> tuple[list[str], list[Talk]]:
    names, talks, adds = [], [], 0
    for entry in entries:
        backwards = entry.name.endswith(".backward")
        name = entry.name.removesuffix(".backward")
        if entry.track == "communication" and entry.details["bytes"] >= smallest and names:
            size = 8 if "float64" in entry.name else 4
            talks.append(Talk(entry.name.split("(")[0], len(names), entry.details["bytes"] // size))
        if name == "Add":  # of a pair, one adds the bias and one the residual
            adds += 1
            name = "Residual" if adds % 2 == backwards else name
        if name in OPERATIONS and not (name == "Linear" and _is_rows(names, backwards)):
            names.append(name)
    return names, talks


def _is_rows(names: Sequence[str], backwards: bool) -> bool:
    """Whether a Linear is the one that leads out of the blocks: its summands are shown after they are added up."""
    last = names[-1] if names else ""
    return last == "ReduceFromHeads" if backwards else last in ("CausalAttention", "Gelu")


def _short(name: str) -> str:
    return name.removesuffix("_tensor").removesuffix("_into").replace("_", "-")


def draw(names: Sequence[str], shares: Sequence[tuple[float, float]], passes: dict[str, Sequence[Talk]], ranks: int):
    """A matplotlib Figure: a panel for each pass, a row for each rank, a box for each operation.

    Tokens lie down a box, values across it.

    Args:
        names: of the operations.
        shares: of each, which part of its tokens and of its values one rank holds, 1 for all.
        passes: title -> its collectives. One that begins with "backward" runs from right to left.
        ranks: how many; of a share, each holds another part.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import FancyArrowPatch, Rectangle

    figure = Figure(figsize=(11, 0.9 + len(passes) * (0.55 + 0.5 * ranks)), layout="constrained")
    for axes, (title, talks) in zip(figure.subplots(len(passes), 1, squeeze=False)[:, 0], passes.items(), strict=True):
        for column, (name, (tokens, values)) in enumerate(zip(names, shares, strict=True)):
            for rank in range(ranks):
                top, left = rank + 0.1, column + 0.17
                part, across = rank if tokens < 1 else 0, rank if values < 1 else 0
                corner = (left + 0.66 * across * values, top + 0.8 * part * tokens)
                summand = name == ("CopyToHeads" if title.startswith("backward") else "ReduceFromHeads")
                axes.add_patch(Rectangle((left, top), 0.66, 0.8, facecolor="#F0F0F0", edgecolor="#C0C0C0", lw=0.6))
                hatch = {"hatch": "/////", "edgecolor": "white"} if summand else {}
                axes.add_patch(
                    Rectangle(corner, 0.66 * values, 0.8 * tokens, facecolor=of_rank(rank), linewidth=0, **hatch)
                )
            axes.text(column + 0.5, ranks + 0.12, NAMES[name], ha="center", va="top", fontsize=8)
        for column in (i for i, name in enumerate(names[:-1]) if name == "Residual"):
            axes.axvline(column + 1, 0.2, 0.85, color="#909090", linewidth=0.8, linestyle=":")
        for talk in talks:
            axes.add_patch(Rectangle((talk.place - 0.11, -0.12), 0.22, ranks + 0.24, color=COMMUNICATION, lw=0))
            letter = "f" if names[talk.place] == "CopyToHeads" else "g"
            axes.text(talk.place, -0.2, f"{letter}: {_short(talk.name)}", ha="center", va="bottom", fontsize=9)
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
