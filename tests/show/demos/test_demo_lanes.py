"""Lanes: what is drawn when, what is merged, and what covers what."""

import pytest

from minidist.show.demos.shared import lanes
from minidist.show.demos.shared.lanes import MS, RIGHT, Bar, Lanes
from minidist.show.player.scene import Box, Label
from minidist.trace import Event

BLUE, ORANGE, GREY = (lanes.COLOURS[kind] for kind in ("forward", "communication", "wait"))


def picture(*bars: Bar, end: int = 62) -> Lanes:
    """One rank; a millisecond is a character."""
    return Lanes([bars], end * MS, 62 * MS)


def bar(lane: str, start: float, end: float, colour: str, *texts: str) -> Bar:
    return Bar(lane, int(start * MS), int(end * MS), colour, "x", texts)


def boxes(shown: Lanes, time: float) -> list[Box]:
    """All but the cursor and the ticks of the axis."""
    shapes = shown.frame(int(time * MS), "", {}).shapes
    return [shape for shape in shapes if isinstance(shape, Box) and shape.fill != "ink" and shape.mark != "'"]


def test_a_bar_grows_with_time_and_is_not_there_before_it_begins():
    shown = picture(bar("compute", 10, 20, BLUE, "forward", "F"))
    assert boxes(shown, 10) == []
    (half,), (whole,) = boxes(shown, 14), boxes(shown, 40)
    assert half.x == whole.x == shown.x(10 * MS)
    assert half.w == pytest.approx(4 - lanes.GAP) and whole.w == pytest.approx(10 - lanes.GAP)
    assert (half.text, whole.text) == ("F", "forward")  # the longest that fits


def test_widths_do_not_lie_and_what_is_short_is_a_hairline():
    shown = picture(
        bar("communication", 10, 10.2, ORANGE), bar("compute", 10, 10.5, BLUE), bar("compute", 20, 21, GREY)
    )
    assert [box.w for box in boxes(shown, 60)] == pytest.approx([0.5 * 0.75, 1 - lanes.GAP, 0.2 * 0.75])
    late = picture(bar("communication", 62, 62, ORANGE))
    (box,) = boxes(late, 63)
    assert box.w == pytest.approx(lanes.HAIRLINE) and box.x + box.w == RIGHT


def test_an_axis_has_ticks_at_round_times():
    shown = picture(bar("compute", 0, 40, BLUE), end=40)
    shapes = shown.frame(0, "", {}).shapes
    marks = [box.x + box.w / 2 for box in shapes if isinstance(box, Box) and box.fill == "faint"]
    assert marks == pytest.approx([shown.x(time * MS) for time in (0, 10, 20, 30, 40, 50, 60, 40)])
    numbers = {shape.text: shape.x for shape in shapes if isinstance(shape, Label) and shape.text.isdigit()}
    assert numbers == {str(time): shown.x(time * MS) for time in (0, 10, 20, 50, 60)} and "ends 40.0" in labels(shown)
    assert lanes.ticks(0.9) == [0, 0.2, 0.4, 0.6, 0.8] and lanes.ticks(35) == [0, 5, 10, 15, 20, 25, 30, 35]


def labels(shown: Lanes) -> list[str]:
    return [shape.text for shape in shown.frame(0, "", {}).shapes if isinstance(shape, Label)]


def test_short_neighbours_of_one_colour_are_drawn_as_one():
    sums = [bar("communication", 10 + i / 2, 10.4 + i / 2, ORANGE, str(i)) for i in range(1, 20)]
    (one,) = boxes(picture(*sums), 60)
    assert one.text == "1–19" and one.w == pytest.approx(9.4 - lanes.GAP)
    apart = boxes(picture(bar("communication", 10, 14, ORANGE, "1"), bar("communication", 14.1, 17, ORANGE, "2")), 60)
    assert [box.text for box in apart] == ["1", "2"]
    long, short = bar("compute", 10, 20, BLUE, "attn"), bar("compute", 20.1, 20.5, BLUE, "N")
    assert [box.text for box in boxes(picture(long, short), 60)] == ["attn"]


def test_waits_cover_compute_and_bugs_cover_everything():
    dropped = lanes.missing(Event(f"{lanes.DROPPED} sum", "communication", 10 * MS, 10 * MS), "2")
    shown = picture(dropped, bar("compute", 11, 11.4, GREY), bar("compute", 5, 30, BLUE))
    assert [box.fill for box in boxes(shown, 60)] == [BLUE, GREY, "wrong"]


def test_the_cursor_moves_and_says_the_time():
    shown = picture(bar("compute", 0, 60, BLUE))
    at = [shown.frame(time * MS, "note", {"time": "x"}) for time in (0, 20, 60)]
    cursors = [next(s for s in frame.shapes if isinstance(s, Box) and s.fill == "ink") for frame in at]
    assert [cursor.x for cursor in cursors] == [lanes.LEFT, lanes.LEFT + 20, lanes.LEFT + 60]
    assert [frame.shapes[-1].text for frame in at] == ["0.0 ms", "20.0 ms", "60.0 ms"]
    assert [(frame.shapes[-2].text, frame.shapes[-2].x) for frame in at] == [("▼", c.x + 0.12) for c in cursors]
    assert at[0].note == "note" and at[0].facts == {"time": "x"}


@pytest.mark.parametrize(
    ("start", "end", "left", "right", "text"),
    [
        (20, 25, 10, 40, ""),  # in two pieces, of which none is the middle
        (5, 25, 25 - lanes.GAP, 40, "forward"),
        (25, 45, 10, 25, "forward"),
        (14, 45, 10, 14, "F"),  # what fits the visible piece
    ],
)
def test_no_text_is_under_a_wait(start, end, left, right, text):
    shown = picture(bar("compute", 10, 40, BLUE, "forward", "F"), bar("compute", start, end, GREY))
    below, wait = boxes(shown, 60)
    assert below.text == text and wait.fill == GREY
    assert below.x - lanes.LEFT == pytest.approx(left) and below.x + below.w - lanes.LEFT == pytest.approx(
        right, abs=lanes.GAP
    )
    if text:  # in the middle of its box
        middle = below.x + below.w / 2
        assert middle + len(text) / 2 <= wait.x or middle - len(text) / 2 >= wait.x + wait.w


@pytest.mark.parametrize("ranks", [2, 4, 5, 8])
def test_lanes_do_not_overlap_and_fit(ranks):
    each = [bar("compute", 0, 9, BLUE), bar("communication", 3, 7, ORANGE)]
    shown = Lanes([each] * ranks, 10 * MS, 10 * MS)
    tops = [box.y for box in boxes(shown, 10)]
    assert len(set(tops)) == 2 * ranks and max(tops) + 1 < shown.height <= 18
