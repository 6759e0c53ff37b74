"""Scenes for a lecture: a short verdict, and questions that can be asked."""

import pytest

from minidist.show.demos import DEMONSTRATIONS
from minidist.show.demos.menu import SCENES
from minidist.show.demos.shared.lectures import for_lecture, frame_where
from minidist.show.player.scene import Frame, Scene


def scene(verdict: str = "", **more) -> Scene:
    return Scene("s", "t", tuple(Frame((), f"note {i}") for i in range(3)), 1, verdict=verdict, **more)


def test_the_first_sentence_is_the_verdict_and_a_question_is_about_a_frame():
    found = for_lecture(scene("It took 0.5 s. The rest is known. And more."), [], [])
    assert (found.verdict, found.details) == ("It took 0.5 s.", "The rest is known. And more.")
    assert frame_where(scene(), lambda frame: frame.note != "note 1") == 2  # before the first frame nobody can be asked
    with pytest.raises(RuntimeError, match="no frame of the scene 's' is the one that a question is about"):
        frame_where(scene(), lambda frame: False)


def test_the_menu_lists_every_demonstration_once_in_its_order_and_in_a_line():
    assert list(SCENES) == list(DEMONSTRATIONS)
    assert [name for name, one in DEMONSTRATIONS.items() if len(one.about) > 62] == []
