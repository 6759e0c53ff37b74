"""A lecture in a terminal: predict and reveal, dials, the twin at the same moment, keys, and what fits."""

import asyncio
from dataclasses import replace

import carts
import pytest
from textual.widgets import Static

from minidist.show.player.animation import Animation
from minidist.show.player.terminal import Player
from minidist.show.player.terminal.lecture import Lecture

CARTS, LONG = carts.animation(), carts.animation(words=7, height=12)
QUESTION, LATER = carts.QUESTION, carts.LATER
LIMIT = 300  # seconds for one session


def lecture_at(scene: int, frame: int, animation: Animation = CARTS) -> Lecture:
    lecture = Lecture(animation, animation.scenes[scene])
    lecture.go(frame)
    return lecture


def test_a_question_comes_before_the_frame_that_answers_it_once_and_takes_votes_until_then():
    """Scene 0 is asked a question before the frame that answers it, scene 1 two frames before."""
    forward, backward, toggle = Lecture.forward, Lecture.backward, Lecture.toggle_questions
    cases = [  # scene and frame, actions and votes, and the question, the frame and whether it is answered after each
        (0, 1, [forward, 1, 1, 2, 9, forward, 0, forward, backward, backward, forward, forward],
         [(QUESTION, 1, False)] * 5 + [(QUESTION, 2, True)] * 2
         + [(None, 2, False), (None, 1, False), (None, 0, False), (None, 1, False), (None, 2, False)], [0, 2, 1]),
        (0, 1, [forward, backward, toggle, forward],  # a step back closes it
         [(QUESTION, 1, False), (None, 1, False), (None, 1, False), (None, 2, False)], None),
        (1, 0, [forward, 1, forward, forward, forward, forward],
         [(LATER, 0, False)] * 2 + [(None, 1, False), (None, 2, False), (LATER, 3, True), (None, 3, False)], [0, 1]),
    ]  # fmt: skip
    for scene, frame, actions, expected, votes in cases:
        lecture, seen, counted = lecture_at(scene, frame), [], None
        for action in actions:
            lecture.vote(action) if isinstance(action, int) else action(lecture)
            seen.append((lecture.question, lecture.frame, lecture.is_revealed))
            counted = [*lecture.votes] if lecture.is_revealed else counted
        assert (seen, counted) == (expected, votes)


def test_a_scene_is_broken_and_fixed_at_the_same_moment_and_one_that_cannot_be_says_where_the_bug_is():
    lecture = lecture_at(1, 3)
    for name in ("bad and late", "late"):
        lecture.break_it()
        assert (lecture.scene.name, lecture.frame) == (name, 3)
    slower = replace(CARTS, broken=replace(CARTS.also_broken[0], twin="slow"), also_broken=())
    lecture = lecture_at(0, 4, slower)
    lecture.break_it()  # 40 ms, of 80 in the broken run
    assert (lecture.scene.name, lecture.frame) == ("bad and late", 2)
    told = []
    assert screen("b", scene=2, notify=lambda text, **_: told.append(text))["at"] == ("set by you", 0)
    assert told == ["nothing to break here: the bug is in slow, late"]


def test_dials_choose_the_variant_and_keep_the_moment():
    lecture = lecture_at(2, 2)
    seen = [(lecture.shown.name, lecture.frame)]
    for action, by in (("turn", 1), ("choose_dial", 1), ("turn", -1), ("turn", -1), ("turn", 1)):
        getattr(lecture, action)(by)
        seen.append((lecture.shown.name, lecture.frame))
    assert seen == [  # 20 ms are the end of the short road, and the end stays the end
        ("10 long", 2), ("12 long", 2), ("12 long", 2), ("12 short", 4), ("12 short", 4), ("12 long", 4),
    ]  # fmt: skip
    assert screen("plus", "equals_sign", "right_square_bracket", "minus", scene=2)["title"][0].endswith("14 short")


# ── on the screen ────────────────────────────────────────────────────────────────────────────────────────────────────


class HandTimer:
    """In place of the player's timer: it ticks when it is told to."""

    def __init__(self, seconds: float, tick) -> None:
        self.seconds, self.tick = seconds, tick

    def stop(self) -> None:
        self.tick = lambda: None


def screen(*keys, scene: int = 0, size: tuple[int, int] = (80, 24), of: Animation = CARTS, notify=None) -> dict:
    """The texts of the parts that are visible after these keys and where they are; a number lets the timer tick."""

    async def session():
        timers, player = [], Player(of, of.scenes[scene])
        player.notify = notify or (lambda *_, **__: None)
        async with player.run_test(size=size) as pilot:
            player.set_interval = lambda *arguments: timers.append(HandTimer(*arguments)) or timers[-1]
            for key in keys:
                if isinstance(key, str):
                    await pilot.press(key)
                else:
                    for _ in range(key):
                        timers[-1].tick()
            await pilot.pause()
            parts = [part for part in player.query(Static) if part.display and part.id]
            return {part.id: (str(part.render()), part.region) for part in parts} | {
                "at": (player.scene.name, player.frame), "seconds": [one.seconds for one in timers]
            }  # fmt: skip

    return asyncio.run(asyncio.wait_for(session(), LIMIT))


@pytest.mark.long
def test_keys_step_choose_break_play_and_vote():
    cases = [  # keys and ticks, and the scene and frame that they lead to
        ("a space right left pagedown", "slow", 2), ("left", "slow", 0), ("end home", "slow", 0), ("s s s", "slow", 0),
        ("b s", "late", 0), ("s a space b space b", "late", 2), ("p 9", "slow", 4), ("end p 2", "slow", 2),
        ("p p 2", "slow", 0), ("p key1 2", "slow", 2),
    ]  # fmt: skip
    for keys, scene, frame in cases:
        pressed = [int(key) if key.isdigit() else key.removeprefix("key") for key in keys.split()]
        assert screen(*pressed)["at"] == (scene, frame), keys
    for speed in (1, 9):
        for keys in ((str(speed), "p"), ("p", str(speed))):  # the speed may change on the way
            assert screen(*keys)["seconds"][-1] == 2.4 / 1.5**speed
    shown = screen("space", "space", "2", "2", "3")
    assert shown["question"][0].splitlines() == [QUESTION.text, "1  at 10", "2  at 20  ██ 2", "3  at 40  █ 1"]
    assert screen("space", "space", "2", "space")["question"][0].endswith(QUESTION.reason)
    assert "now (2 min): Ask what a cart is." in screen("n")["speaker"][0]
    assert screen("b", "end", "v")["verdict"][0] == "bad is there.\nin wheel 2, by 7 ulps"
    assert screen("question_mark")["help"][1].bottom <= 24 and "picture" in screen("question_mark", "escape")


@pytest.mark.parametrize("keys", [(), ("b", "end"), ("space", "space"), ("s", "s")])
def test_at_80_by_24_the_picture_the_key_and_the_keys_are_there_in_full(keys):
    shown = screen(*keys, of=LONG)
    assert all(name in shown["key"][0] for name in LONG.scenes[0].key) and len(shown["keys"][0]) <= 78
    assert all(shown[part][1].bottom <= 24 for part in ("title", "picture", "note", "key", "keys"))
    assert shown["picture"][1].bottom <= shown["note"][1].y
