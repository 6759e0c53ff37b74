"""One step as a slide, and all steps of a scene in one picture."""

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from minidist.show.player import slide
from minidist.show.player.animation import Animation
from minidist.show.player.condensed import Condensed
from minidist.show.player.scene import Box, Frame, Label, Scene

LONG = "Each rank sends the chunk that it has just added to its right neighbour, and adds the one that comes."
KEY = {f"a thing of kind {i}": colour for i, colour in enumerate(("#D55E00", "#0072B2", "#009E73", "#CC79A7"))}


def a_scene(height: float, frames: int = 5, key: dict = KEY, name: str = "one") -> Scene:
    shapes = (
        Box(0, 0, 72, height - 1, "#D55E00", "a cart"),
        Box(0, 0, 1.2, 1, "#0072B2", "7"),
        Label(9, 0, ""),
        Label(0, height - 0.5, "a mile on its road"),
        Label(72, height - 0.5, "the other end", anchor="end"),
    )
    shown = tuple(Frame(shapes, f"Step {i}: {LONG}", {"miles": str(i)}) for i in range(frames))
    return Scene(
        name, f"A cart that goes on and on, {height} lines high, of a title", shown, height, key, "It is there."
    )


def words(figure) -> list[Condensed]:
    return figure.findobj(Condensed)


def boxes(figure) -> dict[str, tuple[float, float, float, float]]:
    """Where the picture, the words and the key are: left, bottom, right, top as fractions of the slide."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    width, height = canvas.get_width_height()
    parts = {"picture": figure.axes[0].get_window_extent()}
    parts |= {one.text: one.get_window_extent() for one in words(figure) if one not in figure.axes[0].get_children()}
    return {name: (one.x0 / width, one.y0 / height, one.x1 / width, one.y1 / height) for name, one in parts.items()}


def overlap(one, other) -> bool:
    return (
        min(one[2], other[2]) - max(one[0], other[0]) > 0.002 and min(one[3], other[3]) - max(one[1], other[1]) > 0.002
    )


@pytest.mark.long
@pytest.mark.parametrize(
    "bug", ["", "in backward, a rank computes with its own keys instead of those that have arrived"]
)
@pytest.mark.parametrize("step", [1, 4])
@pytest.mark.parametrize("height", [6, 13, 23])
def test_nothing_is_outside_of_a_slide_or_over_something_else(height, step, bug):
    figure = slide.draw(a_scene(height), step, bug)
    assert tuple(figure.get_size_inches()) == slide.SIZE
    parts = boxes(figure)
    assert all(min(box) >= 0 and max(box) <= 1.002 for box in parts.values())
    names = list(parts)
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    assert [(a, b) for a, b in pairs if overlap(parts[a], parts[b])] == []
    left, bottom, right, top = parts["picture"]
    assert max(right - left, top - bottom) > 0.5


def test_all_words_are_of_at_least_24_points():
    figure = slide.draw(a_scene(13), 4, "no wheel")
    assert {one.size for one in words(figure)} == {24, 28} and not (figure.texts or figure.axes[0].texts)
    texts = [one.text for one in words(figure)]
    assert {*KEY, "a cart", "7", "a mile on its road"} <= set(texts)
    assert all(part in " ".join(texts) for part in (LONG, "Broken: no wheel", "It is there."))
    assert "It is there." not in " ".join(one.text for one in words(slide.draw(a_scene(13), 3)))


def test_a_capital_is_as_high_as_in_type_of_24_points():
    figure = slide.draw(a_scene(13), 0)
    FigureCanvasAgg(figure).draw()
    (seven,) = [one for one in words(figure) if one.text == "7"]
    assert seven.get_window_extent().height / figure.dpi == pytest.approx(0.73 * 24 / 72, rel=0.02)  # DejaVu's


@pytest.mark.parametrize("height", [6, 13, 23])
def test_words_in_the_picture_are_narrowed_to_their_places(height):
    figure = slide.draw(a_scene(height), 0)
    FigureCanvasAgg(figure).draw()
    axes = figure.axes[0]
    across = {}
    for one in words(figure):
        extent = one.get_window_extent().transformed(axes.transData.inverted())
        across[one.text] = min(extent.x0, extent.x1), max(extent.x0, extent.x1)
    assert across["7"][0] >= -0.01 and across["7"][1] <= 1.21
    assert across["a mile on its road"][0] == pytest.approx(0, abs=0.01)
    assert across["a mile on its road"][1] <= 18.01
    assert across["the other end"][1] == pytest.approx(72, abs=0.01) and across["the other end"][0] >= 59 - 0.01
    assert {one.narrow for one in words(figure) if one.text == "a cart"} == {1}  # there is room for it


def test_a_picture_of_many_lines_leaves_words_around_it_out_but_not_the_note():
    flat, tall = (" ".join(one.text for one in words(slide.draw(a_scene(height), 4))) for height in (10, 20))
    assert "It is there." in flat and "It is there." not in tall
    assert all(name in flat and name not in tall for name in KEY) and LONG in flat and LONG in tall


def test_a_step_that_does_not_exist_is_refused_with_those_that_do():
    scene = a_scene(6, 7)
    animation = Animation("cart", "A cart", (scene,), a_scene(6, name="bad"), "no wheel")
    for step in (-1, 7):
        with pytest.raises(ValueError, match=f"scene 'one' of cart has the steps 0 to 6, and no step {step}"):
            animation.slide(scene, step)


def test_a_contact_sheet_skips_no_step():
    broken = a_scene(6, 11, name="bad")
    animation = Animation("cart", "A cart", (a_scene(6),), a_scene(6), "no wheel", also_broken=(broken,))
    (part,) = animation.contact_sheet(broken).subfigs
    notes = [axes.get_title(loc="left") for axes in part.axes if axes.get_title(loc="left")]
    assert [note.split()[0] for note in notes] == [str(step) for step in range(11)]
    assert "Broken: no wheel" in part.get_suptitle()
    assert "Broken" not in animation.contact_sheet(animation.scenes[0]).subfigs[0].get_suptitle()
