"""Scenes for a lecture: a short verdict, questions and cues."""

import re

import pytest

from minidist.show.demos import DEMONSTRATIONS
from minidist.show.demos.menu import SCENES
from minidist.show.demos.shared.lectures import for_lecture, frame_where
from minidist.show.player.scene import Cue, Dial, Frame, Question, Scene

QUESTION = Question(2, "What now?", ("this", "that"), 1, "Because.")


def scene(verdict: str = "", **more) -> Scene:
    return Scene("s", "t", tuple(Frame((), f"note {i}") for i in range(3)), 1, verdict=verdict, **more)


@pytest.mark.parametrize(
    ("verdict", "short", "details"),
    [
        ("It is done.", "It is done.", ""),
        ("It took 0.5 s. The rest is known. And more.", "It took 0.5 s.", "The rest is known. And more."),
        ("First wrong in step 2: dK. of norm 3", "First wrong in step 2: dK. of norm 3", ""),
        ("", "", ""),
    ],
)
def test_the_first_sentence_is_the_verdict(verdict, short, details):
    found = for_lecture(scene(verdict), [QUESTION], [Cue(0, 2, "Ask.")])
    assert (found.verdict, found.details) == (short, details)
    assert found.questions == (QUESTION,) and found.cues == (Cue(0, 2, "Ask."),)


def test_the_frame_that_a_question_is_about():
    assert frame_where(scene(), lambda frame: frame.note != "note 1") == 2  # before the first frame nobody can be asked
    with pytest.raises(RuntimeError, match="no frame of the scene 's' is the one that a question is about"):
        frame_where(scene(), lambda frame: False)


def test_scenes_that_cannot_be_are_refused():
    dials = Dial("speed", ("1", "2")), Dial("road", ("x", "y", "z"))
    refused = [  # what cannot be, and the message
        (
            lambda: scene(questions=(Question(3, "?", ("a", "b"), 0, ""),)),
            "scene 's' has no frame 3, which '?'",
        ),
        (lambda: scene(cues=(Cue(3, 1, "?"),)), "scene 's' has no frame 3, which '?'"),
        (lambda: Question(2, "?", ("a", "b"), 0, "", asked=3), "the question '?' is asked before frame 3, after its"),
        (lambda: scene(dials=dials, variants=(scene(),) * 5), "scene 's' needs a variant for every position of its"),
    ] + [
        (lambda case=case: Question(case[0], "?", tuple(case[1]), case[2], ""), "has no frame before it, or not 2 to 6")
        for case in ((0, "ab", 0), (1, "a", 0), (1, "ab", 2), (1, "abcdefg", 0))
    ]
    for make, message in refused:
        with pytest.raises(ValueError, match=re.escape(message)):
            make()


def test_the_menu_lists_every_demonstration_once_in_its_order_and_in_a_line():
    assert list(SCENES) == list(DEMONSTRATIONS)
    assert [name for name, one in DEMONSTRATIONS.items() if len(one.about) > 62] == []
