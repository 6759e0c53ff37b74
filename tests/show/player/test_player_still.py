"""Scenes as a still picture."""

import pytest
from matplotlib.patches import Rectangle
from matplotlib.text import Annotation

from minidist.show.player import still
from minidist.show.player.scene import Arrow, Box, Frame, Label, Scene


def a_scene(name: str, stills: tuple[int, ...]) -> Scene:
    frames = []
    for i in range(6):
        shapes = Box(8 * i, 1, 8, 1, "#D55E00", "a text that is too long"), Label(0, 0.5, "rank 0", "faint")
        frames.append(Frame((*shapes, *[Arrow(0, 0, 9, 2, "wrong")] * (i % 2)), f"note {i}"))
    return Scene(name, f"title of {name}", tuple(frames), 3, {"cart": "#D55E00"}, f"verdict of {name}", stills=stills)


@pytest.fixture(scope="module")
def figure():
    return still.draw([a_scene("one", (0, 1, 2, 5)), a_scene("two", (-1,)), a_scene("bad", (3,))], "no wheel")


def test_every_scene_has_its_stills_under_its_title(figure):
    titles = [part.get_suptitle() for part in figure.subfigs]
    assert titles == ["title of one\nverdict of one", "title of two\nverdict of two",
                      "title of bad\nBroken: no wheel.\nverdict of bad"]  # fmt: skip
    notes = [[axes.get_title(loc="left") for axes in part.axes] for part in figure.subfigs]
    assert notes == [["note 0", "note 1", "note 2", "note 5", "", ""], ["note 5"], ["note 3"]]


def test_shapes_are_where_the_frame_says(figure):
    third = figure.subfigs[0].axes[2]
    (box,) = [p for p in third.patches if isinstance(p, Rectangle)]
    assert (box.get_xy(), box.get_width(), box.get_height()) == ((16, 2), 8, 2)  # a line is two characters high
    assert [text.get_text() for text in third.texts] == ["a text t", "rank 0"]
    (arrow,) = [text for text in figure.subfigs[2].axes[0].texts if isinstance(text, Annotation)]
    assert (arrow.xyann, arrow.xy) == ((0, 0), (9, 4))


def test_an_arrow_bends_to_the_right_of_the_straight_line():
    shapes = Arrow(20, 1, 20, 5, bend=5), Arrow(50, 5, 50, 1, bend=5)
    scene = Scene("bent", "Down, and up again", (Frame(shapes, "both"),), 6)
    figure = still.draw([scene], "none")
    figure.draw_without_rendering()
    axes = figure.subfigs[0].axes[0]
    arrows = [text.arrow_patch for text in axes.texts if isinstance(text, Annotation)]
    sides = [arrow.get_path().transformed(axes.transData.inverted()).get_extents() for arrow in arrows]
    for x, side in zip((20, 50), sides, strict=True):
        assert side.x1 == pytest.approx(x + 5, abs=0.5) and side.x0 > x - 2  # its head is as broad


def test_the_key_names_every_colour_once(figure):
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["cart"]
