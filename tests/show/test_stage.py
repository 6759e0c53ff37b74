"""The stage: keyframes, the pages and the terminal that show the same moments, and the stories that are told."""

import random
from dataclasses import replace

import numpy as np
import pytest
from stories import check, words

from minidist.show.demos import DEMONSTRATIONS
from minidist.show.stage.animation import Animation
from minidist.show.stage.characters import picture
from minidist.show.stage.lecture import Lecture, notes
from minidist.show.stage.marks import box, line, text
from minidist.show.stage.network import Network
from minidist.show.stage.story import Beat, Dial, Question, Story

TOLD = ("broadcast", "ring", "reduce-scatter", "all-gather", "all-to-all", "zero", "recompute", "bf16")
OF_A_FORMULA = {"16 bytes"}  # no run, which a bug could break


@pytest.fixture(scope="module")
def animations() -> dict[str, Animation]:
    return {name: DEMONSTRATIONS[name]() for name in TOLD}


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
    story = a_story(line([(0, 570), (1280, 570)]), box(640, 0, 640, 300, "#0072B2", sign="7"), text(320, 300, "hello"))
    lines = picture(story, 0, 40, 10, colours=False).plain.split("\n")
    assert [len(row) for row in lines] == [40] * 10
    assert lines[0] == " " * 20 + "7" * 20 and lines[5][8:13] == "hello" and lines[9] == "." * 40


@pytest.mark.parametrize("name", TOLD)
def test_every_story_can_be_read_and_its_bug_is_seen(animations, name):
    for story in animations[name].scenes:
        for one in story.variants or [story]:
            check(one)
        twin = animations[name].twin(story)
        assert story.name in OF_A_FORMULA or (
            twin and [beat.at for beat in twin.beats][:2] == [beat.at for beat in story.beats][:2]
        )
    assert "<- the answer" in notes(animations[name])


@pytest.mark.parametrize("name", ["ring", "reduce-scatter"])
@pytest.mark.parametrize("ranks", [2, 3, 7, 8])
def test_other_numbers_of_ranks_can_be_read(name, ranks):
    for story in DEMONSTRATIONS[name](ranks=ranks).scenes:
        check(story)


def test_a_page_shows_what_the_keyframes_say(animations, tmp_path, open_page):
    """The browser animates; where each box is at random moments is computed here."""
    story = animations["ring"].scenes[0]
    page = tmp_path / "ring.html"
    page.write_text(animations["ring"].html(), encoding="utf-8")
    shown = open_page(page.as_uri())
    shown.wait_for_selector("body[data-ready]")
    draw = random.Random(7)
    for moment in sorted(draw.uniform(0, story.ends) for _ in range(5)):
        places = shown.evaluate(
            """(moment) => {
                 const clock = document.getElementById('clock');
                 clock.value = moment;
                 clock.dispatchEvent(new Event('input'));
                 const svg = document.getElementById('stage'), inverse = svg.getScreenCTM().inverse();
                 return [...svg.children].map((group) => {
                   const matrix = inverse.multiply(group.getScreenCTM());
                   return [matrix.e, matrix.f, Number(getComputedStyle(group).opacity)];
                 });
               }""",
            moment,
        )
        for mark, (x, y, opacity) in zip(story.marks, places, strict=True):
            now = mark.at(moment)
            assert (x, y, opacity) == pytest.approx((now["x"], now["y"], now["opacity"]), abs=0.02)


def test_in_a_notebook_it_plays_in_a_frame(animations, tmp_path, open_page):
    """The frame has no address of its own; it begins with a right run, also where a broken one comes first."""
    scenes = animations["ring"].only("ring").scenes
    notebook = tmp_path / "notebook.html"
    notebook.write_text(replace(animations["ring"], scenes=scenes[::-1])._repr_html_(), encoding="utf-8")
    frame = open_page(notebook.as_uri()).wait_for_selector("[data-animation] iframe").content_frame()
    frame.wait_for_selector("body[data-ready]:not(.broken)")
    frame.click("#next")
    frame.wait_for_selector("#asked:not([hidden])")
    frame.click("#next")
    frame.wait_for_function("Number(document.getElementById('clock').value) > 0.2")
