"""Exports and pictures of a log made by hand."""

from minidist.show.figures import timeline
from minidist.show.perfetto import to_perfetto
from minidist.trace import Event, Message

US = 1000  # ns
LOGS = [
    [
        Event("forward 0", "compute", 5 * US, 9 * US),
        Event("all_reduce(SUM)", "communication", 10 * US, 30 * US, {"bytes": 64}),
        Message("send", 0, 1, 0, 64, 12 * US),
        Message("send", 0, 1, 1, 64, 13 * US),
    ],
    [
        Message("receive", 0, 1, 0, 64, 20 * US),
        Message("receive", 0, 1, 1, 64, 21 * US),
        Event("s", "step", 5 * US, 31 * US),
    ],
]


def test_perfetto():
    events = to_perfetto(LOGS)["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    slices = [(e["pid"], names[e["pid"], e["tid"]], e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert slices == [
        (0, "compute", "forward 0", 0, 4),
        (0, "communication", "all_reduce(SUM)", 5, 20),
        (0, "messages", "send to rank 1", 7, 1),
        (0, "messages", "send to rank 1", 8, 1),
        (1, "messages", "receive from rank 0", 15, 1),
        (1, "messages", "receive from rank 0", 16, 1),
        (1, "step", "s", 0, 26),
    ]
    arrows = [(e["ph"], e["id"], e["pid"], e["ts"]) for e in events if e["ph"] in "sf"]
    assert arrows == [("s", "0-1-0", 0, 7), ("s", "0-1-1", 0, 8), ("f", "0-1-0", 1, 15), ("f", "0-1-1", 1, 16)]


def test_the_timeline_shows_what_is_there():
    figure = timeline.draw(LOGS, "a title")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["forward", "communication"]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["rank 0", "rank 1"]
