"""The page in a browser: it shows what the keyframes say, does what a lecture does, and can be read on every screen."""

import random
import re
from dataclasses import replace

import carts
import pytest
from pages import CONTRAST, LOADS, data_in, packed_in

from minidist.show.stage.lecture import Lecture
from minidist.show.stage.marks import HEIGHT, SMALLEST, box
from minidist.show.stage.page import whole
from minidist.show.stage.story import Beat, Story

CARTS = carts.animation()
SLOW, LATE, BAD = CARTS.scenes[:3]


SET = """(moment) => {
  const clock = document.getElementById('clock');
  clock.value = moment;
  clock.dispatchEvent(new Event('input'));
}"""


@pytest.fixture
def opened(open_page, tmp_path):
    """``opened(address)`` opens the page at ``#address``."""
    path = tmp_path / "cart.html"
    path.write_text(CARTS.html(links={"gallery": "index.html"}), encoding="utf-8")
    return lambda address="", *size, **settings: open_page(f"{path.as_uri()}#{address}", *size, **settings)


def press(page, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def test_the_file_holds_every_story_and_loads_nothing():
    text = CARTS.html()
    data = data_in(text, "stories")
    assert text == CARTS.html() and "A cart &lt;on&gt; its road" in text and text.count("</script>") == 2
    assert not re.search(LOADS, text) and data["first"] == 0
    for story, packed in zip(CARTS.scenes, data["stories"], strict=True):
        assert [beat["says"] for beat in packed["beats"]] == [beat.says for beat in story.beats]
        assert (packed["broken"], packed["details"], len(packed["variants"])) == (
            story.broken, story.details, len(story.variants)
        )  # fmt: skip
    assert data_in(CARTS.html(BAD), "stories")["first"] == 2
    shown = CARTS._repr_html_()
    assert shown.count("<img") == 1 and "data:image/png;base64," in shown
    assert not any(packed_in(shown)[4:8])  # no time stamp: running the notebook again does not change it


@pytest.mark.parametrize("number", range(5))
def test_marks_are_where_their_keyframes_say_at_any_moment(opened, number):
    story = CARTS.scenes[number]
    page = opened(f"{story.name}{'!' * bool(story.broken)}@0")
    for moment in sorted(random.Random(number).uniform(0, story.ends) for _ in range(4)):
        page.evaluate(SET, moment)
        places = page.evaluate(
            """() => {
                 const svg = document.getElementById('stage'), inverse = svg.getScreenCTM().inverse();
                 return [...svg.children].map((group) => {
                   const matrix = inverse.multiply(group.getScreenCTM());
                   return [matrix.e, matrix.f, Number(getComputedStyle(group).opacity)];
                 });
               }"""
        )
        for mark, (x, y, opacity) in zip(story.at_start.marks, places, strict=True):
            now = mark.at(moment)
            assert (x, y, opacity) == pytest.approx((now["x"], now["y"], now["opacity"]), abs=0.02)


def onward(lecture: Lecture) -> float | None:
    """Go on, and straight to the next beat; return its moment."""
    until = lecture.onward()
    if until is not None:
        lecture.go(until)
    return until


KEYS = {
    " ": onward, "ArrowLeft": Lecture.back, "Home": lambda lecture: lecture.go(0),
    "End": lambda lecture: lecture.go(99), "b": Lecture.break_it, "s": Lecture.next_scene,
    "2": lambda lecture: lecture.vote(1), "3": lambda lecture: lecture.vote(2),
}  # fmt: skip


@pytest.mark.parametrize("seed", range(2))
def test_keys_do_what_they_do_in_a_terminal(opened, seed):
    draw, page, lecture, pressed = random.Random(seed), opened(), Lecture(CARTS, SLOW), []
    for _ in range(100):
        pressed.append(draw.choices([*KEYS], weights=[9, 2, 1, 1, 2, 1, 3, 2])[0])
        until = KEYS[pressed[-1]](lecture)
        press(page, pressed[-1])
        if pressed[-1] == " " and until is not None:  # no test waits for a clock
            page.evaluate(SET, until)
        beat, story, asks = lecture.beat, lecture.story.at_start, page.is_visible("#asked")
        verdict = f" {story.verdict}" if beat == len(story.beats) - 1 else ""
        assert page.text_content("#says") == story.beats[beat].says + verdict, pressed
        assert float(page.input_value("#clock")) == pytest.approx(lecture.time), pressed
        assert asks == bool(lecture.question), pressed
        assert page.is_visible("#bug") == bool(story.broken) and page.is_enabled("#break") == (story.name != "dialled")
        assert page.text_content("#facts") == "miles" + story.beats[beat].facts["miles"]
        if asks:
            assert page.text_content("#text") == lecture.question.text
            assert page.locator("#choices span").all_text_contents() == list(lecture.question.choices)
            counts = page.locator("#choices b").all_text_contents()  # apart from the answer
            assert [int(text or 0) for text in counts] == lecture.votes, pressed
            reason = lecture.question.reason if lecture.revealed else "▶ shows what happens."
            assert page.text_content("#reason") == reason


def test_a_comparison_says_both_verdicts_and_its_address_opens_it_again(opened):
    page = opened("slow@0")
    press(page, "c", "End")
    both = "slow is over. Left: 10 is right. Right: It limps."
    for one in (page, opened(page.url.split("#")[1])):
        assert one.text_content("#says") == both and one.is_visible("#beside") and one.url.endswith("slow+@2")
        assert one.text_content("#bug") == f"Broken (right): {carts.BUG}."
    press(page, "b")
    assert page.text_content("#says") == "slow is over. Left: It limps. Right: 10 is right." and "slow!+@2" in page.url
    press(page, "c")
    assert not page.is_visible("#beside") and page.text_content("#says") == "slow is over. It limps."
    for wrong in ("nobody@99", "slow@99", "x", "dialled+@1", "dialled@1,99", "sl%"):
        assert opened(wrong).is_visible("#stage")


def test_a_comparison_goes_on_until_the_later_run_is_over_and_gives_each_verdict_when_it_is(opened):
    page = opened("late+@1")
    page.evaluate(SET, 6)  # the right run is over, the broken one is not
    assert page.text_content("#says") == "late is over. Left: 8 is right."
    press(page, " ", " ", " ")  # hears the answer, closes it, goes on
    page.wait_for_function("document.getElementById('clock').value == 8")
    assert page.text_content("#says") == "late is over. Left: 8 is right. Right: It limps."
    page = opened("late!+@1")
    page.evaluate(SET, 6)
    assert page.text_content("#says") == "late is on its way at 3."


def test_a_verdict_is_of_its_side_where_the_other_run_has_none(open_page, tmp_path):
    scenes = replace(SLOW, verdict=""), BAD
    (tmp_path / "cart.html").write_text(whole("cart", scenes), encoding="utf-8")
    page = open_page((tmp_path / "cart.html").as_uri() + "#slow+@2")
    assert page.text_content("#says") == "slow is over. Right: It limps."


def test_a_key_explains_the_colours_that_are_there_in_a_comparison_those_of_both(open_page, tmp_path):
    key = {"right": "#009E73", "both": "#0072B2", "nobody's": "#CC79A7"}
    one = Story("a", "Which?", [box(0, 0, 9, 9, "#009E73"), box(9, 0, 9, 9, "#0072B2")], [Beat(0, "Now.")], key=key)
    bad = replace(one, marks=[box(0, 0, 9, 9, "#0072B2"), box(9, 0, 9, 9, "wrong")], broken="b",
                  key=key | {"bad": "wrong"})  # fmt: skip
    path = tmp_path / "key.html"
    path.write_text(whole("keys", [one, bad]), encoding="utf-8")
    page = open_page(f"{path.as_uri()}#a@0")
    seen = lambda: page.locator("#key span").all_inner_texts()  # noqa: E731
    assert seen() == ["right", "both"]
    press(page, "c")
    assert seen() == ["right", "both", "bad"]
    press(page, "c", "b")
    assert seen() == ["both", "bad"]


def test_an_address_that_is_changed_by_hand_or_by_a_link_is_followed(opened):
    page = opened("slow@0")
    page.evaluate("location.hash = 'late!@1'")
    page.wait_for_function("says.textContent === 'late is on its way at 3.'")
    assert page.is_visible("#bug")


def test_a_mouse_drags_a_dial_through_its_values_and_then_space_goes_on(opened):
    page = opened("dialled@0")
    dial = page.locator("#dials input").bounding_box()
    middle = dial["y"] + dial["height"] / 2
    page.mouse.move(dial["x"] + 0.45 * dial["width"], middle)
    page.mouse.down()
    for share in (0.3, 0.6, 0.9, 1):
        page.mouse.move(dial["x"] + share * dial["width"], middle)
    page.mouse.up()
    assert page.text_content("output").strip() == "16"
    press(page, " ")
    assert page.is_visible("#asked")
    page = opened("slow@0")
    page.click("#break")
    press(page, " ", " ")  # to the end of the beat, and not to the run without the bug
    assert page.text_content("#says") == "slow is on its way at 5." and page.is_visible("#bug")
    page.focus("#break")
    press(page, " ")  # who came with the keyboard presses the button
    assert not page.is_visible("#bug")


def test_dials_evidence_and_keys_that_can_be_switched_off(opened):
    page = opened("dialled@1")
    page.fill("#dials input", "0")
    assert page.text_content("#says") == "dialled is on its way at 5." and page.text_content("output").strip() == "5"
    page.focus("#dials input")
    press(page, "ArrowRight")  # turns the dial, and is no beat
    assert page.text_content("#says") == "dialled is on its way at 6."
    assert opened(page.url.split("#")[1]).text_content("#says") == "dialled is on its way at 6."
    page = opened("slow!@2")
    press(page, "e")
    assert page.locator("#code .lit").all_text_contents() == ["rest()"] and page.is_visible("#panel")
    assert page.text_content("#details") == "wheel 2, by 7 ulps"
    assert page.get_attribute("#links a", "href") == "index.html"
    page.uncheck("#keys")
    page.locator("#keys").blur()
    press(page, "b", "s", "e", "ArrowLeft")
    assert page.text_content("#says") == "slow is on its way at 5." and page.is_visible("#panel")


def test_a_screen_reader_is_told_every_beat(opened):
    page = opened("slow@0")
    for keys, text in (((), "slow begins."), (("End",), "slow is over. 10 is right.")):
        press(page, *keys)
        told = page.locator("#says")
        assert told.text_content() == text and told.get_attribute("aria-live") == "polite"
        assert page.get_attribute("#stage", "aria-labelledby") == "question says"
        assert text.startswith(page.get_attribute("#clock", "aria-valuetext"))
    assert page.get_attribute("#asked", "aria-live") == "polite"
    assert page.evaluate(
        "[...document.querySelectorAll('button, input')].every(e => e.ariaLabel || e.textContent || e.labels.length)"
    )


# ── every screen ─────────────────────────────────────────────────────────────────────────────────────────────────────

BOXES = """() => [...document.querySelectorAll('header, main, #says, #bug, #dials, footer')]
  .filter(e => e.getClientRects().length).map(e => [e.id || e.tagName, e.getBoundingClientRect().toJSON()])"""
ON_STAGE = f"""() => {{
  {CONTRAST}
  return of(...['rect', 'text'].map(name => light(getComputedStyle(document.querySelector(`#stage ${{name}}`)).fill)));
}}"""
CONTRASTS = f"""() => {{
  {CONTRAST}
  const ground = light(getComputedStyle(document.body).backgroundColor);
  const own = (e) => getComputedStyle(e).backgroundColor;
  const behind = (e) => own(e) === 'rgba(0, 0, 0, 0)' ? ground : light(own(e));
  const texts = [...document.querySelectorAll('h1, p, p b, dt, dd, button, label, output')]
    .filter(e => e.textContent.trim() && e.getClientRects().length && !e.disabled);
  return [ground, ...texts.map(e => of(light(getComputedStyle(e).color), behind(e)))];
}}"""


@pytest.mark.parametrize("size", [(1280, 720), (1920, 1080), (390, 844), (360, 640), (844, 390)])
def test_nothing_overlaps_or_is_cut_off_and_words_are_large(opened, size):
    for address in ("slow@1", "slow!+@2", "dialled@2"):
        page = opened(address, *size)
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
        boxes = page.evaluate(BOXES)
        for i, (name, seen) in enumerate(boxes):
            assert seen["left"] >= 0 and seen["right"] <= size[0] + 1, name
            assert size[1] < 700 or seen["bottom"] <= size[1], name
            for other, place in boxes[i + 1 :]:
                across = min(seen["right"], place["right"]) - max(seen["left"], place["left"])
                down = min(seen["bottom"], place["bottom"]) - max(seen["top"], place["top"])
                assert min(across, down) <= 1, (name, other)
        high = "parseFloat(getComputedStyle(document.getElementById('says')).fontSize)"
        assert page.evaluate(high) >= (min(28, size[1] / 34) if size[0] > 1000 else 15)
        assert page.evaluate(
            "() => { const { scrollWidth, clientWidth } = stage.parentElement; return scrollWidth <= clientWidth; }"
        )
        if size[0] < 600:  # the smallest type, however narrow, is as high as that of 12 pixels
            stages = [one.bounding_box() for one in page.locator("svg:visible").all()]
            assert min(one["height"] for one in stages) * len(stages) >= 12 / SMALLEST * HEIGHT
            assert len(stages) == 1 or "(above)" in page.text_content("#bug")
        if size[0] > 1000:
            assert page.locator("#stage").bounding_box()["height"] > 0.6 * size[1]
        assert all(one.bounding_box()["height"] >= 44 for one in page.locator("footer button").all())  # of a finger


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_are_readable(opened, scheme):
    page, light = opened("slow!+@2", color_scheme=scheme), []
    for keys in (("e",), ("d",)):  # d: the other way round
        press(page, *keys)
        ground, *contrasts = page.evaluate(CONTRASTS)
        light.append(ground > 0.5)
        assert min(contrasts) >= 4.5  # what WCAG requires of text
    assert light == [scheme == "light", scheme != "light"]


def test_without_scripts_it_says_what_it_needs(opened, browser):
    plain = browser.new_page(java_script_enabled=False)
    plain.goto(opened().url)
    assert plain.locator("noscript").is_visible()
    plain.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_on_a_box_are_readable_on_every_fill_that_it_takes(open_page, tmp_path, scheme):
    fills = "paper", "#E3DC9A", "#1B3A6B", "wrong", "right", "ink", "faint"
    cart = box(0, 300, 300, 60, fills[0], text="cart")
    for moment, fill in enumerate(fills[1:], 1):
        cart.to(moment, 0.5, fill=fill)
    beats = [Beat(moment, fill) for moment, fill in enumerate(fills)]
    (tmp_path / "cart.html").write_text(whole("cart", [Story("cart", "?", [cart], beats, "")]), encoding="utf-8")
    page = open_page((tmp_path / "cart.html").as_uri(), color_scheme=scheme)
    for moment in range(len(fills)):
        page.evaluate(SET, moment + 0.5)
        assert page.evaluate(ON_STAGE) >= 4.5, fills[moment]


def test_in_a_notebook_the_player_replaces_the_picture(open_page, tmp_path):
    output, path = CARTS._repr_html_(), tmp_path / "notebook.html"
    path.write_text(f"<body>{output}<p>after</p>{output}</body>", encoding="utf-8")
    page = open_page(path.as_uri())
    page.wait_for_selector("iframe >> nth=1")
    assert page.locator("img").count() == 0
    for number in range(2):
        player = page.frame_locator("iframe").nth(number)
        player.locator("body[data-ready] #break").click()  # wherever the keys go
        assert player.locator("#says").text_content() == "slow begins." and player.locator("#bug").is_visible()
    quiet = open_page(path.as_uri(), java_script_enabled=False)
    assert quiet.locator("img").count() == 2 and quiet.locator("iframe").count() == 0


@pytest.mark.parametrize("width", [360, 600, 740, 1000])
def test_in_a_notebook_no_words_are_below_the_edge_of_the_frame(open_page, tmp_path, width):
    path = tmp_path / "notebook.html"
    path.write_text(f"<body style='width:{width}px'>{CARTS._repr_html_()}", encoding="utf-8")
    page = open_page(path.as_uri())
    player = page.wait_for_selector("iframe").content_frame()
    player.wait_for_selector("body[data-ready]")
    pressed = "key => document.body.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true}))"
    for keys in (["c", "End"], ["b"], ["c"], ["s"], ["s", "End"]):
        before = player.text_content("body")
        for key in keys:
            player.evaluate(pressed, key)  # a frame that nobody has clicked on hears no keyboard
        assert player.text_content("body") != before
        player.evaluate("says.textContent += ' and so on,'.repeat(12)")
        assert player.evaluate("document.documentElement.scrollHeight <= innerHeight"), keys
