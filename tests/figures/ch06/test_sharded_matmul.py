"""Sharded matrices: every rank's part is where the sharding says, and the parts make up the matrix."""

import pytest
from figures.ch06.sharded_matmul import REPLICATED, Matrix, draw, parts
from matplotlib.colors import to_hex
from matplotlib.patches import FancyArrowPatch, Rectangle

from minidist.show.palette import of_rank


def test_parts():
    assert parts(Matrix("W", 4, 6, "columns"), 3) == [(0, 0, 2, 4), (2, 0, 2, 4), (4, 0, 2, 4)]
    assert parts(Matrix("W", 4, 6, "rows"), 2) == [(0, 0, 6, 2), (0, 2, 6, 2)]
    assert parts(Matrix("Y", 4, 6, "partial"), 2) == parts(Matrix("X", 4, 6), 2) == [(0, 0, 6, 4)] * 2
    with pytest.raises(ValueError, match="diagonal"):
        Matrix("W", 4, 6, "diagonal")


def test_a_chain():
    chain = [Matrix("X", 2, 2), "·", Matrix("W", 2, 4, "rows"), "=", Matrix("Y", 2, 4, "partial"), "<all-reduce>"]
    (axes,) = draw({"rows": chain}, 2, {"rows": "a note"}).axes
    boxes = [(p.get_width(), p.get_height(), to_hex(p.get_facecolor()).upper()) for p in axes.patches if _is_box(p)]
    blue, red = of_rank(0), of_rank(1)
    assert boxes[:2] == [(2, 2, REPLICATED)] * 2
    assert boxes[2:] == [(4, 1, blue), (4, 1, red), (4, 2, blue), (4, 2, red)]
    assert sum(isinstance(patch, FancyArrowPatch) for patch in axes.patches) == 1
    assert {"·", "=", "all-reduce", "a note"} <= {text.get_text() for text in axes.texts}


def _is_box(patch) -> bool:
    return isinstance(patch, Rectangle) and patch.get_width() > 0
