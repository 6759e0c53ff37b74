"""Messages and events of a log, on one clock."""

from minidist.analysis.flights import real_flights, spans
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


def test_flights_run_from_put_to_take():
    assert real_flights(LOGS) == [Flight(0, 1, 64, 7.0, 17.0), Flight(1, 0, 16, 18.0, 27.0)]


def test_spans_share_the_clock_of_the_flights():
    assert spans(LOGS, "compute") == [(0, 0.0, 6.0)]
    assert spans(LOGS, "wait") == [(1, 1.0, 17.0)]


def test_an_empty_log_has_no_flights():
    assert real_flights([[], []]) == []
