"""A lecture in a terminal: predict and reveal, dials, notes, details, the twin at the same moment, and what fits."""

import asyncio
from dataclasses import replace

import pytest
from textual.widgets import Static

from minidist.show.player.animation import Animation
from minidist.show.player.characters import lines_of
from minidist.show.player.scene import Box, Cue, Curve, Dial, Frame, Label, Question, Scene
from minidist.show.player.terminal import Player
from minidist.show.player.terminal.lecture import Lecture

QUESTION = Question(2, "Where is the cart after step 2?", ("at 10", "at 20", "at 40"), 1, "It moves 10 in each step.")
LATER = Question(3, "Is it late?", ("yes", "no"), 0, "Its clock says so.", asked=1)
KEY = {f"a thing of kind {i}": colour for i, colour in enumerate(("#D55E00", "#0072B2", "#009E73", "#CC79A7"))}
LIMIT = 300  # seconds for one session


def run(name: str, speed: int = 10, ends: float = 40, height: float = 5, **more) -> Scene:
    """A cart that moves by ``speed`` at each of 4 steps of a clock that ends at ``ends`` ms."""
    frames = []
    for step in range(5):
        shapes = (*(Box(0, 0, 1, 1, colour) for colour in KEY.values()), Label(0, 2, f"mile {speed * step}"))
        facts = {"miles": str(speed * step), "a fact": "of many words " * 6, "another fact": "as long " * 6}
        frames.append(Frame(shapes, f"{name}, step {step}", facts, ends * step / 4, (step % 3,)))
    return Scene(name, f"A cart, {name}", tuple(frames), height, KEY, f"{name} is there.", **more)


@pytest.fixture(scope="module")
def animation() -> Animation:
    cues = Cue(0, 2, "Ask what a cart is."), Cue(3, 1.5, "Say why.")
    slow = run("slow", questions=(QUESTION,), cues=cues, code=("for step in range(3):", "    push(cart)", "rest()"))
    late = run("late", ends=80, questions=(LATER,))
    speeds = Dial("speed", ("10", "12", "14")), Dial("road", ("short", "long"), 1)
    variants = tuple(run(f"{v} {road}", v, end) for v in (10, 12, 14) for road, end in (("short", 20), ("long", 40)))
    dials = run("set by you", dials=speeds, variants=variants)
    bad = run("bad", 5, first_wrong=1, twin="slow", details="in wheel 2, by 7 ulps")
    bad_late = run("bad and late", 3, 80, twin="late")
    return Animation("cart", "A cart", (slow, late, dials), bad, "a wheel is off", also_broken=(bad_late,))


def lecture_at(animation: Animation, scene: int, frame: int) -> Lecture:
    lecture = Lecture(animation, animation.scenes[scene])
    lecture.go(frame)
    return lecture


def screen(animation: Animation, *keys: str, scene: int = 0, size: tuple[int, int] = (80, 24)) -> dict:
    """The texts of the parts that are visible after these keys, and where they are."""

    async def session():
        player = Player(animation, animation.scenes[scene])
        async with player.run_test(size=size) as pilot:
            await pilot.press(*keys)
            await pilot.pause()
            parts = [part for part in player.query(Static) if part.display and part.id]
            return {part.id: (str(part.render()), part.region) for part in parts}

    return asyncio.run(asyncio.wait_for(session(), LIMIT))


def told_by_b(animation: Animation, scene: int) -> list[str]:
    """What the player says when the key is pressed that breaks a scene."""
    told = []

    async def session():
        player = Player(animation, animation.scenes[scene])
        player.notify = lambda text, **how: told.append(text)
        async with player.run_test() as pilot:
            await pilot.press("b")
            await pilot.pause()

    asyncio.run(asyncio.wait_for(session(), LIMIT))
    return told


# ── predict, then reveal ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_question_comes_before_the_frame_that_answers_it(animation):
    lecture = lecture_at(animation, 0, 1)
    lecture.forward()
    assert (lecture.question, lecture.frame, lecture.is_revealed) == (QUESTION, 1, False)
    for number in (1, 1, 2, 9):
        lecture.vote(number)
    assert lecture.votes == [0, 2, 1]
    lecture.forward()
    assert (lecture.question, lecture.frame, lecture.is_revealed) == (QUESTION, 2, True)
    lecture.vote(0)  # too late
    assert lecture.votes == [0, 2, 1]
    lecture.forward()
    assert (lecture.question, lecture.frame) == (None, 2)
    for _ in range(2):
        lecture.backward()
    lecture.forward()
    lecture.forward()
    assert (lecture.question, lecture.frame) == (None, 2)  # it is asked once


def test_a_question_can_be_asked_long_before_its_answer(animation):
    lecture = lecture_at(animation, 1, 0)
    lecture.forward()
    assert (lecture.question, lecture.frame, lecture.is_answered_later) == (LATER, 0, True)
    lecture.vote(1)
    for frame in (1, 2):
        lecture.forward()
        assert (lecture.question, lecture.frame) == (None, frame)
    lecture.forward()
    assert (lecture.question, lecture.frame, lecture.is_revealed, lecture.votes) == (LATER, 3, True, [0, 1])
    lecture.forward()
    assert (lecture.question, lecture.frame) == (None, 3)


def test_a_step_back_closes_a_question_and_one_key_turns_all_off(animation):
    lecture = lecture_at(animation, 0, 1)
    lecture.forward()
    lecture.backward()
    assert (lecture.question, lecture.frame) == (None, 1)
    lecture.toggle_questions()
    lecture.forward()
    assert (lecture.question, lecture.frame) == (None, 2)


def test_number_keys_vote_while_a_question_is_open(animation):
    shown = screen(animation, "space", "space", "2", "2", "3")
    assert shown["question"][0].splitlines() == [QUESTION.text, "1  at 10", "2  at 20  ██ 2", "3  at 40  █ 1"]
    assert shown["keys"][0].startswith("1-3 vote  space reveal") and "facts" not in shown
    shown = screen(animation, "space", "space", "2", "space")
    assert "2  at 20 ✓" in shown["question"][0] and shown["question"][0].endswith(QUESTION.reason)
    assert "question" not in screen(animation, "a", "space", "space")


# ── the same moment ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_scene_is_broken_and_fixed_at_the_same_moment(animation):
    lecture = lecture_at(animation, 1, 3)
    lecture.break_it()
    assert (lecture.scene.name, lecture.frame) == ("bad and late", 3)
    lecture.break_it()
    assert (lecture.scene.name, lecture.frame) == ("late", 3)


def test_the_moment_counts_and_not_the_number_of_the_frame(animation):
    late = replace(animation.also_broken[0], twin="slow")
    lecture = lecture_at(replace(animation, broken=late, also_broken=()), 0, 4)  # 40 ms, of 80 in the broken run
    lecture.break_it()
    assert (lecture.scene.name, lecture.frame) == ("bad and late", 2)


def test_a_scene_that_the_bug_leaves_as_it_is_stays_and_says_where_the_bug_is(animation):
    one = replace(animation, also_broken=())
    lecture = lecture_at(one, 1, 3)
    assert not lecture.can_break and one.own_twin(one.scenes[1]) is None and one.breakable() == ("slow",)
    lecture.break_it()
    assert (lecture.scene.name, lecture.frame) == ("late", 3)
    assert " b break" not in screen(one, scene=1)["keys"][0] and "b break" in screen(one)["keys"][0]
    assert told_by_b(one, 1) == ["nothing to break here: the bug is in slow"] and told_by_b(one, 0) == []


# ── what the viewer sets ─────────────────────────────────────────────────────────────────────────────────────────────


def test_dials_choose_the_variant_and_keep_the_moment(animation):
    lecture = lecture_at(animation, 2, 2)
    assert lecture.shown.name == "10 long"
    lecture.turn(1)
    assert (lecture.shown.name, lecture.frame) == ("12 long", 2)
    lecture.choose_dial(1)
    lecture.turn(-1)
    assert (lecture.shown.name, lecture.frame) == ("12 short", 4)  # 20 ms are its end
    lecture.turn(-1)
    assert lecture.shown.name == "12 short"
    lecture.turn(1)
    assert (lecture.shown.name, lecture.frame) == ("12 long", 4)  # the end stays the end


def test_the_keys_of_dials(animation):
    shown = screen(animation, "plus", "equals_sign", "right_square_bracket", "minus", scene=2)
    assert shown["dials"][0] == "speed ◂ 14     road   short ▸" and shown["title"][0].endswith("A cart, 14 short")
    assert screen(animation, "plus", "left_square_bracket", "minus")["note"][0] == "0 of 4  slow, step 0"  # no dials


# ── words ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_notes_tell_the_speaker_what_comes_now_and_next(animation):
    assert "speaker" not in screen(animation)
    assert screen(animation, "n")["speaker"][0].splitlines() == [
        "notes, 3.5 minutes for this scene",
        "now (2 min): Ask what a cart is.",
        "at step 3: Say why.",
        f"question before step 2: {QUESTION.text}",
    ]


def test_details_are_folded_and_come_with_the_end(animation):
    assert "verdict" not in screen(animation, "b", "v")
    assert screen(animation, "b", "end")["verdict"][0] == "bad is there.  (v: details)"
    assert screen(animation, "b", "end", "v")["verdict"][0] == "bad is there.\nin wheel 2, by 7 ulps"


def test_help_names_every_key_on_one_screen_and_escape_closes_it(animation):
    text, region = screen(animation, "question_mark")["help"]
    assert region.bottom <= 24 and all(f" {key}  " in f" {text}" for key in "psbanv?q")
    assert "picture" in screen(animation, "question_mark", "escape")


@pytest.mark.parametrize("keys", [(), ("b", "end"), ("space", "space"), ("s", "s")])
def test_at_80_by_24_the_picture_the_key_and_the_keys_are_whole(animation, keys):
    tall = replace(animation, scenes=tuple(replace(scene, height=12) for scene in animation.scenes))
    shown = screen(tall, *keys)
    assert all(name in shown["key"][0] for name in KEY) and len(shown["keys"][0]) <= 78
    for part in ("title", "picture", "note", "key", "keys"):
        assert shown[part][1].bottom <= 24, part
    assert shown["key"][1].height == 2  # no entry is broken over two lines
    assert shown["picture"][1].bottom <= shown["note"][1].y


def test_a_wide_window_has_the_words_and_the_program_beside_the_picture(animation):
    shown = screen(animation, "space", "n", size=(130, 30))
    left = shown["picture"][1].right
    assert all(shown[part][1].x >= left for part in ("note", "facts", "key", "code", "speaker"))
    assert shown["code"][0].splitlines() == ["  for step in range(3):", "▸     push(cart)", "  rest()"]
    assert len(shown["key"][0].splitlines()) == 4 and len(shown["facts"][0].splitlines()) == 3
    assert "code" not in screen(animation, "space", size=(119, 30))


def test_a_curve_is_drawn_in_dots_from_point_to_point():
    lines = [
        line.plain
        for line in lines_of(
            Frame(
                (
                    Curve(
                        ((0, 0.1), (10, 1.9)),
                    ),
                ),
                "",
            ),
            2,
        )
    ]
    assert lines[0][:5].strip() == lines[0][:5] and lines[1][6:10].strip() == lines[1][6:10]
    assert all(0x2800 < ord(character) < 0x2900 for character in "".join(lines).replace(" ", ""))
    dot = lines_of(Frame((Curve(((3.6, 0.3),)),), ""), 1, colours=False)[0].plain
    assert dot.strip() == "⠐" and dot[3] == "⠐"  # right column, second row
    both = lines_of(Frame((Curve(((3.6, 0.3),)), Curve(((3.1, 0.9),))), ""), 1)[0].plain
    assert both[3] == "⡐"
    lines_of(Frame((Curve(((-9, -9), (99, 99))),), ""), 2)  # what is outside is not drawn
