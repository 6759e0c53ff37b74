"""An animation as a page, a still picture, a slide, a GIF and as characters: each is whole and shows every frame."""

import base64
import gzip
import io
import json
import random
import re
from dataclasses import replace

import carts
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.patches import Rectangle
from matplotlib.text import Annotation
from pages import unpacked
from PIL import Image
from rich.console import Console

from minidist.show.player import gif, page, slide, still
from minidist.show.player.animation import Animation
from minidist.show.player.characters import lines_of
from minidist.show.player.condensed import Condensed
from minidist.show.player.scene import WIDTH, Arrow, Box, Curve, Frame, Label, Scene
from minidist.show.player.tables import tabled
from minidist.show.player.terminal import print_animation

CARTS = carts.animation()
LOADS = r"\b(src|href)=|https?://(?!www\.w3\.org/2000/svg)|@import|url\("

# ── a page ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_page_holds_the_animation_and_loads_nothing():
    text = CARTS.html()
    assert text == CARTS.html() and unpacked(text) == json.loads(
        json.dumps(page.as_dict(CARTS.all_scenes, CARTS.bug, 2))
    )
    assert "A cart &lt;on&gt; its road" in text and text.count("</script>") == 2 and not re.search(LOADS, text)
    shown = CARTS._repr_html_()  # in a notebook: a picture, and in its place the player where scripts run
    assert shown.count("<img") == 1 and "data:image/png;base64," in shown and shown.count("</script>") == 1
    (packed,) = re.findall(r'atob\("(.*?)"\)', shown)
    assert gzip.decompress(base64.b64decode(packed)).decode() == text
    assert not any(base64.b64decode(packed)[4:8])  # no time stamp: running the notebook again does not change it


def test_every_frame_can_be_restored_from_what_lasts_and_each_shape_is_written_once():
    draw = random.Random(0)
    for _ in range(200):
        some = [Box(i, 0, 1, 1) for i in range(5)]
        frames = [[draw.choice(some) for _ in range(draw.randrange(7))] for _ in range(draw.randrange(1, 7))]
        lasting = page._lasting(frames)
        for number, shapes in enumerate(frames):
            assert [one[3] for one in lasting if one[1] <= number <= one[2]] == [shape.x for shape in shapes]
    made = page.as_dict(CARTS.all_scenes, "none")
    assert [one[:3] for one in made["scenes"][0]["shapes"] if one[3:6] == [0, 1, 70]] == [["box", 0, 4]]  # it stays
    boxes = {shape for scene in CARTS.all_scenes for one in (scene, *scene.variants) for frame in one.frames
             for shape in frame.shapes if isinstance(shape, Box)}  # fmt: skip
    assert len(tabled(made)["tables"]["box"][0]) == len(boxes)


# ── pictures ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_still_picture_has_the_frames_of_every_scene_where_they_are_under_their_titles():
    shapes = Box(16, 1, 8, 1, "#D55E00", "a text too long"), Label(0, 0.5, "rank 0"), Arrow(0, 0, 9, 2, "wrong")
    bends = Arrow(20, 1, 20, 5, bend=5), Arrow(50, 5, 50, 1, bend=5)
    frames = tuple(Frame(shapes if i < 3 else bends, f"note {i}") for i in range(4))
    one = Scene("one", "title", frames, 6, {"cart": "#D55E00"}, "verdict", stills=(0, 1, 3))
    figure = still.draw([one, replace(one, stills=(-1,), first_wrong=1, title="bad")], "no wheel")
    figure.draw_without_rendering()
    assert [part.get_suptitle() for part in figure.subfigs] == ["title\nverdict", "bad\nBroken: no wheel.\nverdict"]
    notes = [[axes.get_title(loc="left") for axes in part.axes] for part in figure.subfigs]
    assert [[note for note in each if note] for each in notes] == [["note 0", "note 1", "note 3"], ["note 3"]]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["cart"]
    first, bent = figure.subfigs[0].axes[0], figure.subfigs[1].axes[0]
    (box,) = [patch for patch in first.patches if isinstance(patch, Rectangle)]
    assert (box.get_xy(), box.get_width(), box.get_height()) == ((16, 2), 8, 2)  # a line is two characters high
    assert [text.get_text() for text in first.texts if text.get_text()] == ["a text t", "rank 0"]
    (arrow,) = [text for text in first.texts if isinstance(text, Annotation)]
    assert (arrow.xyann, arrow.xy) == ((0, 0), (9, 4))
    for x, text in zip((20, 50), (text for text in bent.texts if isinstance(text, Annotation)), strict=True):
        side = text.arrow_patch.get_path().transformed(bent.transData.inverted()).get_extents()
        assert side.x1 == pytest.approx(x + 5, abs=0.5) and side.x0 > x - 2  # to the right of the way; broad heads


def test_a_contact_sheet_skips_no_step_and_a_notebook_shows_the_first_scene_and_its_twin(monkeypatch):
    (part,) = CARTS.contact_sheet(CARTS.broken).subfigs
    notes = [axes.get_title(loc="left") for axes in part.axes if axes.get_title(loc="left")]
    assert [note.split()[0] for note in notes] == list("01234") and f"Broken: {carts.BUG}" in part.get_suptitle()
    drawn, draw = [], still.draw
    monkeypatch.setattr(still, "draw", lambda scenes, *rest: drawn.append(scenes) or draw(scenes, *rest))
    replace(CARTS, broken=CARTS.also_broken[0], also_broken=(CARTS.broken,))._repr_html_()
    assert [[scene.name for scene in scenes] for scenes in drawn] == [["slow", "bad"]]


@pytest.mark.parametrize("height", [6, 13, pytest.param(23, marks=pytest.mark.long)])
@pytest.mark.parametrize("bug", ["", "in backward, a rank computes with its own keys instead of those that arrived"])
def test_on_a_slide_nothing_is_outside_or_over_something_else_and_words_are_large(height, bug):
    words = Label(0, height - 0.5, "a mile on its road"), Label(72, height - 0.5, "the other end", anchor="end")
    frame = Frame(
        (Box(0, 0, 72, height - 1, "#D55E00", "a cart"), Box(0, 0, 1.2, 1, "#0072B2", "7"), *words), "on " * 25
    )
    key = {f"a thing of kind {i}": colour for i, colour in enumerate(carts.COLOURS.values())}
    figure = slide.draw(Scene("one", "A cart, " * 6, (frame,), height, key, "It is there."), 0, bug)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    assert tuple(figure.get_size_inches()) == slide.SIZE
    texts, axes = figure.findobj(Condensed), figure.axes[0]
    assert {one.size for one in texts} == {24, 28} and not (figure.texts or axes.texts)  # points
    parts = [axes.get_window_extent(), *(one.get_window_extent() for one in texts if one not in axes.get_children())]
    width, high = canvas.get_width_height()
    for i, one in enumerate(parts):
        assert min(one.x0, one.y0) >= 0 and one.x1 <= 1.002 * width and one.y1 <= 1.002 * high
        for other in parts[i + 1 :]:
            across = min(one.x1, other.x1) - max(one.x0, other.x0) > 0.002 * width
            assert not (across and min(one.y1, other.y1) - max(one.y0, other.y0) > 0.002 * high)
    assert max(parts[0].width / width, parts[0].height / high) > 0.5  # the picture
    places = {one.text: one.get_window_extent().transformed(axes.transData.inverted()) for one in texts}
    assert -0.01 <= places["7"].x0 <= places["7"].x1 <= 1.21 and places["a mile on its road"].x1 <= 18.01
    assert places["the other end"].x1 == pytest.approx(72, abs=0.01) and places["the other end"].x0 >= 59 - 0.01
    (seven,) = [one for one in texts if one.text == "7"]
    assert seven.get_window_extent().height / figure.dpi == pytest.approx(0.73 * 24 / 72, rel=0.02)  # DejaVu's capitals
    said = " ".join(places)
    assert "on on on" in said and (f"Broken: {bug}" in said) == bool(bug)
    assert height > 13 or {*key, "It is there."} <= {*places}  # a high picture leaves words out, but not the note


def test_a_step_that_does_not_exist_is_refused_with_those_that_do():
    for step in (-1, 5):
        with pytest.raises(ValueError, match=f"scene 'slow' of cart has the steps 0 to 4, and no step {step}"):
            CARTS.slide(CARTS.scenes[0], step)


def test_a_gif_shows_each_frame_where_it_is_with_the_verdict_and_the_bug(tmp_path):
    def frames_of(scene: Scene) -> list[np.ndarray]:
        gif.save(CARTS, scene, tmp_path / "cart.gif")
        with Image.open(tmp_path / "cart.gif") as image:
            assert image.format == "GIF" and image.info["loop"] == 0  # 0: forever
            found, seconds = [], []
            for number in range(image.n_frames):
                image.seek(number)
                found.append(np.array(image.convert("RGB")).astype(int))
                seconds.append(image.info["duration"])
        assert seconds == [gif.STEP] * (len(scene.frames) - 1) + [gif.LAST] and gif.LAST > gif.STEP
        return found

    right, wrong = frames_of(CARTS.scenes[0]), frames_of(CARTS.broken)
    width = right[0].shape[1]
    for step, picture in enumerate(right):  # not in the rows below, where the key shows the colour
        red = (np.abs(picture[:70] - (0xD5, 0x5E, 0)) < 12).all(axis=2).any(axis=0)
        assert np.flatnonzero(red).min() / width == pytest.approx((10 * step + 2) / 76, abs=0.02)
        assert ((picture[-55:-35, : width // 2] < 200).any()) == (step == 4)  # the verdict comes with the last frame
    assert [(np.abs(p - (0, 0x9E, 0x73)) < 12).all(axis=2)[:110].any() for p in right] == [False, True] * 2 + [False]
    assert wrong[0].shape[0] - right[0].shape[0] == pytest.approx(20, abs=2)  # one more line of text, for the bug


# ── characters ───────────────────────────────────────────────────────────────────────────────────────────────────────


def plain(*shapes, height: float = 1) -> list[str]:
    return [line.plain.rstrip() for line in lines_of(Frame(shapes, ""), height, colours=False)]


def test_shapes_as_characters():
    orange, blue = "#D55E00", "#0072B2"
    cases = [  # shapes, and what a terminal without colours shows
        ([Box(2, 0, 6, 1, orange, "ab", "F")], "  FFabFF"), ([Box(0, 0, 3, 1, "faint", "abcdef")], "abc"),
        ([Box(0, 0, 6, 1, orange, "", "F"), Label(1, 0.5, "abc"), Box(2, 0, 9, 1, "paper", "", " ")], "Fa"),
        ([Label(9, 0.5, "end", anchor="end"), Label(20, 0.5, "mid", anchor="middle")], "      end         mid"),
        ([Box(0, 0, 4, 1, None, "a", outline="ink"), Box(5, 0, 4, 1, None, "b", outline="wrong")], "[a ] !b !"),
        ([Box(0, 0, 4, 1, None, "a", outline="faint")], " a"),
        ([Box(0, 0, 4, 1, "faint", "abcd", outline="ink")], "abcd"),
        ([Curve(((3.6, 0.3),))], "   ⠐"), ([Curve(((3.6, 0.3),)), Curve(((3.1, 0.9),))], "   ⡐"),
    ]  # fmt: skip
    for shapes, expected in cases:
        assert plain(*shapes) == [expected]
    wide = lines_of(Frame((Label(70, 0, "too long for it"), Box(-3, -1, 200, 9, text="x" * 300)), ""), 2.2, False)
    assert [line.cell_len for line in wide] == [WIDTH] * 3
    lines = plain(Curve(((0, 0.1), (10, 1.9))), Curve(((-9, -9), (99, 99))), height=2)  # what is outside is not drawn
    assert all(0x2800 < ord(character) < 0x2900 for character in "".join(lines).replace(" ", ""))
    (line,) = lines_of(
        Frame((Box(0, 0, 2, 1, orange), Box(0, 0, 2, 0.5, blue), Box(4, 0.1, 3, 0.1, blue)), ""), 1, True
    )
    style = next(span.style for span in line.spans if span.start <= 0 < span.end)
    assert line.plain.rstrip() == "▀▀  ▀▀▀" and (style.color.name, style.bgcolor.name) == (blue.lower(), orange.lower())


def printed(animation: Animation, scene: Scene) -> str:
    out = io.StringIO()
    print_animation(animation, scene, Console(file=out, width=100))
    return out.getvalue()


def test_without_a_terminal_every_frame_is_printed_with_its_words():
    lines = [line.rstrip() for line in printed(CARTS, CARTS.broken).splitlines() if line.strip()]
    assert lines[:3] == ["A cart, bad", f"broken: {carts.BUG}", "c cart   [ ] track   [ ] wind   _ road"]
    for step in range(5):
        place = lines.index(f"── {step} of 4 ──")
        words = {f"bad, step {step}", f"miles: {5 * step}"}
        assert lines[place + 1].startswith(f"mile {5 * step}") and words <= {*lines}
    also = 'also: --scene slow, --scene late, --scene "set by you"'
    assert lines[-3:] == ["bad is there.", "in wheel 2, by 7 ulps", also]
    notes = "off", "on", "on", "on", "end"
    frames = tuple(Frame((Label(0, 0.5, f"mile {i}"),), note) for i, note in enumerate(notes))
    scene = Scene("cart", "A cart", frames, 1)  # of frames with one note, the last
    shown = printed(Animation("cart", "A cart", (scene,), scene, "none"), scene)
    assert re.findall(r"mile \d", shown) == ["mile 0", "mile 3", "mile 4"]


def test_messages_that_do_not_fit_two_lines_are_counted_and_none_is_cut():
    for count in (1, 7, 9, 40):
        labels = [f"{i} → {i + 1} a (8,000 B)" for i in range(count)]
        scene = Scene("cart", "A cart", (Frame(tuple(Arrow(0, 0, 1, 1, label=one) for one in labels), ""),), 1)
        shown = printed(Animation("cart", "A cart", (scene,), scene, "none"), scene)
        shown = shown.split("messages: ")[1].splitlines()[0]
        named, _, more = shown.partition(", and ")
        named = named.split(", ")
        assert named == labels[: len(named)] and more == (f"{count - len(named)} more" if len(named) < count else "")
        assert len(f"messages: {shown}") <= 2 * WIDTH
        assert len(named) == count or len(f"messages: {', '.join(labels[: len(named) + 1])}, and 9 more") > 2 * WIDTH
