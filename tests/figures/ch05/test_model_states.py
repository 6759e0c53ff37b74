"""Which part of a model each rank holds: boxes are filled where a rank holds something."""

from figures.ch05.model_states import KINDS, draw, share
from matplotlib.colors import to_hex

from minidist.show.figures.memory import COLOURS

WHOLE = dict.fromkeys(KINDS, (0, 10))
HALVES = [WHOLE | {"optimizer": (0, 5)}, WHOLE | {"optimizer": (5, 10)}]


def test_shares():
    assert share([WHOLE, WHOLE], "optimizer", 10) == 1
    assert share(HALVES, "optimizer", 10) == 0.5 and share(HALVES, "gradients", 10) == 1


def test_filled_where_it_is_held():
    plain, stage1 = draw({"plain": [WHOLE, WHOLE], "stage 1": HALVES}, 10).axes
    green = [bar for bar in stage1.patches if to_hex(bar.get_facecolor()).upper() == COLOURS["optimizer"]]
    assert [(round(bar.get_x() - 2.2, 9), bar.get_width()) for bar in green] == [(0, 0.5), (0.5, 0.5)]
    assert [tick.get_text() for tick in stage1.get_xticklabels()] == ["1", "1", "0.5"]
    assert [tick.get_text() for tick in plain.get_xticklabels()] == ["1", "1", "1"]
