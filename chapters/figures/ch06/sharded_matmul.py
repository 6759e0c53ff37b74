"""Sharded matrix products: which rank holds which part of each matrix, to scale, in the ranks' colours."""

from collections.abc import Sequence
from dataclasses import dataclass

from minidist.show.palette import MEANINGS, ink_on, of_rank

REPLICATED, COMMUNICATION = MEANINGS["replicated"], MEANINGS["communication"]
SHARDINGS = ("replicated", "columns", "rows", "partial")
GAP = 1.1  # between two items of a chain
SIGN = 1.0  # width of a sign such as "="
ARROW = 5.7  # width of a collective's arrow


@dataclass(frozen=True)
class Matrix:
    """A matrix in a chain.

    Args:
        name: its label.
        rows, columns: its size in the picture.
        sharding: "replicated" on every rank, sharded by "columns" or "rows", or "partial": each rank has a partial sum.
    """

    name: str
    rows: float
    columns: float
    sharding: str = "replicated"

    def __post_init__(self) -> None:
        if self.sharding not in SHARDINGS:
            raise ValueError(f"{self.name}: sharding must be one of {', '.join(SHARDINGS)}, got {self.sharding!r}")


def parts(matrix: Matrix, ranks: int) -> list[tuple[float, float, float, float]]:
    """Return what each rank holds: (x, y, width, height), from the matrix's upper left corner."""
    width, height = matrix.columns, matrix.rows
    if matrix.sharding == "columns":
        return [(rank * width / ranks, 0, width / ranks, height) for rank in range(ranks)]
    if matrix.sharding == "rows":
        return [(0, rank * height / ranks, width, height / ranks) for rank in range(ranks)]
    return [(0, 0, width, height)] * ranks


def draw(chains: dict[str, Sequence[Matrix | str]], ranks: int, notes: dict[str, str] | None = None):
    """Return a matplotlib Figure: a row for each chain of matrices.

    Args:
        chains: title -> matrices with text between them: a sign such as "·" or "=", or a collective in angle brackets,
            "<all-reduce>", which becomes an arrow.
        ranks: the number of ranks.
        notes: title -> text at the end of the row.
    """
    from matplotlib.figure import Figure

    heights = [max(part.rows for part in chain if isinstance(part, Matrix)) for chain in chains.values()]
    width = max(sum(_width(part) + GAP for part in chain) for chain in chains.values()) + 0.5
    rows = sum(heights) + 2.9 * len(chains)
    notes = notes or {}
    right = width + (9 if notes else 0)
    figure = Figure(figsize=(11, 11 * (rows + 0.2) / right), layout="constrained")
    axes = figure.subplots()
    top = 0.0
    for (title, chain), height in zip(chains.items(), heights, strict=True):
        axes.text(0, top + 0.1, title, fontsize=10.5, va="top", color="#202020", fontweight="bold")
        middle, x = top + 1.7 + height / 2, 0.0
        for part in chain:
            if isinstance(part, Matrix):
                _matrix(axes, part, x, middle - part.rows / 2, ranks)
            elif part.startswith("<"):
                _collective(axes, part.strip("<>"), x, middle)
            else:
                size = 13 if len(part) == 1 else 9
                axes.text(x + _width(part) / 2, middle, part, ha="center", va="center", fontsize=size)
            x += _width(part) + GAP
        axes.text(width + 0.2, middle, notes.get(title, ""), va="center", fontsize=10)
        top += height + 2.9
    axes.set(xlim=(-0.3, right), ylim=(rows + 0.1, -0.1), aspect="equal")
    axes.axis("off")
    names = [(REPLICATED, "on every rank"), *((of_rank(rank), f"rank {rank}") for rank in range(ranks))]
    handles = [axes.barh(0, 0, color=colour, label=name) for colour, name in names]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    return figure


def _width(part: Matrix | str) -> float:
    if isinstance(part, Matrix):
        return part.columns + (0.9 if part.sharding == "partial" else 0)
    return ARROW if part.startswith("<") else SIGN * max(1, 0.6 * len(part))


def _matrix(axes, matrix: Matrix, x: float, y: float, ranks: int) -> None:
    from matplotlib.patches import Rectangle

    for rank, (left, up, width, height) in enumerate(parts(matrix, ranks)):
        partial = matrix.sharding == "partial"
        shift = 0.9 * rank / max(1, ranks - 1) if partial else 0  # partial sums overlap like sheets of paper
        colour = REPLICATED if matrix.sharding == "replicated" else of_rank(rank)
        place = (x + left + shift, y + up + (shift - 0.45 if partial else 0))
        hatch = "////" if partial else None
        axes.add_patch(
            Rectangle(place, width, height, facecolor=colour, edgecolor="white", linewidth=1.2, hatch=hatch, zorder=2)
        )
    ink = "black" if matrix.sharding == "replicated" else ink_on(of_rank(0))
    shift = 0.9 if matrix.sharding == "partial" else 0
    if matrix.sharding == "replicated":
        axes.text(x + matrix.columns / 2, y + matrix.rows / 2, matrix.name, ha="center", va="center", color=ink)
    else:
        below = y + matrix.rows + (0.45 if matrix.sharding == "partial" else 0) + 0.15
        axes.text(x + (matrix.columns + shift) / 2, below, matrix.name, ha="center", va="top", fontsize=9.5)


def _collective(axes, name: str, x: float, y: float) -> None:
    from matplotlib.patches import FancyArrowPatch

    axes.add_patch(
        FancyArrowPatch((x, y), (x + ARROW, y), arrowstyle="-|>", mutation_scale=16, color=COMMUNICATION, lw=3)
    )
    axes.text(x + ARROW / 2, y - 0.4, name, ha="center", va="bottom", fontsize=9)
