"""A tiled matrix product: what one tile of C needs, and how often each element is loaded for all of C."""

import numpy as np

from minidist.show.palette import SERIES

A, B, C, IDLE = SERIES[4], SERIES[5], SERIES[2], "#F2F2F2"


def loads(n: int, tile: int) -> tuple[np.ndarray, np.ndarray]:
    """Count, tile by tile, how often a tiled product of two n x n matrices loads each element of A and of B."""
    a, b = np.zeros((n, n), int), np.zeros((n, n), int)
    starts = range(0, n, tile)
    for i in starts:
        for j in starts:
            for k in starts:
                a[i : i + tile, k : k + tile] += 1
                b[k : k + tile, j : j + tile] += 1
    return a, b


def draw(n: int, tiles: tuple[int, ...], row: int, column: int):
    """Draw A, B and C for each tile size, and what the tile with (row, column) of C needs; return a Figure."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.4 * len(tiles), 4.6), layout="constrained")
    for axes, tile in zip(figure.subplots(1, len(tiles), squeeze=False)[0], tiles, strict=True):
        a, b = loads(n, tile)
        top, left = row // tile * tile, column // tile * tile
        gap = n + 2
        _matrix(axes, n, 0, gap, "A", A, (top, top + tile), (0, n))
        _matrix(axes, n, gap, 0, "B", B, (0, n), (left, left + tile))
        _matrix(axes, n, gap, gap, "C = A B", C, (top, top + tile), (left, left + tile))
        note = f"each element\nis loaded\n{a.max()} times"
        axes.text(n / 2, n / 2, note, ha="center", va="center", fontsize=10, color="#404040")
        axes.set_title(f"tiles of {tile} x {tile}: {a.sum() + b.sum():,} loads", fontsize=11)
        axes.set(xlim=(-0.5, gap + n + 0.5), ylim=(gap + n + 2, -1.5), aspect="equal")
        axes.axis("off")
    return figure


def _matrix(axes, n: int, x: float, y: float, name: str, colour: str, rows: tuple, columns: tuple) -> None:
    """Draw a grid of n x n cells with its upper left corner at (x, y); the cells in both ranges are coloured."""
    for r in range(n):
        for c in range(n):
            used = rows[0] <= r < rows[1] and columns[0] <= c < columns[1]
            axes.add_patch(_cell(x + c, y + r, colour if used else IDLE))
    axes.text(x + n / 2, y + n + 0.2, name, ha="center", va="top", fontsize=10)


def _cell(x: float, y: float, colour: str):
    from matplotlib.patches import Rectangle

    return Rectangle((x, y), 1, 1, facecolor=colour, edgecolor="white", linewidth=0.7)
