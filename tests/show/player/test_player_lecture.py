"""The page in a lecture: predict and reveal, dials, two panes on one clock, notes, history, addresses, links."""

from dataclasses import replace

import pytest

from minidist.show.player.animation import Animation
from minidist.show.player.scene import Box, Cue, Curve, Dial, Frame, Label, Question, Scene

CODE = ("for step in range(N - 1):", "    send(chunk)", "    chunk += receive()")
QUESTION = Question(
    2, "Where is the cart after two steps?", ("at 10", "at 20", "at 40"), 1, "It moves 10 in each step, so it is at 20."
)
LATER = Question(3, "Is it late?", ("yes", "no"), 0, "Its clock says so.", asked=1)


def run(name: str, speed: int, ends: float = 40, **more) -> Scene:
    """A cart that moves by ``speed`` at each step of its own clock, which ends at ``ends`` ms."""
    frames = []
    for step in range(5):
        track = tuple((6 * i, 3.5 - 0.5 * i) for i in range(step + 2))
        shapes = (
            Box(0, 1, 70, 1, "faint"),
            Label(0, 0.5, f"mile {speed * step}"),
            Box(speed * step, 1, 9, 1, "#D55E00", "cart", id="the cart"),
            Curve(track, "#0072B2"),
        )
        lines = (step % 3,) if more.get("code") else ()
        frames.append(Frame(shapes, f"{name}, step {step}", {"miles": str(speed * step)}, ends * step / 4, lines))
    return Scene(name, f"A cart, {name}", tuple(frames), 5, {"cart": "#D55E00"}, f"{name} is there.", **more)


@pytest.fixture(scope="module")
def animation() -> Animation:
    speeds = Dial("speed", ("10", "12", "14"), 0), Dial("road", ("short", "long"), 1)
    variants = tuple(
        run(f"speed {v} {road}", v, end) for v in (10, 12, 14) for road, end in (("short", 30), ("long", 40))
    )
    slow = run(
        "slow", 10, questions=(QUESTION,), cues=(Cue(0, 2, "Ask what a cart is."), Cue(3, 1.5, "Say why.")), code=CODE
    )
    set_by_viewer = run("set by you", 10, dials=speeds, variants=variants)
    late = run("late", 8, 80, questions=(LATER,))
    bad = replace(run("bad", 5), first_wrong=1, twin="slow", details="after step 1, in wheel 2, by 7 ulps")
    bad_late = replace(run("bad and late", 3, 80), first_wrong=2, twin="late")
    return Animation("cart", "A cart", (slow, late, set_by_viewer), bad, "a wheel is off", also_broken=(bad_late,))


@pytest.fixture
def opened(open_page, animation, tmp_path):
    """``opened(address)`` opens the page at ``#address``."""
    links = {"previous": "ring.html", "gallery": "index.html"}
    (tmp_path / "cart.html").write_text(animation.html(links=links), encoding="utf-8")

    def opened(address: str = "", **settings):
        return open_page((tmp_path / "cart.html").as_uri() + (f"#{address}" if address else ""), **settings)

    return opened


def notes(one) -> list[str]:
    """What both panes say."""
    return [pane.text_content() for pane in one.locator("main .note").all() if pane.is_visible()]


def press(one, *keys: str) -> None:
    for key in keys:
        one.keyboard.press(key)


# ── predict, then reveal ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.long
def test_the_player_asks_before_the_frame_that_answers(opened):
    one = opened()
    press(one, " ", " ")
    assert notes(one) == ["slow, step 1"] and one.text_content("#question") == QUESTION.text
    assert one.text_content("#reason") == ""  # not before the answer
    press(one, "2", "2", "3")  # a class that raises hands
    one.click("#choices button >> nth=2")
    votes = one.locator("#choices b").all_text_contents()
    assert votes == ["", "2", "2"]
    press(one, " ")
    assert notes(one) == ["slow, step 2"] and one.text_content("#reason") == QUESTION.reason
    assert one.locator("#choices .right").text_content().startswith("2  at 20")
    press(one, "1")  # too late
    assert one.locator("#choices b").all_text_contents() == votes
    press(one, " ")
    assert not one.is_visible("#asked") and notes(one) == ["slow, step 2"]
    press(one, " ", "ArrowLeft", "ArrowLeft", " ")  # it asks once
    assert notes(one) == ["slow, step 2"] and not one.is_visible("#asked")


def test_a_question_can_be_asked_long_before_its_answer(opened):
    one = opened("scene=late")
    press(one, " ")
    assert one.text_content("#question") == LATER.text and one.text_content("#reveal") == "watch"
    press(one, "1", "1", " ", " ")
    assert not one.is_visible("#asked") and notes(one) == ["late, step 2"]
    press(one, " ")
    assert notes(one) == ["late, step 3"] and one.text_content("#reason") == LATER.reason
    assert one.locator("#choices b").all_text_contents() == ["2", ""]
    press(one, " ", " ")
    assert notes(one) == ["late, step 4"] and not one.is_visible("#asked")


def test_one_key_turns_the_questions_off(opened):
    one = opened()
    press(one, "a", " ", " ", " ")
    assert notes(one) == ["slow, step 3"] and not one.is_visible("#asked")
    press(one, "Home", "a", " ", " ")
    assert one.is_visible("#asked")
    press(one, "ArrowLeft")
    assert not one.is_visible("#asked") and notes(one) == ["slow, step 1"]


def test_whoever_jumps_or_plays_is_not_asked(opened):
    one = opened()
    one.fill("#slider", "3")
    assert notes(one) == ["slow, step 3"] and not one.is_visible("#asked")


# ── right and broken, and two scenes, on one clock ───────────────────────────────────────────────────────────────────


def test_every_scene_is_broken_and_fixed_at_the_same_moment(opened):
    one = opened("scene=late&step=2")
    press(one, "b")
    assert notes(one) == ["bad and late, step 2"] and one.is_visible("#tick")
    press(one, "b")
    assert notes(one) == ["late, step 2"]


def test_right_beside_broken(opened):
    one = opened("scene=slow&step=1")
    press(one, "c")
    assert notes(one) == ["slow, step 1", "bad, step 1"]
    press(one, "End")
    assert notes(one) == ["slow, step 4", "bad, step 4"]
    press(one, "c")
    assert notes(one) == ["slow, step 4"]


def test_two_scenes_share_a_clock(opened):
    one = opened("scene=slow")
    press(one, "c")
    one.click("#scenes >> text=late")
    assert notes(one) == ["slow, step 0", "late, step 0"]
    assert one.get_attribute("#slider", "max") == "6"  # moments 0, 10, 20, 30, 40, 60, 80 ms
    seen = []
    for _ in range(6):
        press(one, "ArrowRight")
        while one.is_visible("#asked"):
            press(one, "ArrowRight")
        seen.append([int(note[-1]) for note in notes(one)])
    assert seen == [[1, 0], [2, 1], [3, 1], [4, 2], [4, 3], [4, 4]]


# ── what the viewer sets ─────────────────────────────────────────────────────────────────────────────────────────────


def test_dials_choose_the_variant(opened):
    one = opened("scene=set+by+you")
    dials = one.locator("#dials input")
    assert dials.count() == 2 and notes(one) == ["speed 10 long, step 0"]
    one.keyboard.press("End")
    for place, value, name in ((0, "2", "speed 14 long"), (1, "0", "speed 14 short"), (0, "1", "speed 12 short")):
        dials.nth(place).fill(value)
        assert notes(one) == [f"{name}, step 4"]  # still at the end, wherever that is now
    assert one.locator("#dials output").all_text_contents() == ["12", "short"]
    assert "dials=1,0" in one.url
    dials.nth(0).focus()
    press(one, "ArrowRight")  # turns the dial, and is no step
    assert notes(one) == ["speed 14 short, step 4"]


# ── the speaker ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_notes_for_the_speaker(opened):
    one = opened()
    assert not one.is_visible("#notes")
    press(one, "n")
    assert one.locator("#notes p").all_text_contents() == [
        "slow: 3.5 minutes in all", "now (2 min): Ask what a cart is.", "at step 3: Say why.",
        f"question before step 2: {QUESTION.text}",
    ]  # fmt: skip
    press(one, "End")
    assert one.locator("#notes p").all_text_contents() == ["slow: 3.5 minutes in all", "now (1.5 min): Say why."]
    press(one, "n")
    assert not one.is_visible("#notes")


def test_help_names_every_key(opened):
    one = opened()
    press(one, "?")
    text = one.text_content("#help")
    assert all(key in text for key in ("space", "b", "c", "a", "n", "f", "s", "p", "g"))
    press(one, "Escape")
    assert not one.is_visible("#help")


def test_details_are_folded(opened):
    one = opened("scene=bad&step=4")
    assert one.is_visible("#details") and not one.is_visible("#forensics")
    one.click("summary")
    assert one.text_content("#forensics") == "after step 1, in wheel 2, by 7 ulps" and one.is_visible("#forensics")


# ── things, and lines of code ────────────────────────────────────────────────────────────────────────────────────────


def test_a_click_tells_the_history_of_a_thing(opened):
    one = opened()
    one.click("#left text[data-id='the cart'] >> visible=true")
    assert one.locator("#history h2").text_content() == "the cart"
    assert one.locator("#history button").all_text_contents() == [f"slow, step {i}" for i in range(5)]
    one.click("#history button >> nth=3")
    assert notes(one) == ["slow, step 3"]
    press(one, "Escape")
    assert not one.is_visible("#history")


def test_a_thing_moves_and_rests_where_the_system_asks_for_it(opened):
    moving = "document.getAnimations().filter(a => a.effect.getKeyframes()[0].transform).length"
    one = opened()
    press(one, " ")
    assert one.evaluate(moving) == 2  # the cart and its text
    quiet = opened(reduced_motion="reduce")
    press(quiet, " ")
    assert quiet.evaluate(moving) == 0


def test_the_line_of_the_algorithm_lights_up(opened):
    one = opened()
    assert one.locator("#code li").all_text_contents() == list(CODE)
    assert one.locator("#code .lit").all_text_contents() == [CODE[0]]
    press(one, " ")
    assert one.locator("#code .lit").all_text_contents() == [CODE[1]]
    one.click("#scenes >> text=late")
    assert not one.is_visible("#code")


# ── addresses ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_address_opens_a_scene_at_a_step_and_follows_it(opened):
    one = opened("scene=late&step=3")
    assert notes(one) == ["late, step 3"]
    press(one, " ")
    assert one.url.endswith("#scene=late&step=4")
    one.evaluate("location.hash = '#scene=slow&step=1'")
    one.wait_for_function("document.querySelector('#left .note').textContent === 'slow, step 1'")


@pytest.mark.long
@pytest.mark.parametrize("address", ["scene=nobody&step=99", "step=x", "scene=set+by+you&dials=7,7"])
def test_a_wrong_address_opens_something(opened, address):
    assert len(notes(opened(address))) == 1


def test_links_to_the_other_demonstrations(opened):
    one = opened()
    assert one.locator("#links a").all_text_contents() == ["‹", "all"]
    assert one.get_attribute("#links a >> nth=1", "href") == "index.html"


# ── every screen ─────────────────────────────────────────────────────────────────────────────────────────────────────


BOXES = """() => {
  const parts = "header, main > *, #asked, #dials, #verdict, #facts, #key, #notes, footer";
  return [...document.querySelectorAll(parts)].filter(e => e.getClientRects().length)
    .map(e => [e.id || e.tagName, e.getBoundingClientRect().toJSON()]);
}"""


@pytest.mark.long
@pytest.mark.parametrize(("width", "height"), [(1280, 720), (1920, 1080), (390, 844)])
@pytest.mark.parametrize("address", ["scene=slow&step=1", "scene=set+by+you&step=2", "scene=bad&step=4"])
def test_nothing_overlaps_and_nothing_is_cut_off(opened, width, height, address):
    one = opened(address, width=width, height=height)
    for keys in ((), ("n",), ("c",), ("c", " ")):
        press(one, *keys)
        boxes = one.evaluate(BOXES)
        assert one.evaluate("document.documentElement.scrollWidth") <= width
        for i, (name, box) in enumerate(boxes):
            assert box["left"] >= 0 and box["right"] <= width, name
            if width > 1000:
                assert box["bottom"] <= height, name
            for other, place in boxes[i + 1 :]:
                if width < 1000 and "FOOTER" in (name, other):
                    continue  # it stays at the bottom while the rest scrolls
                across = min(box["right"], place["right"]) - max(box["left"], place["left"])
                down = min(box["bottom"], place["bottom"]) - max(box["top"], place["top"])
                assert across <= 1 or down <= 1, (name, other, keys)


def test_a_scene_with_dials_beside_one_without_has_them_where_they_begin(opened):
    one = opened()
    press(one, "c")
    one.click("#scenes button >> nth=1")  # another one takes the right place
    one.click("#scenes button:has-text('set by you')")
    press(one, "End")
    assert notes(one)[1] == "speed 10 long, step 4" and not one.is_visible("#dials")


def test_a_scene_without_a_broken_twin_is_beside_the_next_one(opened):
    one = opened("scene=set%20by%20you")
    assert one.is_disabled("#break") and one.get_attribute("#break", "title").endswith("the bug is in slow, late")
    press(one, "c")
    assert notes(one) == ["speed 10 long, step 0", "slow, step 0"]
