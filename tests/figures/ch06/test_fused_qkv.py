"""Columns of a fused weight: a contiguous split leaves no head complete, distributing heads keeps all complete."""

from figures.ch06.fused_qkv import by_heads, columns, complete, contiguous, draw
from matplotlib.colors import to_hex

from minidist.show.palette import of_rank


def test_who_gets_what():
    assert columns(2) == ["q0", "q1", "k0", "k1", "v0", "v1"]
    assert contiguous(2, 2) == [["q0", "q1", "k0"], ["k1", "v0", "v1"]]
    assert by_heads(2, 2) == [["q0", "k0", "v0"], ["q1", "k1", "v1"]]
    for heads, ranks in ((2, 2), (4, 2), (8, 4)):
        for cut in (contiguous, by_heads):
            assert sorted(name for part in cut(heads, ranks) for name in part) == sorted(columns(heads))
        assert all(complete(part) == [] for part in contiguous(heads, ranks))
        assert [complete(part) for part in by_heads(heads, ranks)] == [
            list(range(rank * heads // ranks, (rank + 1) * heads // ranks)) for rank in range(ranks)
        ]
    assert complete(contiguous(4, 1)[0]) == [0, 1, 2, 3]


def test_a_head_has_its_ranks_colour():
    (axes,) = draw(4, 2).axes
    bars, names = list(axes.patches), [text.get_text() for text in axes.texts if len(text.get_text()) == 2]
    assert len(bars) == len(names) == 3 * 12
    for bar, name in zip(bars, names, strict=True):
        assert to_hex(bar.get_facecolor()).upper() == of_rank(int(name[1]) // 2)
