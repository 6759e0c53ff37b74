"""The arrows of a space-time diagram are the flights."""

from figures import space_time

from minidist.analysis.replay import Flight


def test_the_arrows_are_where_the_flights_are():
    flights = [Flight(0, 1, 64, 7.0, 17.0), Flight(1, 0, 16, 18.0, 27.0)]
    axes = space_time.draw(flights, 2, "t", "µs", waiting=[(1, 1.0, 17.0)]).axes[0]
    arrows = [(text.xyann, text.xy) for text in axes.texts]
    assert arrows == [((7.0, 0), (17.0, 1)), ((18.0, 1), (27.0, 0))]
    assert [(bar.get_x(), bar.get_width(), bar.get_y() + bar.get_height() / 2) for bar in axes.patches] == [(1, 16, 1)]


def test_no_flights_are_an_empty_picture():
    assert not space_time.draw([], 2, "nothing").axes[0].texts
