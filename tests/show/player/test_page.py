"""The page in a browser: it does what the terminal's player does, and all of it can be read on every screen."""

import random
import re

import carts
import pytest

from minidist.show.player.animation import Animation
from minidist.show.player.terminal.lecture import Lecture

CARTS, LONG = carts.animation(), carts.animation(words=7, height=20)
LINKS = {"previous": "a.html", "gallery": "index.html", "next": "c.html"}
SCREENS = [(1280, 720), (1920, 1080), (390, 844)]


@pytest.fixture
def opened(open_page, tmp_path):
    """``opened(address)`` opens the page at ``#address``; ``of`` is another animation."""

    def opened(address: str = "", of: Animation = CARTS, size: tuple[int, int] = (1280, 720), **settings):
        (tmp_path / "cart.html").write_text(of.html(links=LINKS), encoding="utf-8")
        return open_page((tmp_path / "cart.html").as_uri() + (f"#{address}" if address else ""), *size, **settings)

    return opened


def notes(one) -> list[str]:
    """What both panes say."""
    return [pane.text_content() for pane in one.locator("main .note").all() if pane.is_visible()]


def press(one, *keys: str) -> None:
    for key in keys:
        one.keyboard.press(key)


KEYS = {
    " ": lambda lecture: lecture.forward(), "ArrowLeft": lambda lecture: lecture.backward(),
    "Home": lambda lecture: lecture.go(0), "End": lambda lecture: lecture.go(99),
    "b": lambda lecture: lecture.break_it(), "s": lambda lecture: lecture.next_scene(),
    "a": lambda lecture: lecture.toggle_questions(), "2": lambda lecture: lecture.vote(1),
    "3": lambda lecture: lecture.vote(2),
}  # fmt: skip


@pytest.mark.parametrize("seed", range(2))
def test_the_page_does_what_the_terminal_s_player_does(opened, seed):
    """On the same keys: the scene, its step, the question, votes for its choices, the answer and the verdict."""
    draw, one, lecture, pressed = random.Random(seed), opened(), Lecture(CARTS, CARTS.scenes[0]), []
    for _ in range(120):
        pressed.append(draw.choices([*KEYS], weights=[9, 3, 1, 1, 2, 1, 1, 3, 2])[0])
        press(one, pressed[-1])
        KEYS[pressed[-1]](lecture)
        frame, question, asks = lecture.shown.frames[lecture.frame], lecture.question, one.is_visible("#asked")
        assert notes(one) == [frame.note] and asks == (question is not None), pressed
        assert one.input_value("#slider") == str(lecture.frame)
        assert re.search(rf"step={lecture.frame}\b|cart.html$", one.url)  # no address before the first step
        miles = frame.facts["miles"]
        assert one.text_content("#facts") == f"miles{miles}" and f"mile {miles}" in one.text_content("#left .stage")
        if asks:
            assert one.text_content("#question") == question.text
            votes = [int(text or 0) for text in one.locator("#choices b").all_text_contents()]
            assert votes == lecture.votes, pressed
            assert one.text_content("#reason") == (question.reason if lecture.is_revealed else "")
        assert one.is_visible("#outcome") == lecture.at_end and one.is_visible("#tick") == lecture.is_broken
        bug = f"Broken: {carts.BUG}. " if lecture.is_broken else ""
        assert one.text_content("#bug") == bug and one.is_enabled("#break") == lecture.can_break


def test_buttons_slider_and_speed(opened):
    one = opened()
    one.click("#next")
    press(one, " ")  # the button that was clicked last is not pressed again
    assert notes(one) == ["slow, step 1"]
    one.fill("#slider", "3")  # whoever jumps is not asked
    assert notes(one) == ["slow, step 3"] and not one.is_visible("#asked")
    press(one, "Home", "9", "p")
    one.wait_for_function("document.querySelector('#left .note').textContent === 'slow, step 4'", timeout=120_000)


def test_two_runs_side_by_side_share_a_clock(opened):
    one = opened("scene=slow&step=1")
    press(one, "c")
    assert notes(one) == ["slow, step 1", "bad, step 1"]
    one.click("#scenes >> text=late")
    press(one, "Home", "a")
    assert notes(one) == ["slow, step 0", "late, step 0"]
    seen = []
    for _ in range(6):  # moments 10, 20, 30, 40, 60, 80 ms
        press(one, "ArrowRight")
        seen.append([int(note[-1]) for note in notes(one)])
    assert seen == [[1, 0], [2, 1], [3, 1], [4, 2], [4, 3], [4, 4]]
    press(one, "c")
    assert notes(one) == ["slow, step 4"]


def test_dials_choose_the_variant_and_an_address_opens_scene_step_and_dials(opened):
    one = opened("scene=set+by+you")
    dials = one.locator("#dials input")
    press(one, "End")
    for place, value, name in ((0, "2", "14 long"), (1, "0", "14 short"), (0, "1", "12 short")):
        dials.nth(place).fill(value)
        assert notes(one) == [f"{name}, step 4"]  # still at the end, wherever that is now
    assert one.locator("#dials output").all_text_contents() == ["12", "short"] and "dials=1,0" in one.url
    dials.nth(0).focus()
    press(one, "ArrowRight")  # turns the dial, and is no step
    assert notes(one) == ["14 short, step 4"]
    one.evaluate("location.hash = '#scene=late&step=3'")
    one.wait_for_function("document.querySelector('#left .note').textContent === 'late, step 3'")
    for wrong in ("scene=nobody&step=99", "step=x", "scene=set+by+you&dials=7,7"):
        assert len(notes(opened(wrong))) == 1


def test_notes_help_details_history_code_and_links(opened):
    one = opened()
    press(one, "n")
    assert "now (2 min): Ask what a cart is." in one.locator("#notes p").all_text_contents()
    press(one, "n", "?")
    assert not one.is_visible("#notes") and one.is_visible("#help")
    press(one, "Escape", " ")
    assert not one.is_visible("#help") and one.locator("#code .lit").all_text_contents() == [carts.CODE[1]]
    one.click("#left text[data-id='the cart'] >> visible=true")
    one.click("#history button >> nth=3")
    assert notes(one) == ["slow, step 3"]
    assert [a.get_attribute("href") for a in one.locator("#links a").all()] == [*LINKS.values()]
    one = opened("scene=bad&step=4", reduced_motion="reduce")
    one.click("summary")
    assert one.text_content("#forensics") == "in wheel 2, by 7 ulps" and one.is_visible("#forensics")
    press(one, "ArrowLeft")  # things rest where the system asks for it
    assert one.evaluate("document.getAnimations().filter(a => a.effect.getKeyframes()[0].transform).length") == 0


# ── every screen ─────────────────────────────────────────────────────────────────────────────────────────────────────

BOXES = """() => {
  const parts = "header, main > *, #asked, #dials, #verdict, #facts, #key, #notes, footer";
  return [...document.querySelectorAll(parts)].filter(e => e.getClientRects().length)
    .map(e => [e.id || e.tagName, e.getBoundingClientRect().toJSON()]);
}"""
CONTRASTS = """() => {
  const light = (c) => c.match(/[\\d.]+/g).slice(0, 3).map(v => c.startsWith('color(') ? +v : v / 255)
    .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const of = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  const ground = light(getComputedStyle(document.body).backgroundColor);
  const texts = [...document.querySelectorAll('h1, p, dt, dd, button, label, output, #key span')]
    .filter(e => e.textContent.trim())
    .map(e => of(light(getComputedStyle(e).color), getComputedStyle(e).backgroundColor === 'rgba(0, 0, 0, 0)'
      ? ground : light(getComputedStyle(e).backgroundColor)));
  const labels = [...document.querySelectorAll('#left .stage text[text-anchor=end]')]
    .map(e => of(light(getComputedStyle(e).fill), ground));
  return [ground, ...texts, ...labels];
}"""


@pytest.mark.parametrize("size", SCREENS)
@pytest.mark.parametrize("address", ["scene=slow&step=1", "scene=set+by+you&step=2", "scene=bad&step=4"])
def test_nothing_overlaps_and_nothing_is_cut_off(opened, size, address):
    (width, height), one = size, opened(address, size=size)
    for keys in ((), ("n",), ("c",), ("c", " ")):
        press(one, *keys)
        boxes = one.evaluate(BOXES)
        assert one.evaluate("document.documentElement.scrollWidth") <= width
        for i, (name, box) in enumerate(boxes):
            assert box["left"] >= 0 and box["right"] <= width and (width < 1000 or box["bottom"] <= height), name
            for other, place in boxes[i + 1 :]:
                if width < 1000 and "FOOTER" in (name, other):
                    continue  # it stays at the bottom while the rest scrolls
                across = min(box["right"], place["right"]) - max(box["left"], place["left"])
                down = min(box["bottom"], place["bottom"]) - max(box["top"], place["top"])
                assert across <= 1 or down <= 1, (name, other, keys)


@pytest.mark.parametrize("size", SCREENS[:2])
def test_on_a_projector_words_are_large_and_the_picture_has_the_room_that_they_leave(opened, size):
    height = size[1]
    for animation, least in ((CARTS, 0.65), (LONG, 0.5)):
        one = opened(of=animation, size=size)
        press(one, "a")
        places = []
        for _ in range(5):
            box = one.locator("#left .stage").bounding_box()
            places.append((round(box["y"]), round(box["height"])))
            assert one.evaluate("document.documentElement.scrollHeight") == height
            press(one, " ")
        assert len({*places}) == 1 and places[0][1] / height > least, places  # the same in every frame
        note = "parseFloat(getComputedStyle(document.querySelector('#left .note')).fontSize)"
        assert one.evaluate(note) >= height / 34  # as large as the words of a slide


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_are_readable(opened, scheme):
    one, light = opened(color_scheme=scheme), [scheme == "light"]
    for keys in ((), ("b",), ("d",)):  # d: the other way round
        press(one, *keys)
        ground, *contrasts = one.evaluate(CONTRASTS)
        light.append(ground > 0.5)
        assert min(contrasts) >= 4.5  # what WCAG requires of text
    assert light[:3] == [light[0]] * 3 and light[3] != light[0]


def test_on_a_phone_nothing_is_lost(opened):
    for width, height in ((390, 844), (844, 390), (320, 568)):
        one = opened(size=(width, height), is_mobile=True, has_touch=True, device_scale_factor=2)
        assert one.evaluate("document.documentElement.scrollWidth") <= width
        one.tap("#next")
        assert notes(one) == ["slow, step 1"]
        for name in ("#next", "#break", "#play"):
            assert one.locator(name).bounding_box()["height"] >= 24  # what WCAG requires of a target


def test_in_a_notebook_the_player_replaces_the_picture(open_page, tmp_path):
    output, path = CARTS._repr_html_(), tmp_path / "notebook.html"
    path.write_text(f"<body data-jp-theme-light='false'>{output}<p>after</p>{output}</body>", encoding="utf-8")
    one = open_page(path.as_uri())
    one.wait_for_selector("iframe >> nth=1")
    assert one.locator("iframe").count() == 2 and one.locator("img").count() == 0
    for number in range(2):
        player = one.frame_locator("iframe").nth(number)
        player.locator("#next").click()
        assert player.locator("#left .note").text_content() == "slow, step 1"
        assert player.locator("html").get_attribute("data-theme") == "dark"  # as dark as the notebook
    quiet = open_page(path.as_uri(), java_script_enabled=False)
    assert quiet.locator("img").count() == 2 and quiet.locator("iframe").count() == 0
