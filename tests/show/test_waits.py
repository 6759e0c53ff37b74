"""The wait-for graph is what a real deadlock tells."""

import numpy as np
import pytest

import minidist as md
from minidist.show import waits


def test_edges_of_a_real_deadlock(ranks):
    with pytest.raises(md.Deadlock) as caught:
        ranks(3).run(lambda world: md.recv(np.zeros(1), (world.rank + 1) % 3, world))
    assert waits.edges(caught.value.waiting) == {0: 1, 1: 2, 2: 0}


def test_edges_of_sends():
    assert waits.edges({4: "send: waits for rank 12 to take 8,000 bytes, at a.py:7 in main"}) == {4: 12}


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
    assert [line.get_color() for line in axes.lines] == [waits.STUCK, waits.STUCK, waits.RUNNING, waits.FINISHED]


def test_colours_follow_the_arrows():
    waiting = {0: 1, 1: 0, 2: 0, 3: 4, 5: 6, 7: 3}
    colours = {rank: waits.colour_of(rank, waiting, {6}) for rank in range(8)}
    stuck, patient = waits.STUCK, waits.PATIENT
    expected = [stuck, stuck, stuck, patient, waits.RUNNING, stuck, waits.FINISHED, patient]
    assert list(colours.values()) == expected
