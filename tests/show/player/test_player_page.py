"""The page: what it contains, and how it behaves in a browser."""

import base64
import gzip
import json
import random
import re
from dataclasses import replace
from itertools import pairwise

import pytest
from matplotlib.figure import Figure
from pages import unpacked

from minidist.show.demos.menu import SCENES
from minidist.show.player import page, still
from minidist.show.player.animation import Animation
from minidist.show.player.scene import Arrow, Box, Cue, Dial, Frame, Label, Question, Scene
from minidist.show.player.tables import tabled

STEPS = 5


def a_scene(name: str, shift: float = 0, first_wrong: int | None = None) -> Scene:
    """A box that moves to the right over one that stays, and an arrow in every second frame."""
    frames = []
    for step in range(STEPS):
        shapes = (
            Box(0, 0, 60, 2, "faint", "road"),
            Label(71, 0.5, f"mile {step}", "#0072B2", "end"),
            Box(10 * step + shift, 0, 8, 2, "#D55E00", "cart", "c", "wrong" if first_wrong == step else None),
            *([Arrow(1, 1, 5, 3, "#009E73", "whoa")] if step % 2 else []),
        )
        frames.append(Frame(shapes, f"{name}, step {step}", {"step": f"{step} of 4", "miles": f"{step * 10}"}))
    return Scene(
        name, f"A cart, {name}", tuple(frames), 4, {"road": "faint", "cart": "#D55E00"}, "It moves.", first_wrong
    )


@pytest.fixture(scope="module")
def animation() -> Animation:
    scenes = a_scene("slow"), a_scene("fast", 2)
    return Animation("cart", "A cart <on> its road", scenes, a_scene("broken", 5, 2), "</script> & a wheel is off")


def test_every_frame_can_be_restored_from_what_lasts():
    draw = random.Random(0)
    for _ in range(200):
        some = [Box(i, 0, 1, 1) for i in range(5)]
        frames = [[draw.choice(some) for _ in range(draw.randrange(7))] for _ in range(draw.randrange(1, 7))]
        lasting = page._lasting(frames)
        for number, shapes in enumerate(frames):
            seen = [entry[3] for entry in lasting if entry[1] <= number <= entry[2]]
            assert seen == [shape.x for shape in shapes]


def test_a_shape_that_stays_is_stored_once(animation):
    shapes = page.as_dict(animation.all_scenes, animation.bug)["scenes"][0]["shapes"]
    assert [shape[:3] for shape in shapes if "road" in shape] == [["box", 0, STEPS - 1]]
    assert sorted(shape[1] for shape in shapes if "cart" in shape) == list(range(STEPS))


def test_each_different_shape_is_written_once_for_all_scenes_and_variants():
    variants = tuple(a_scene(f"by {shift}", shift) for shift in (0, 2))
    dial = replace(a_scene("set"), dials=(Dial("shift", ("0", "2")),), variants=variants)
    made = page.as_dict([dial, a_scene("slow"), a_scene("bad", 5)], "none")
    found = tabled(made)
    carts = {*range(0, 50, 10), *range(2, 52, 10), *range(5, 55, 10)}
    kinds, numbers, first, last = found["scenes"][0]["variants"][1]["shapes"]
    assert len(found["tables"]["box"][0]) == 1 + len(carts) and len(found["tables"]["label"][0]) == STEPS
    shapes = [[kind, a, b, *(column[n] for column in found["tables"][kind])]
              for kind, n, a, b in zip(kinds, numbers, first, last, strict=True)]  # fmt: skip
    assert shapes == made["scenes"][0]["variants"][1]["shapes"]


def test_the_page_holds_the_animation_and_loads_nothing(animation):
    text = animation.html()
    assert unpacked(text) == json.loads(json.dumps(page.as_dict(animation.all_scenes, animation.bug)))
    assert "A cart &lt;on&gt; its road" in text and text.count("</script>") == 2
    assert not re.search(r"\b(src|href)=|https?://(?!www\.w3\.org/2000/svg)|@import|url\(", text)


def test_a_notebook_gets_the_player_and_a_picture_in_case_no_script_runs(animation):
    text = animation._repr_html_()
    assert text.count("<img") == 1 and "data:image/png;base64," in text and text.count("</script>") == 1
    (packed,) = re.findall(r'atob\("(.*?)"\)', text)
    assert gzip.decompress(base64.b64decode(packed)).decode() == animation.html()
    assert animation.html() == animation.html()
    assert not any(base64.b64decode(packed)[4:8])  # no time stamp: running the notebook again does not change it


def test_a_notebook_s_picture_is_of_the_first_scene_and_the_same_one_broken(animation, monkeypatch):
    drawn = []
    monkeypatch.setattr(still, "draw", lambda scenes, *rest: drawn.append((scenes, *rest)) or Figure())
    fast = replace(a_scene("bad"), twin="fast")
    slow = replace(a_scene("worse"), twin="slow")
    replace(animation, broken=fast, also_broken=(slow,))._repr_html_()
    assert drawn == [((animation.scenes[0], slow), animation.bug)]


# ── in a browser ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def opened(open_page, animation, tmp_path):
    """``opened(width, height, ...)`` opens the page, or another one."""
    (tmp_path / "cart.html").write_text(animation.html(), encoding="utf-8")

    def opened(width: int = 1280, height: int = 720, url: str | None = None, **settings):
        return open_page(url or (tmp_path / "cart.html").as_uri(), width, height, **settings)

    return opened


def seen(one) -> list[str]:
    """The visible texts, from the bottom up."""
    return one.eval_on_selector_all(
        "#left .stage text", "all => all.filter(e => e.style.display !== 'none').map(e => e.textContent)"
    )


def note(one) -> str:
    return one.text_content("#left .note")


def test_keys_step_forward_and_back(opened):
    one = opened()
    assert note(one) == "slow, step 0" and seen(one) == ["road", "mile 0", "cart"]
    for key, step in ((" ", 1), ("ArrowRight", 2), ("PageDown", 3), ("ArrowLeft", 2), ("PageUp", 1), ("End", 4),
                      (" ", 4), ("Home", 0), ("ArrowLeft", 0)):  # fmt: skip
        one.keyboard.press(key)
        assert note(one) == f"slow, step {step}" and seen(one) == ["road", f"mile {step}", "cart"]
        assert one.text_content("#facts") == f"step{step} of 4miles{10 * step}"
        assert one.input_value("#slider") == str(step)
    arrows = "all => all.filter(e => e.style.display !== 'none').length"
    assert one.eval_on_selector_all("#left polygon", arrows) == 0
    one.keyboard.press(" ")
    assert one.eval_on_selector_all("#left polygon", arrows) == 1


def test_buttons_do_the_same_and_leave_the_keys_alone(opened):
    one = opened()
    for button, step in (("#next", 1), ("#next", 2), ("#back", 1), ("#first", 0)):
        one.click(button)
        assert note(one) == f"slow, step {step}"
    one.keyboard.press(" ")  # the button that was clicked last is not pressed again
    assert note(one) == "slow, step 1"
    one.focus("#back")
    one.keyboard.press(" ")  # but one reached by the keyboard is
    assert note(one) == "slow, step 0"


def test_the_slider(opened):
    one = opened()
    one.fill("#slider", "3")
    assert note(one) == "slow, step 3" and "mile 3" in seen(one)
    box = one.locator("#slider").bounding_box()
    one.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert note(one) == "slow, step 2"


def test_an_arrow_bends_to_the_right_of_the_straight_line_and_a_text_ends_with_its_box(opened, tmp_path):
    shapes = Arrow(20, 1, 20, 5, bend=5), Arrow(50, 5, 50, 1, bend=5), Box(0, 5, 4.4, 1, "faint", "abcdefgh")
    scene = Scene("bent", "Down, and up again", (Frame(shapes, "both"),), 6)
    (tmp_path / "bent.html").write_text(Animation("bent", "Bent", (scene,), scene, "none").html(), encoding="utf-8")
    one = opened(url=(tmp_path / "bent.html").as_uri())
    middles = one.eval_on_selector_all(
        "#left path:not(.halo)",
        "all => all.map(e => e.getPointAtLength(e.getTotalLength() / 2)).map(p => [Math.round(p.x), Math.round(p.y)])",
    )
    assert middles == [[250, 60], [550, 60]]  # of 10 pixels a character, 20 a line
    assert seen(one) == ["abcd"]


def test_without_a_choice_there_are_no_buttons_for_it(opened, animation, tmp_path):
    assert opened().is_visible("#scenes")
    (tmp_path / "alone.html").write_text(animation.only("slow").html(), encoding="utf-8")
    assert not opened(url=(tmp_path / "alone.html").as_uri()).is_visible("#scenes")


def test_play_goes_to_the_end_and_stops_there_and_pauses(opened):
    one = opened()
    one.keyboard.press("9")
    assert one.input_value("#speed") == "9"
    one.keyboard.press("p")
    one.wait_for_function("document.querySelector('#left .note').textContent === 'slow, step 4'", timeout=120_000)
    assert one.get_attribute("#play", "aria-label") == "play"
    one.keyboard.press("1")
    one.click("#play")  # from the beginning, slowly
    assert one.get_attribute("#play", "aria-label") == "pause"
    one.click("#play")
    paused = note(one)
    assert one.get_attribute("#play", "aria-label") == "play" and paused != "slow, step 4"
    one.wait_for_timeout(50)
    assert note(one) == paused


def test_break_it_shows_the_same_step_broken_and_comes_back_to_where_it_was(opened):
    one = opened()
    one.keyboard.press("s")
    one.keyboard.press("ArrowRight")
    assert note(one) == "fast, step 1" and not one.is_visible("#tick")
    one.keyboard.press("b")
    assert note(one) == "broken, step 1"
    assert one.text_content("#bug") == "Broken: </script> & a wheel is off. "
    assert one.is_visible("#tick") and one.evaluate("document.getElementById('tick').style.left") == "50%"
    assert one.text_content("#break") == "fix it"
    one.click("#break")
    assert note(one) == "fast, step 1" and one.text_content("#outcome") == "It moves."
    one.click("text=slow")
    assert note(one) == "slow, step 0"


def test_break_it_goes_to_the_scene_that_the_broken_one_belongs_to(opened, animation, tmp_path):
    twins = replace(animation, broken=replace(animation.broken, twin="fast"))
    (tmp_path / "twins.html").write_text(twins.html(), encoding="utf-8")
    one = opened(url=(tmp_path / "twins.html").as_uri())
    one.keyboard.press("ArrowRight")
    one.keyboard.press("b")
    assert note(one) == "slow, step 1"  # where the bug cannot be shown, nothing happens
    assert one.is_disabled("#break")
    assert one.get_attribute("#break", "title") == "nothing to break here: the bug is in fast"
    one.keyboard.press("c")  # beside the next scene, for it has no twin
    assert one.locator("main .note").all_text_contents() == ["slow, step 1", "fast, step 1"]
    one.keyboard.press("c")
    one.keyboard.press("s")
    one.keyboard.press("ArrowRight")
    assert note(one) == "fast, step 1" and one.is_enabled("#break")
    one.keyboard.press("b")
    assert note(one) == "broken, step 1" and one.is_enabled("#break")


def test_the_verdict_comes_with_the_last_frame_and_nothing_moves(opened):
    one = opened()
    top = one.locator("#left .stage").bounding_box()
    assert not one.is_visible("#outcome")
    one.keyboard.press("End")
    assert one.is_visible("#outcome") and one.locator("#left .stage").bounding_box() == top
    one.keyboard.press("ArrowLeft")
    assert not one.is_visible("#outcome")
    one.keyboard.press("b")
    assert one.is_visible("#bug") and not one.is_visible("#outcome")


def ground(one) -> list[int]:
    return one.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")


def contrasts(one) -> list[float]:
    """The contrast of every visible text of the page with its background, by the formula of WCAG 2."""
    return one.evaluate(
        """() => {
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
        return [...texts, ...labels];
        }"""
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_are_readable(opened, scheme):
    one = opened(color_scheme=scheme)
    assert (sum(ground(one)) > 600) == (scheme == "light")
    assert min(contrasts(one)) >= 4.5  # what WCAG requires of text
    one.keyboard.press("b")
    assert min(contrasts(one)) >= 4.5
    one.keyboard.press("d")  # the other way round
    assert (sum(ground(one)) > 600) == (scheme == "dark")
    assert min(contrasts(one)) >= 4.5


@pytest.mark.parametrize(("width", "height"), [(1280, 720), (1920, 1080)])
def test_on_a_projector_everything_fits_and_is_large(opened, width, height):
    one = opened(width, height)
    assert one.evaluate("[document.documentElement.scrollWidth, document.documentElement.scrollHeight]") == [
        width,
        height,
    ]
    text = one.locator("#left .stage text").first.bounding_box()
    assert text["height"] >= height / 32  # as large as the type of a slide
    for name in ("#left h1", "#break", "#left .note", "#facts", "#slider", "#speed"):
        box = one.locator(name).bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= width and box["y"] + box["height"] <= height


LINKS = {"previous": "a.html", "gallery": "b.html", "next": "c.html"}


def with_scenes(animation: Animation, names: tuple[str, ...]) -> Animation:
    return replace(animation, scenes=tuple(replace(animation.scenes[0], name=name) for name in names))


@pytest.mark.long
@pytest.mark.parametrize("width", [1280, 1920])
def test_the_scenes_of_every_demonstration_and_the_tools_are_one_line(opened, animation, tmp_path, width):
    for names in SCENES.values():
        made = with_scenes(animation, names)
        made = replace(made, scenes=(*made.scenes[:-1], replace(made.scenes[-1], cues=(Cue(0, 1, "say"),),
                       questions=(Question(1, "how far?", ("1", "2"), 0, "so"),))))  # fmt: skip
        (tmp_path / "all.html").write_text(made.html(links=LINKS), encoding="utf-8")
        one = opened(width, 9 * width // 16, url=(tmp_path / "all.html").as_uri())
        parts = one.locator("header :is(a, button):visible")
        assert parts.count() == len(LINKS) + (len(names) if len(names) > 1 else 0) + 6
        places = [part.bounding_box() for part in parts.all()]
        assert max(box["y"] for box in places) < min(box["y"] + box["height"] / 2 for box in places)
        for box, after in pairwise(places):
            assert box["x"] + box["width"] < after["x"] and after["x"] + after["width"] <= width
        assert one.evaluate("(e => e.scrollWidth - e.clientWidth)(document.getElementById('scenes'))") <= 0, names


def test_on_a_phone_the_scenes_scroll_beside_the_links_and_the_chosen_one_is_in_view(opened, animation, tmp_path):
    (tmp_path / "pp.html").write_text(with_scenes(animation, SCENES["pp"]).html(links=LINKS), encoding="utf-8")
    one = opened(390, 844, url=(tmp_path / "pp.html").as_uri(), is_mobile=True)
    tools, scenes, links = (one.locator(f"#{name}").bounding_box() for name in ("tools", "scenes", "links"))
    assert tools["height"] < 40 and scenes["height"] < 40 and tools["y"] + tools["height"] <= scenes["y"]
    assert abs(links["y"] - scenes["y"]) < 8 and scenes["x"] + scenes["width"] <= 390
    one.keyboard.press("b")
    for _ in SCENES["pp"]:
        one.keyboard.press("s")
        chosen = one.locator("#scenes button[aria-pressed=true]").bounding_box()
        assert scenes["x"] - 1 <= chosen["x"] and chosen["x"] + chosen["width"] <= scenes["x"] + scenes["width"] + 1


def a_talkative_scene(name: str, details: str = "") -> Scene:
    """Notes of one to three lines, and facts and a key that do not fit one line."""
    frames = [
        Frame(
            (Box(0, 0, 72, 19, "faint", "road"),),
            f"{name}, step {step}: " + "the cart goes on and on. " * (1 + 3 * step % 8),
            {f"fact {number}": "much " * (number + step) for number in range(4)},
        )
        for step in range(STEPS)
    ]
    key = {f"a thing of the kind {number}": "#D55E00" for number in range(4)}
    return Scene(name, f"A cart, {name}", tuple(frames), 20, key, "It moves " * 8, details=details)


@pytest.mark.long
@pytest.mark.parametrize(("width", "height"), [(1280, 720), (1920, 1080)])
def test_the_picture_has_the_room_that_words_leave_and_the_same_in_every_frame(opened, tmp_path, width, height):
    scenes = a_talkative_scene("long", "in 3 chunks"), a_scene("short")
    made = Animation("cart", "A cart", scenes, replace(a_talkative_scene("bad"), twin="long"), "a wheel is off")
    (tmp_path / "long.html").write_text(made.html(), encoding="utf-8")
    one = opened(width, height, url=(tmp_path / "long.html").as_uri())
    shares = {}
    for scene, keys in (("long", "c"), ("beside", "cb"), ("bad", "bs"), ("short", "")):
        one.keyboard.press("Home")
        places = []
        for _ in range(STEPS):
            box = one.locator("#left .stage").bounding_box()
            places.append((round(box["y"]), round(box["height"])))
            one.keyboard.press(" ")
        assert len(set(places)) == 1, (scene, places)
        assert one.evaluate("document.documentElement.scrollHeight") == height
        shares[scene] = places[0][1] / height
        for key in keys:
            one.keyboard.press(key)
    assert shares["long"] > 0.55 and shares["short"] > 0.65


def test_the_caption_is_as_large_as_the_words_of_a_slide(opened):
    size = "parseFloat(getComputedStyle(document.querySelector('#left .note')).fontSize)"
    assert opened(1280, 720).evaluate(size) >= 24 and opened(1920, 1080).evaluate(size) >= 32


def test_facts_are_one_line_that_unfolds(opened, tmp_path):
    talkative = a_talkative_scene("long")
    (tmp_path / "long.html").write_text(Animation("cart", "A", (talkative,), talkative, "x").html(), encoding="utf-8")
    one = opened(url=(tmp_path / "long.html").as_uri())
    one.keyboard.press("End")
    folded = one.locator("#facts").bounding_box()
    assert folded["height"] < 30 and one.is_visible("#more")
    last = one.locator("#facts dd").last.bounding_box()
    assert last["x"] + last["width"] > folded["x"] + folded["width"]
    one.click("#more")
    unfolded = one.locator("#facts").bounding_box()
    last = one.locator("#facts dd").last.bounding_box()
    assert last["x"] + last["width"] <= 1280 and unfolded["height"] > 1.8 * folded["height"]
    assert not opened().is_visible("#more")  # these fit


@pytest.mark.long
@pytest.mark.parametrize(("width", "height"), [(390, 844), (844, 390), (320, 568)])
def test_on_a_phone_nothing_is_lost(opened, width, height):
    one = opened(width, height, is_mobile=True, has_touch=True, device_scale_factor=2)
    assert one.evaluate("document.documentElement.scrollWidth") <= width
    one.tap("#next")
    assert note(one) == "slow, step 1"
    assert (
        one.locator("#left .stage text").first.bounding_box()["height"] >= 8
    )  # the whole picture; two fingers enlarge it
    for name in ("#next", "#break", "#play"):
        assert one.locator(name).bounding_box()["height"] >= 24  # what WCAG requires of a target


def test_in_a_notebook_the_player_replaces_the_picture(opened, animation, tmp_path):
    output = animation._repr_html_()
    (tmp_path / "notebook.html").write_text(f"<body data-jp-theme-light='false'>{output}<p>after</p>{output}</body>")
    one = opened(url=(tmp_path / "notebook.html").as_uri())
    one.wait_for_selector("iframe >> nth=1")
    assert one.locator("iframe").count() == 2 and one.locator("img").count() == 0
    for number in range(2):
        player = one.frame_locator("iframe").nth(number)
        player.locator("#next").click()
        assert player.locator("#left .note").text_content() == "slow, step 1"
        assert player.locator("html").get_attribute("data-theme") == "dark"  # as dark as the notebook
    quiet = opened(url=(tmp_path / "notebook.html").as_uri(), java_script_enabled=False)
    assert quiet.locator("img").count() == 2 and quiet.locator("iframe").count() == 0
