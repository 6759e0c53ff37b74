"""The stage: keyframes, lectures, dials, and the forms in which a moment is shown."""

from dataclasses import replace

import carts
import numpy as np
import pytest
from PIL import Image
from stories import words

from minidist.show.stage import still
from minidist.show.stage.animation import Animation
from minidist.show.stage.characters import legend, picture
from minidist.show.stage.lecture import Lecture
from minidist.show.stage.marks import WIDTH, box, line, text
from minidist.show.stage.network import Network
from minidist.show.stage.story import Beat, Dial, Question, Story


def a_story(*marks, **settings) -> Story:
    return Story("one", "Why?", marks, [Beat(0, "It begins."), Beat(4, "It is over.")], **settings)


def test_a_mark_moves_evenly_and_holds_still_between():
    mark = box(10, 0, 5, 5, "#000000").to(1, 2, x=30, fill="#FF8000").to(4, 0, x=50)
    assert [mark.at(t)["x"] for t in (0, 1, 2, 3, 3.9, 4, 9)] == [10, 10, 20, 30, 30, 50, 50]
    assert mark.at(2)["fill"] == "#804000"
    with pytest.raises(ValueError, match="begins before the last one ends, at 4 s"):
        mark.to(3, x=0)
    with pytest.raises(ValueError, match="cannot change y2"):
        mark.to(5, y2=0)


def test_what_travels_on_a_ring_takes_the_shorter_way_and_arrives():
    for ranks in (2, 3, 7):
        net = Network.on_ring(ranks, (100, 80), (0, 0, 900, 600))
        for source, destination in np.ndindex(ranks, ranks):
            if source == destination:
                continue
            mark = box(*net.places[source], 1, 1)
            net.travel(mark, source, destination, net.places[destination], 1, 2)
            assert np.allclose([mark.at(3)[axis] for axis in "xy"], net.places[destination])
            (cx, cy), (rx, ry) = net.ring
            way = [((mark.at(1 + i / 4)["x"] - cx) / rx, (mark.at(1 + i / 4)["y"] - cy) / ry) for i in range(9)]
            assert np.allclose(np.hypot(*np.transpose(way)), 1)  # on the rail
            length = np.hypot(*np.diff(way, axis=0).T).sum()
            assert length <= np.pi + 1e-6


def test_an_arrow_is_a_stem_that_ends_where_its_head_begins():
    for ranks in (2, 3, 8):
        arrows = [way.still for way in Network.on_ring(ranks, (100, 80), (0, 0, 900, 600), onward=True).ways[1:]]
        assert len(arrows) == ranks
        for arrow in arrows:
            (start, end), (tip, *base) = np.array(arrow["points"]), np.array(arrow["head"])
            assert np.allclose(end, np.mean(base, axis=0), atol=0.1) and (end - start) @ (tip - end) > 0


def test_a_lecture_asks_runs_and_answers():
    question = Question("How many?", ("one", "two"), 1, "Two is one more.")
    beats = [Beat(0, "a", asks=question), Beat(2, "b"), Beat(3, "c", answers=question)]
    story = Story("s", "Why?", [box(0, 0, 9, 9)], beats)
    broken = Story("s", "Why?", [box(0, 0, 9, 9)], beats[:2], broken="a bug")
    lecture = Lecture(Animation("s", "S", (story, broken)), story)
    assert lecture.onward() is None and lecture.question is question and not lecture.revealed
    lecture.vote(1)
    lecture.vote(7)
    assert lecture.votes == [0, 1]
    assert lecture.onward() == 2 and lecture.question is None
    lecture.go(3)
    assert lecture.onward() is None and lecture.revealed
    assert lecture.onward() is None and lecture.question is None  # the end
    assert lecture.break_it() and lecture.story is broken and lecture.time == broken.ends
    lecture.back()
    assert lecture.time == 0
    lecture.asking = False
    lecture.show(story)
    assert lecture.onward() == 2 and lecture.question is None


def test_in_a_lecture_a_dial_is_turned_and_stays_so_in_the_broken_run():
    def dialled(broken: str) -> Story:
        variants = [Story("s", "Why?", [text(9, 9, word)], [Beat(0, "a"), Beat(end, "b")], broken=broken)
                    for word, end in (("x", 1), ("y", 2), ("z", 4))]  # fmt: skip
        return replace(variants[1], marks=(), dials=[Dial("d", ("1", "2", "4"), 1)], variants=variants)

    lecture = Lecture(Animation("s", "S", (dialled(""), dialled("a bug"))), dialled(""))
    assert words(lecture.story, 0) == ["y"]
    lecture.go(1)
    lecture.turn(1)
    assert words(lecture.story, 0) == ["z"] and lecture.time == 2
    lecture.turn(1)
    assert lecture.break_it() and (lecture.story.broken, words(lecture.story, 0), lecture.time) == ("a bug", ["z"], 2)


def test_dials_choose_their_variant():
    variants = [a_story(text(9, 9, f"{one}{other}")) for one in "ab" for other in "xyz"]
    story = a_story(dials=[Dial("d", ("a", "b")), Dial("e", ("x", "y", "z"))], variants=variants)
    assert words(story.turned([1, 1]), 0) == ["by"]
    with pytest.raises(ValueError, match="every position"):
        a_story(dials=[Dial("d", ("a", "b"))], variants=variants)


def test_a_terminal_shows_boxes_words_and_lines():
    blue, key = "#0072B2", {"a box": "#0072B2", "a line": "ink"}
    story = a_story(
        line([(0, 570), (1280, 570)]), box(640, 0, 640, 300, blue, sign="7"), text(320, 300, "hello"), key=key
    )
    lines = picture(story, 0, 40, 10, colours=False).plain.split("\n")
    assert [len(row) for row in lines] == [40] * 10
    assert lines[0] == " " * 20 + "7" * 20 and lines[5][8:13] == "hello" and lines[9] == "." * 40
    assert legend(story, colours=False).plain == "7 a box   . a line" and legend(a_story()).plain == ""
    assert legend(story).plain == "■ a box   ■ a line" and legend(story).spans[0].style == blue
    (explained,) = still.slide(story, 0).legends
    assert [one.get_text() for one in explained.texts] == [*key] and not still.slide(a_story(), 0).legends


def test_stills_have_the_chosen_beats_under_their_questions(tmp_path):
    figure = still.sheet(carts.animation().scenes[:1] + carts.animation().scenes[2:3], 2)
    assert [part.get_suptitle() for part in figure.subfigs] == ["How does a cart go, slow?", f"Broken: {carts.BUG}"]
    said = [[axes.get_title() for axes in part.axes if axes.get_title()] for part in figure.subfigs]
    assert said == [["slow begins.", "slow is over. 10 is right."], ["slow begins.", "slow is over. It limps."]]
    slide = still.slide(carts.drive("slow"), 1)
    assert slide.get_figwidth() / slide.get_figheight() == pytest.approx(16 / 9, rel=1e-3)
    assert "slow is on its way at 10." in [text.get_text() for text in slide.texts]
    still.gif(carts.drive("slow", ends=2.5), tmp_path / "cart.gif")
    with Image.open(tmp_path / "cart.gif") as image:
        assert image.n_frames > 2.5 * still.FRAMES
        for number, x in ((0, 0), (image.n_frames - 1, 375)):
            image.seek(number)
            picture = np.array(image.convert("RGB")).astype(int)[200:280]  # rows of the cart
            red = (np.abs(picture - (0xD5, 0x5E, 0)) < 24).all(axis=2).any(axis=0)
            assert np.flatnonzero(red).min() * WIDTH / image.width == pytest.approx(x, abs=16)
