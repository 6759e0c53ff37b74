"""What is said of pictures that cannot be shown, before a rank starts: every line of refusals.txt."""

from pathlib import Path

from clusters import start_no_ranks
from refusals import check_refusals

from minidist.show.demos import DEMONSTRATIONS
from minidist.show.player.scene import Dial, Frame, Question, Scene

__all__ = ["DEMONSTRATIONS", "Dial", "Question"]  # for refusals.txt


def scene(**more) -> Scene:
    return Scene("s", "t", tuple(Frame((), f"note {i}") for i in range(3)), 1, **more)


def test_what_cannot_be_shown_is_named_with_what_can(tmp_path, monkeypatch):
    start_no_ranks(monkeypatch)
    check_refusals(Path(__file__).with_name("refusals.txt"), dict(globals()), monkeypatch, tmp_path)
    assert not list(tmp_path.iterdir())
