"""What demonstrations share: lanes of time are to scale, and a lecture's scene begins with a short verdict."""

import pytest
from frames import boxes

from minidist.show.demos.shared import lanes
from minidist.show.demos.shared.lanes import GAP, LEFT, MS, RIGHT, Bar, Lanes
from minidist.show.demos.shared.lectures import for_lecture, frame_where
from minidist.show.player.scene import Frame, Scene

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


def test_the_first_sentence_is_the_verdict_and_a_question_is_about_a_frame():
    frames = tuple(Frame((), f"note {i}") for i in range(3))
    one = Scene("s", "t", frames, 1, verdict="It took 0.5 s. The rest is known. And more.")
    found = for_lecture(one, [], [])
    assert (found.verdict, found.details) == ("It took 0.5 s.", "The rest is known. And more.")
    assert frame_where(one, lambda frame: frame.note != "note 1") == 2  # before the first frame nobody can be asked
    with pytest.raises(RuntimeError, match="no frame of the scene 's' is the one that a question is about"):
        frame_where(one, lambda frame: False)
