"""Pairs of settings as cells, and runs as cells."""

from figures.ch09 import suspects, verdicts
from matplotlib.colors import to_hex
from samples import SP_MEETS_RECOMPUTE

from minidist.analysis.pairs import DIFFERENT, SAME, bad_and_all, values_of
from minidist.show.figures.grid import COLOURS


def test_cells_say_how_many():
    axes = suspects.draw(SP_MEETS_RECOMPUTE).axes[0]
    labels = {text.get_position(): text.get_text() for text in axes.texts}
    values = values_of([run.combination for run in SP_MEETS_RECOMPUTE])
    place = values.index(("sp", 1)) + 0.5, values.index(("recompute", "full")) + 0.5
    assert labels[place] == "2/2" and "2/4" in labels.values()
    assert len(labels) == sum(bad > 0 for bad, _ in bad_and_all(SP_MEETS_RECOMPUTE).values())


def test_verdicts():
    axes = verdicts.draw({"bug": [SAME, DIFFERENT, verdicts.STOPS]}, ("a", "b", "c"), gaps=[2]).axes[0]
    assert [text.get_text() for text in axes.texts] == ["same", "different", "stops"]
    assert [to_hex(cell.get_facecolor()) for cell in axes.patches][:2] == [
        COLOURS[SAME].lower(),
        COLOURS[DIFFERENT].lower(),
    ]
    assert [round(cell.get_x(), 2) for cell in axes.patches] == [0.03, 1.03, 2.18]
