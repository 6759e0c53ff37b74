"""Runs, compared on one time axis."""

from minidist.show import overlap
from minidist.trace import Event, Message

MS = 1_000_000  # ns


def log(late=0):
    """Two steps; in the second one, 4 ms of collectives, of which 1 ms is under backward."""
    events = [
        Event("forward 0", "compute", 1, 2),
        Event("step 0", "step", 0, 9 * MS),
        Event("forward 0", "compute", 10 * MS, 12 * MS),
        Message("send", 0, 1, 0, 8, 11 * MS),
        Event("backward 0", "compute", 12 * MS, 15 * MS),
        Event("all_reduce(SUM)", "communication", 14 * MS, 17 * MS),
        Event("all_reduce(SUM)", "communication", 16 * MS, 18 * MS),
        Event("sync gradients", "wait", 15 * MS, 18 * MS),
        Event("step 1", "step", 10 * MS, 20 * MS),
    ]
    return [
        Event(e.name, e.track, e.start + late, e.end + late) if isinstance(e, Event) and e.start >= 10 * MS else e
        for e in events
    ]


def test_all_runs_share_one_time_axis():
    figure = overlap.draw({"short": [log(), log()], "long": [log(), log(late=5 * MS)]})
    ends = [axes.lines[0].get_xdata()[0] for axes in figure.axes]
    assert ends == [10, 15]
    assert figure.axes[0].get_xlim() == figure.axes[1].get_xlim()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "forward",
        "backward",
        "communication",
        "wait",
    ]
