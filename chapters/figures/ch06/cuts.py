"""Chains of matrices for ``sharded_matmul``: a product cut in two ways, and a pair of products cut in four."""

from figures.ch06.sharded_matmul import Matrix

TWO_CUTS = {
    "by columns: each rank has some columns of Y": [
        Matrix("X", 3, 4), "·", Matrix("W by columns", 4, 8, "columns"), "=", Matrix("Y", 3, 8, "columns"),
    ],
    "by rows: each rank has a partial sum of all of Y": [
        Matrix("X by columns", 3, 4, "columns"), "·", Matrix("W by rows", 4, 8, "rows"), "=",
        Matrix("partial sums of Y", 3, 8, "partial"), "<all-reduce>", Matrix("Y", 3, 8),
    ],
}  # fmt: skip

_Y, _U, _U_COLUMNS = Matrix("Y", 3, 3), Matrix("U", 3, 7), Matrix("U", 3, 7, "columns")
_TO_COLUMNS = [Matrix("X", 3, 3), "·", Matrix("A", 3, 7, "columns"), "=", _U_COLUMNS]
_TO_ROWS = [
    Matrix("X", 3, 3, "columns"), "·", Matrix("A", 3, 7, "rows"), "=", Matrix("partial sums", 3, 7, "partial"),
]  # fmt: skip
_FROM_ROWS = [
    "→ GELU", "·", Matrix("B", 7, 3, "rows"), "=", Matrix("partial sums", 3, 3, "partial"), "<all-reduce>", _Y,
]  # fmt: skip
_FROM_COLUMNS = [
    "→ GELU", "·", Matrix("B", 7, 3, "columns"), "=", Matrix("Y", 3, 3, "columns"), "<all-gather>", _Y,
]  # fmt: skip
FOUR_ORDERS = {
    "columns, then rows": _TO_COLUMNS + _FROM_ROWS,
    "columns, then columns": [*_TO_COLUMNS, "<all-gather>", _U, *_FROM_COLUMNS],
    "rows, then rows": [*_TO_ROWS, "<reduce-scatter>", _U_COLUMNS, *_FROM_ROWS],
    "rows, then columns": [*_TO_ROWS, "<all-reduce>", _U, *_FROM_COLUMNS],
}
