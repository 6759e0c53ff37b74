"""Scenes as a still picture: the frames that each scene selects, drawn by matplotlib."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from textwrap import fill

from minidist.show.palette import ink_on
from minidist.show.player.scene import THEME, WIDTH, Arrow, Box, Curve, Frame, Label, Scene

LIGHT = dict(zip(THEME, ("#1A1A1A", "#B4B4B4", "#FFFFFF", "#C2002F", "#00734F"), strict=True))
FAINT_TEXT = "#6A6A6A"  # for texts, which must be readable
INCHES = 11.0  # the width of the picture
PER_ROW = 3  # frames; a single one takes the full width
CROWDED = 16  # lines: a taller scene gets two frames per row
ORDER = 3  # the z-order of all shapes: later ones cover earlier ones, texts as well as boxes
LINE = 2  # a line is twice as high as a character is wide


def draw(scenes: Sequence[Scene], bug: str, broken: int = 1):
    """A matplotlib Figure: the stills of every scene under its title. The last ``broken`` scenes have the bug."""
    from matplotlib.figure import Figure

    correct = len(scenes) - broken
    headings = [_heading(scene, scene.bug or bug if number >= correct else "") for number, scene in enumerate(scenes)]
    heights = [_height(scene, heading) for scene, heading in zip(scenes, headings, strict=True)]
    figure = Figure(figsize=(INCHES, sum(heights) + 0.3), layout="constrained")
    parts = figure.subfigures(len(scenes), 1, height_ratios=heights, squeeze=False)[:, 0]
    for scene, heading, part in zip(scenes, headings, parts, strict=True):
        _scene(part, scene, heading)
    draw_key(figure, {name: colour for scene in scenes for name, colour in scene.key.items()})
    return figure


def contact_sheet(scene: Scene, bug: str = ""):
    """A matplotlib Figure of every frame of a scene, each with its number; ``bug`` is what was injected, if any."""
    numbered = tuple(replace(frame, note=f"{i}  {frame.note}") for i, frame in enumerate(scene.frames))
    return draw([replace(scene, frames=numbered, stills=tuple(range(len(numbered))))], bug, broken=int(bool(bug)))


def _heading(scene: Scene, bug: str) -> str:
    broken = f"Broken: {bug}." if bug else ""
    return "\n".join(fill(text, 150) for text in (scene.title, broken, scene.verdict) if text)


def _columns(scene: Scene) -> int:
    return min(PER_ROW if scene.height <= CROWDED else 2, len(scene.stills))


def _character(scene: Scene) -> float:
    """The width of a character, in inches."""
    return INCHES / _columns(scene) / (WIDTH + 4)


def _note(scene: Scene, number: int) -> str:
    return fill(scene.frames[number].note, 150 // _columns(scene))


def _height(scene: Scene, heading: str) -> float:
    rows = -(-len(scene.stills) // _columns(scene))
    note = 1 + max(_note(scene, number).count("\n") for number in scene.stills)
    return rows * (LINE * scene.height * _character(scene) + 0.16 * note + 0.1) + 0.17 * (heading.count("\n") + 2)


def _scene(part, scene: Scene, heading: str) -> None:
    columns = _columns(scene)
    panels = list(part.subplots(-(-len(scene.stills) // columns), columns, squeeze=False).flat)
    part.suptitle(heading, x=0.01, ha="left", fontsize=9)
    for axes in panels:
        axes.axis("off")
    for axes, number in zip(panels, scene.stills, strict=False):
        draw_frame(axes, scene.frames[number], scene.height, type_size(_character(scene)))
        axes.set_title(_note(scene, number), loc="left", fontsize=8, color=FAINT_TEXT)


def type_size(character: float) -> float:
    """The type size in points, 10 at most, at which a digit is as wide as a character of ``character`` inches."""
    return min(10.0, 72 * 1.55 * character)


def draw_frame(axes, frame: Frame, height: float, size: float, write: Callable | None = None) -> None:
    """Draw a frame of a scene.

    Args:
        height: height of the scene, in lines.
        size: the type size in points.
        write: writes a text instead: (axes, (x, y), text, size, room in characters, anchor, colour).
    """
    axes.set_xlim(-0.5, WIDTH + 0.5)
    axes.set_ylim(LINE * height, -0.5)
    axes.set_aspect("equal")
    for shape in frame.shapes:
        if isinstance(shape, Arrow):
            _arrow(axes, shape, size)
        elif isinstance(shape, Curve):
            _curve(axes, shape)
        else:
            {Box: _box, Label: _label}[type(shape)](axes, shape, size, write or _write)


def _colour(name: str | None) -> str:
    return "none" if name is None else LIGHT.get(name, name)


def _box(axes, box: Box, size: float, write: Callable) -> None:
    from matplotlib.patches import Rectangle

    face, edge = _colour(box.fill), _colour(box.outline)
    width = 0.6 if box.outline in (None, "faint") else 1.8
    axes.add_patch(
        Rectangle((box.x, LINE * box.y), box.w, LINE * box.h, facecolor=face, edgecolor=edge, lw=width, zorder=ORDER)
    )
    if text := box.text[: int(box.w + 0.5)]:
        ink = LIGHT["ink"] if face == "none" else ink_on(face)
        place = box.x + box.w / 2, LINE * (box.y + box.h / 2)
        write(axes, place, text, size, box.w, "middle", ink)


def _arrow(axes, arrow: Arrow, size: float) -> None:
    from matplotlib.patheffects import Normal, Stroke

    length = max(1e-9, ((arrow.to_x - arrow.x) ** 2 + (LINE * (arrow.to_y - arrow.y)) ** 2) ** 0.5)
    side = 1 if arrow.to_y < arrow.y else -1  # matplotlib bends to the left of the direction, and y is inverted here
    axes.annotate(
        "",
        zorder=ORDER,
        xy=(arrow.to_x, LINE * arrow.to_y),
        xytext=(arrow.x, LINE * arrow.y),
        arrowprops={
            "arrowstyle": "-|>",
            "color": _colour(arrow.colour),
            "linewidth": 1.4,
            "shrinkA": 0,
            "shrinkB": 0,
            "mutation_scale": 1.4 * size,
            "connectionstyle": f"arc3,rad={side * 2 * arrow.bend / length}",
            "path_effects": [Stroke(linewidth=3.4, foreground=LIGHT["paper"]), Normal()],  # a halo
        },
    )


def _curve(axes, curve: Curve) -> None:
    x, y = zip(*curve.points, strict=True)
    axes.plot(x, [LINE * one for one in y], color=_colour(curve.colour), lw=curve.width / 2, zorder=ORDER)


def _label(axes, label: Label, size: float, write: Callable) -> None:
    colour = FAINT_TEXT if label.colour == "faint" else _colour(label.colour)
    if label.text.strip():
        write(axes, (label.x, LINE * label.y), label.text, size, len(label.text), label.anchor, colour)


def _write(axes, place: tuple[float, float], text: str, size: float, room: float, anchor: str, colour: str) -> None:
    side = {"start": "left", "middle": "center", "end": "right"}[anchor]
    axes.text(*place, text, ha=side, va="center", fontsize=size, color=colour, zorder=ORDER)


def draw_key(figure, keys: Mapping[str, str], loc: str = "outside lower center") -> None:
    """Draw the legend: the name of each colour."""
    from matplotlib.patches import Patch

    if keys:
        handles = [Patch(color=_colour(colour), label=name) for name, colour in keys.items()]
        columns = min(6, len(keys))
        figure.legend(handles=handles, loc=loc, ncols=columns, frameon=False, fontsize=8)
