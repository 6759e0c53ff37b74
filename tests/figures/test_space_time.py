"""The arrows of a space-time diagram are the messages of the log."""

from figures import space_time

from minidist.analysis.replay import Flight
from minidist.trace import Event, Message

US = 1000  # ns
LOGS = [
    [
        Event("work", "compute", 3 * US, 9 * US),
        Message("send", 0, 1, 7, 64, 10 * US),
        Message("send", 0, 1, 8, 32, 11 * US),  # never taken out: no arrow
        Message("receive", 1, 0, 0, 16, 30 * US),
    ],
    [
        Message("receive", 0, 1, 7, 64, 20 * US),
        Message("send", 1, 0, 0, 16, 21 * US),
        Event("wait for rank 0", "wait", 4 * US, 20 * US),
    ],
]


def test_flights_run_from_the_put_to_the_take():
    assert space_time.real_flights(LOGS) == [Flight(0, 1, 64, 7.0, 17.0), Flight(1, 0, 16, 18.0, 27.0)]


def test_spans_share_the_clock_of_the_flights():
    assert space_time.spans(LOGS, "compute") == [(0, 0.0, 6.0)]
    assert space_time.spans(LOGS, "wait") == [(1, 1.0, 17.0)]


def test_the_arrows_stand_where_the_flights_are():
    flights = space_time.real_flights(LOGS)
    axes = space_time.draw(flights, 2, "t", "µs", waiting=space_time.spans(LOGS, "wait")).axes[0]
    arrows = [(text.xyann, text.xy) for text in axes.texts]
    assert arrows == [((7.0, 0), (17.0, 1)), ((18.0, 1), (27.0, 0))]
    assert [(bar.get_x(), bar.get_width(), bar.get_y() + bar.get_height() / 2) for bar in axes.patches] == [(1, 16, 1)]


def test_an_empty_log_has_no_flights():
    assert space_time.real_flights([[], []]) == []
    space_time.draw([], 2, "nothing")
