"""Lanes of time are to scale: what is drawn when, what is merged, and what covers what."""

import pytest
from frames import boxes, labels

from minidist.show.demos.shared import lanes
from minidist.show.demos.shared.lanes import GAP, LEFT, MS, RIGHT, Bar, Lanes
from minidist.trace import Event

BLUE, ORANGE, GREY = (lanes.COLOURS[kind] for kind in ("forward", "communication", "wait"))


def drawn(*bars: tuple, at: float = 63, end: int = 62) -> list:
    """What one rank's lanes show of (lane, start, end, colour, *texts); a millisecond is a character."""
    made = [b if isinstance(b, Bar) else Bar(b[0], int(b[1] * MS), int(b[2] * MS), b[3], "x", b[4:]) for b in bars]
    frame = Lanes([made], end * MS, 62 * MS).frame(int(at * MS), "", {})
    return [box for box in boxes(frame) if box.fill != "ink" and box.mark != "'"]


def test_widths_do_not_lie_and_what_is_short_is_merged_or_a_hairline():
    forward = ("compute", 10, 20, BLUE, "forward", "F")
    assert drawn(forward, at=10) == []
    (half,), (full,) = drawn(forward, at=14), drawn(forward)
    assert half.x == full.x == LEFT + 10 and (half.text, full.text) == ("F", "forward")  # the longest that fits
    assert (half.w, full.w) == (pytest.approx(4 - GAP), pytest.approx(10 - GAP))
    short = ("communication", 10, 10.2, ORANGE), ("compute", 10, 10.5, BLUE), ("compute", 20, 21, GREY)
    assert [box.w for box in drawn(*short)] == pytest.approx([0.5 * 0.75, 1 - GAP, 0.2 * 0.75])
    (late,) = drawn(("communication", 62, 62, ORANGE))
    assert late.w == pytest.approx(lanes.HAIRLINE) and late.x + late.w == RIGHT
    (sums,) = drawn(*(("communication", 10 + i / 2, 10.4 + i / 2, ORANGE, str(i)) for i in range(1, 20)))
    assert sums.text == "1–19" and sums.w == pytest.approx(9.4 - GAP)
    apart = drawn(("communication", 10, 14, ORANGE, "1"), ("communication", 14.1, 17, ORANGE, "2"))
    assert [box.text for box in apart] == ["1", "2"]
    dots = [("communication", start, start + 0.2, ORANGE, "1") for start in (10, 10.9, 11.7)]
    assert len(drawn(*dots)) == 3  # with gaps that can be seen
    axis = labels(Lanes([[]], 40 * MS, 62 * MS).frame(0, "", {}))
    assert "ends 40.0" in axis and lanes.ticks(0.9) == [0, 0.2, 0.4, 0.6, 0.8]


@pytest.mark.parametrize(
    ("start", "end", "text"),
    [(20, 25, ""), (5, 25, "forward"), (25, 45, "forward"), (14, 45, "F")],  # what fits the visible piece
)
def test_waits_cover_compute_but_no_text_and_bugs_cover_everything(start, end, text):
    below, wait = drawn(("compute", 10, 40, BLUE, "forward", "F"), ("compute", start, end, GREY))
    assert below.text == text and wait.fill == GREY
    middle = below.x + below.w / 2
    assert not text or middle + len(text) / 2 <= wait.x or middle - len(text) / 2 >= wait.x + wait.w
    dropped = lanes.missing(Event(f"{lanes.DROPPED} sum", "communication", start * MS, start * MS), "2")
    fills = [box.fill for box in drawn(dropped, ("compute", 5, 50, BLUE), ("compute", 11, 12, GREY))]
    assert fills == [BLUE, GREY, "wrong"]
