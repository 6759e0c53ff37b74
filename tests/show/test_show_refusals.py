"""What is said of pictures that cannot be shown, before a rank starts: every line of refusals.txt."""

from pathlib import Path

from clusters import start_no_ranks
from refusals import check_refusals

from minidist.show.demos import DEMONSTRATIONS
from minidist.show.stage.marks import box
from minidist.show.stage.story import Beat, Dial, Question, Story

__all__ = ["DEMONSTRATIONS", "Dial", "Question", "box"]  # for refusals.txt


def story(*moments: float, **more) -> Story:
    return Story("s", "Why?", [], [Beat(moment, "") for moment in moments], **more)


def test_what_cannot_be_shown_is_named_with_what_can(tmp_path, monkeypatch):
    start_no_ranks(monkeypatch)
    check_refusals(Path(__file__).with_name("refusals.txt"), dict(globals()), monkeypatch, tmp_path)
    assert not list(tmp_path.iterdir())
