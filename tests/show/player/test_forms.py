"""An animation as a page, a still picture, a slide, a GIF and as characters: each is whole and shows every frame."""

import gzip
import io
import json
import re
from dataclasses import replace

import carts
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from pages import LOADS, packed_in, unpacked
from PIL import Image
from rich.console import Console

from minidist.show.player import gif, page, slide, still
from minidist.show.player.characters import lines_of
from minidist.show.player.condensed import Condensed
from minidist.show.player.scene import WIDTH, Box, Curve, Frame, Label, Scene
from minidist.show.player.terminal import print_animation

CARTS = carts.animation()


def test_the_page_holds_the_animation_and_loads_nothing():
    text = CARTS.html()
    made = page.as_dict(CARTS.all_scenes, CARTS.bug, 2)
    assert text == CARTS.html() and unpacked(text) == json.loads(json.dumps(made))
    assert "A cart &lt;on&gt; its road" in text and text.count("</script>") == 2 and not re.search(LOADS, text)
    shown = CARTS._repr_html_()  # in a notebook: a picture, and in its place the player where scripts run
    assert shown.count("<img") == 1 and "data:image/png;base64," in shown and shown.count("</script>") == 1
    assert gzip.decompress(packed_in(shown)).decode() == text
    assert not any(packed_in(shown)[4:8])  # no time stamp: running the notebook again does not change it


# ── pictures ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_still_picture_has_the_frames_of_every_scene_under_their_titles():
    frames = tuple(Frame((Label(0, 0.5, "rank 0"),), f"note {i}") for i in range(4))
    one = Scene("one", "title", frames, 6, {"cart": "#D55E00"}, "verdict", stills=(0, 1, 3))
    figure = still.draw([one, replace(one, stills=(-1,), first_wrong=1, title="bad")], "no wheel")
    assert [part.get_suptitle() for part in figure.subfigs] == ["title\nverdict", "bad\nBroken: no wheel.\nverdict"]
    notes = [[axes.get_title(loc="left") for axes in part.axes] for part in figure.subfigs]
    assert [[note for note in each if note] for each in notes] == [["note 0", "note 1", "note 3"], ["note 3"]]
    (part,) = CARTS.contact_sheet(CARTS.broken).subfigs  # skips no step
    notes = [axes.get_title(loc="left") for axes in part.axes if axes.get_title(loc="left")]
    assert [note.split()[0] for note in notes] == list("01234")


@pytest.mark.parametrize("height", [6, 13, pytest.param(23, marks=pytest.mark.long)])
@pytest.mark.parametrize("bug", ["", "in backward, a rank computes with its own keys instead of those that arrived"])
def test_on_a_slide_nothing_is_outside_or_over_something_else_and_words_are_large(height, bug):
    words = Label(0, height - 0.5, "a mile on its road"), Label(72, height - 0.5, "the other end", anchor="end")
    boxes = Box(0, 0, 72, height - 1, "#D55E00", "a cart"), Box(0, 0, 1.2, 1, "#0072B2", "7")
    frame = Frame((*boxes, *words), "on " * 25)
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
    said = " ".join(one.text for one in texts)
    assert "on on on" in said and (f"Broken: {bug}" in said) == bool(bug)


def test_a_gif_shows_each_frame_where_it_is(tmp_path):
    gif.save(CARTS, CARTS.scenes[0], tmp_path / "cart.gif")
    with Image.open(tmp_path / "cart.gif") as image:
        assert (image.format, image.info["loop"], image.n_frames) == ("GIF", 0, 5)  # 0: forever
        for step in range(5):
            image.seek(step)
            assert image.info["duration"] == (gif.LAST if step == 4 else gif.STEP)
            picture = np.array(image.convert("RGB")).astype(int)[:70]  # not the rows below, where the key is
            red = (np.abs(picture - (0xD5, 0x5E, 0)) < 12).all(axis=2).any(axis=0)
            assert np.flatnonzero(red).min() / image.width == pytest.approx((10 * step + 2) / 76, abs=0.02)


# ── characters ───────────────────────────────────────────────────────────────────────────────────────────────────────


def plain(*shapes, height: float = 1) -> list[str]:
    return [line.plain.rstrip() for line in lines_of(Frame(shapes, ""), height, colours=False)]


def test_shapes_as_characters():
    orange = "#D55E00"
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


def test_without_a_terminal_every_frame_is_printed_with_its_words():
    out = io.StringIO()
    print_animation(CARTS, CARTS.broken, Console(file=out, width=100))
    lines = [line.rstrip() for line in out.getvalue().splitlines() if line.strip()]
    assert lines[:3] == ["A cart, bad", f"broken: {carts.BUG}", "c cart   [ ] track   [ ] wind   _ road"]
    for step in range(5):
        place = lines.index(f"── {step} of 4 ──")
        words = {f"bad, step {step}", f"miles: {5 * step}"}
        assert lines[place + 1].startswith(f"mile {5 * step}") and words <= {*lines}
    also = 'also: --scene slow, --scene late, --scene "set by you"'
    assert lines[-3:] == ["bad is there.", "in wheel 2, by 7 ulps", also]
