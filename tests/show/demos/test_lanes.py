"""Lanes of time are to scale."""

import pytest
from frames import boxes

from minidist.show.demos.shared import lanes
from minidist.show.demos.shared.lanes import GAP, LEFT, MS, RIGHT, Bar, Lanes

BLUE, ORANGE, GREY = (lanes.COLOURS[kind] for kind in ("forward", "communication", "wait"))


def drawn(*bars: tuple, at: float = 63) -> list:
    """What one rank's lanes show of (lane, start, end, colour, *texts); a millisecond is a character."""
    made = [Bar(lane, int(start * MS), int(end * MS), fill, "x", text) for lane, start, end, fill, *text in bars]
    frame = Lanes([made], 62 * MS, 62 * MS).frame(int(at * MS), "", {})
    return [box for box in boxes(frame) if box.fill != "ink" and box.mark != "'"]


def test_widths_do_not_lie_and_what_is_short_is_a_hairline():
    forward = ("compute", 10, 20, BLUE, "forward", "F")
    assert drawn(forward, at=10) == []
    (half,), (full,) = drawn(forward, at=14), drawn(forward)
    assert half.x == full.x == LEFT + 10 and (half.w, full.w) == pytest.approx((4 - GAP, 10 - GAP))
    short = ("communication", 10, 10.2, ORANGE), ("compute", 10, 10.5, BLUE), ("compute", 20, 21, GREY)
    assert [box.w for box in drawn(*short)] == pytest.approx([0.5 * 0.75, 1 - GAP, 0.2 * 0.75])
    (late,) = drawn(("communication", 62, 62, ORANGE))
    assert late.w == pytest.approx(lanes.HAIRLINE) and late.x + late.w == RIGHT
    dots = [("communication", start, start + 0.2, ORANGE, "1") for start in (10, 10.9, 11.7)]
    assert len(drawn(*dots)) == 3  # with gaps that can be seen
