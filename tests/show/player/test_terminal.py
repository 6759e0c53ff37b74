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


def at(lecture: Lecture) -> tuple:
    return lecture.question, lecture.frame, lecture.is_revealed


def test_a_question_comes_before_the_frame_that_answers_it_once_and_takes_votes_until_then():
    lecture = lecture_at(0, 1)
    lecture.forward()
    assert at(lecture) == (QUESTION, 1, False)
    for number in (1, 1, 2, 9):
        lecture.vote(number)
    lecture.forward()
    lecture.vote(0)  # too late
    assert at(lecture) == (QUESTION, 2, True) and lecture.votes == [0, 2, 1]
    lecture.forward()
    assert at(lecture) == (None, 2, False)
    for action in (lecture.backward, lecture.backward, lecture.forward, lecture.forward):
        action()
    assert at(lecture) == (None, 2, False)
    other = lecture_at(0, 1)
    for action in (other.forward, other.backward):  # a step back closes it
        action()
    assert at(other) == (None, 1, False)
    other.toggle_questions()
    other.forward()
    assert at(other) == (None, 2, False)


def test_a_question_can_be_asked_long_before_its_answer():
    lecture = lecture_at(1, 0)
    lecture.forward()
    assert at(lecture) == (LATER, 0, False) and lecture.is_answered_later
    lecture.vote(1)
    for frame in (1, 2):
        lecture.forward()
        assert at(lecture) == (None, frame, False)
    lecture.forward()
    assert at(lecture) == (LATER, 3, True) and lecture.votes == [0, 1]
    lecture.forward()
    assert at(lecture) == (None, 3, False)


def test_a_scene_is_broken_and_fixed_at_the_same_moment_and_one_that_cannot_be_says_where_the_bug_is():
    lecture = lecture_at(1, 3)
    for name in ("bad and late", "late"):
        lecture.break_it()
        assert (lecture.scene.name, lecture.frame) == (name, 3)
    slower = replace(CARTS, broken=replace(CARTS.also_broken[0], twin="slow"), also_broken=())
    lecture = lecture_at(0, 4, slower)
    lecture.break_it()  # 40 ms, of 80 in the broken run
    assert (lecture.scene.name, lecture.frame) == ("bad and late", 2)
    lecture = lecture_at(2, 3)
    lecture.break_it()
    assert not lecture.can_break and (lecture.scene.name, lecture.frame) == ("set by you", 3)
    told = []
    screen("b", scene=2, notify=lambda text, **_: told.append(text))
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
    shown = screen("plus", "equals_sign", "right_square_bracket", "minus", scene=2)
    assert shown["dials"][0] == "speed ◂ 14     road   short ▸" and shown["title"][0].endswith("A cart, 14 short")


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
            scrolled = player.query_one("VerticalScroll").scroll_y
            return {part.id: (str(part.render()), part.region) for part in parts} | {
                "at": (player.scene.name, player.frame), "seconds": [one.seconds for one in timers], "y": scrolled
            }  # fmt: skip

    return asyncio.run(asyncio.wait_for(session(), LIMIT))


def test_keys_step_choose_and_break():
    cases = [  # keys, and the scene and frame that they lead to
        ("a space right left pagedown", "slow", 2), ("left", "slow", 0), ("end", "slow", 4), ("end home", "slow", 0),
        ("space b", "bad", 1), ("s s s", "slow", 0), ("b s", "late", 0), ("s a space b space b", "late", 2),
    ]  # fmt: skip
    for keys, scene, frame in cases:
        assert screen(*keys.split())["at"] == (scene, frame), keys


@pytest.mark.long
def test_number_keys_vote_while_a_question_is_open():
    shown = screen("space", "space", "2", "2", "3")
    assert shown["question"][0].splitlines() == [QUESTION.text, "1  at 10", "2  at 20  ██ 2", "3  at 40  █ 1"]
    assert shown["keys"][0].startswith("1-3 vote  space reveal") and "facts" not in shown
    shown = screen("space", "space", "2", "space")
    assert "2  at 20 ✓" in shown["question"][0] and shown["question"][0].endswith(QUESTION.reason)


@pytest.mark.long
def test_p_plays_to_the_end_at_the_speed_of_a_number():
    cases = [  # keys and ticks, and the frame
        (("p", 2), 2), (("p", 9), 4), (("end", "p", 2), 2), (("p", 9, "p"), 0), (("p", "p", 2), 0), (("p", "1", 2), 2),
    ]  # fmt: skip
    for keys, frame in cases:
        assert screen(*keys)["at"] == ("slow", frame), keys
    for speed in (1, 9):
        for keys in ((str(speed), "p"), ("p", str(speed))):  # the speed may change on the way
            assert screen(*keys)["seconds"][-1] == 2.4 / 1.5**speed


@pytest.mark.long
def test_notes_details_and_help_open_and_close():
    assert "speaker" not in screen() and screen("n")["speaker"][0].splitlines() == [
        "notes, 3.5 minutes for this scene", "now (2 min): Ask what a cart is.", "at step 3: Say why.",
        f"question before step 2: {QUESTION.text}",
    ]  # fmt: skip
    assert "verdict" not in screen("b", "v")
    assert screen("b", "end")["verdict"][0] == "bad is there.  (v: details)"
    assert screen("b", "end", "v")["verdict"][0] == "bad is there.\nin wheel 2, by 7 ulps"
    text, region = screen("question_mark")["help"]
    assert region.bottom <= 24 and all(f" {key}  " in f" {text}" for key in "psbanv?q")
    assert "picture" in screen("question_mark", "escape")


@pytest.mark.parametrize("keys", [(), ("b", "end"), ("space", "space"), ("s", "s")])
def test_at_80_by_24_the_picture_the_key_and_the_keys_are_there_in_full(keys):
    shown = screen(*keys, of=LONG)
    assert all(name in shown["key"][0] for name in LONG.scenes[0].key) and len(shown["keys"][0]) <= 78
    assert all(shown[part][1].bottom <= 24 for part in ("title", "picture", "note", "key", "keys"))
    assert shown["key"][1].height == 2  # no entry is broken over two lines
    assert shown["picture"][1].bottom <= shown["note"][1].y


@pytest.mark.long
def test_a_wide_window_has_the_words_and_the_program_beside_the_picture_and_a_low_one_scrolls():
    shown = screen("space", "n", size=(130, 30), of=LONG)
    left = shown["picture"][1].right
    assert all(shown[part][1].x >= left for part in ("note", "facts", "key", "code", "speaker"))
    assert shown["code"][0].splitlines() == ["  for step in range(3):", "▸     push(cart)", "  rest()"]
    assert "code" not in screen("space", size=(119, 30))
    low = screen("pagedown", "pagedown", "pageup", "down", size=(80, 6))  # keys of a presenter step
    assert low["at"] == ("slow", 1) and low["y"] > 0
    assert all(low[part][1].y >= 0 and low[part][1].bottom <= 6 for part in ("note", "facts"))
