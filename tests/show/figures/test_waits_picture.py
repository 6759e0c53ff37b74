"""Wait-for graphs: an arrow for each wait, and a colour for each state."""

import numpy as np

from minidist.analysis.wait_for import FINISHED, RUNNING, STUCK
from minidist.show.figures import waits


def test_an_arrow_for_each_wait_and_a_place_for_each_rank():
    figure = waits.draw([("t", 4, {0: 1, 1: 0}, {3})])
    axes = figure.axes[0]
    arrows = [text for text in axes.texts if text.get_text() == ""]
    places = waits.positions(4)
    np.testing.assert_allclose(places, [[0, 1], [1, 0], [0, -1], [-1, 0]], atol=1e-12)
    assert [(tuple(a.xyann), tuple(a.xy)) for a in arrows] == [
        (tuple(places[0]), tuple(places[1])),
        (tuple(places[1]), tuple(places[0])),
    ]
    states = [STUCK, STUCK, RUNNING, FINISHED]
    assert [line.get_color() for line in axes.lines] == [waits.COLOURS[state] for state in states]
