"""A film as a still picture: for each scene the frames that it names, side by side, as matplotlib draws them."""

from minidist.show.palette import ink_on
from minidist.show.player.scene import THEME, WIDTH, Arrow, Box, Film, Frame, Label

LIGHT = dict(zip(THEME, ("#1A1A1A", "#B4B4B4", "#FFFFFF", "#C2002F", "#00734F"), strict=True))
PER_ROW = 3
LINE = 2  # a line is twice as high as a character is wide
INCHES = 0.078  # a character


def draw(film: Film):
    """A matplotlib Figure: the stills of every scene, the broken one's last, each scene under its title."""
    from matplotlib.figure import Figure

    rows = []  # (scene, its frames in this row, whether it is the scene's first row)
    for scene in (*film.scenes, film.broken):
        stills = [scene.frames[i] for i in scene.stills]
        rows += [(scene, stills[i : i + PER_ROW], i == 0) for i in range(0, len(stills), PER_ROW)]
    columns = max(len(frames) for _, frames, _ in rows)
    heights = [LINE * scene.height + (9 if first else 3) for scene, _, first in rows]
    figure = Figure(figsize=(columns * (WIDTH + 4) * INCHES, sum(heights) * INCHES), layout="constrained")
    grid = figure.subplots(len(rows), columns, squeeze=False, height_ratios=heights)
    for (scene, frames, first), panels in zip(rows, grid, strict=True):
        for place, axes in enumerate(panels):
            axes.axis("off")
            if place < len(frames):
                _frame(axes, frames[place], scene.height)
        if first:
            broken = f"broken: {film.bug}. " if scene is film.broken else ""
            panels[0].set_title(f"{broken}{scene.title}\n{scene.verdict}", loc="left", fontsize=9, wrap=True)
    keys = {name: colour for scene in film.scenes for name, colour in scene.key.items()} | dict(film.broken.key)
    _key(figure, keys)
    return figure


def _frame(axes, frame: Frame, height: float) -> None:
    axes.set_xlim(-0.5, WIDTH + 0.5)
    axes.set_ylim(LINE * height, -0.5)
    axes.set_aspect("equal")
    for shape in frame.shapes:
        {Box: _box, Arrow: _arrow, Label: _label}[type(shape)](axes, shape)


def _colour(name: str | None) -> str:
    return "none" if name is None else LIGHT.get(name, name)


def _box(axes, box: Box) -> None:
    from matplotlib.patches import Rectangle

    fill, edge = _colour(box.fill), _colour(box.outline)
    width = 0.6 if box.outline in (None, "faint") else 1.8
    axes.add_patch(Rectangle((box.x, LINE * box.y), box.w, LINE * box.h, facecolor=fill, edgecolor=edge, lw=width))
    if box.text:
        ink = LIGHT["ink"] if fill == "none" else ink_on(fill)
        text = box.text[: max(0, int(box.w / 0.9))]  # what fits
        axes.text(
            box.x + box.w / 2, LINE * (box.y + box.h / 2), text, ha="center", va="center", fontsize=6.5, color=ink
        )


def _arrow(axes, arrow: Arrow) -> None:
    length = max(1e-9, ((arrow.to_x - arrow.x) ** 2 + (LINE * (arrow.to_y - arrow.y)) ** 2) ** 0.5)
    side = 1 if arrow.to_y < arrow.y else -1  # matplotlib bends to the left of the way, on a picture upside down
    axes.annotate(
        "",
        xy=(arrow.to_x, LINE * arrow.to_y),
        xytext=(arrow.x, LINE * arrow.y),
        arrowprops={
            "arrowstyle": "-|>",
            "color": _colour(arrow.colour),
            "linewidth": 1.4,
            "shrinkA": 0,
            "shrinkB": 0,
            "mutation_scale": 9,
            "connectionstyle": f"arc3,rad={side * 2 * arrow.bend / length}",
        },
    )


def _label(axes, label: Label) -> None:
    side = {"start": "left", "middle": "center", "end": "right"}[label.anchor]
    colour = "#6A6A6A" if label.colour == "faint" else _colour(label.colour)  # a text must be read
    axes.text(label.x, LINE * label.y, label.text, ha=side, va="center", fontsize=6.5, color=colour)


def _key(figure, keys: dict[str, str]) -> None:
    from matplotlib.patches import Patch

    if keys:
        handles = [Patch(color=_colour(colour), label=name) for name, colour in keys.items()]
        figure.legend(
            handles=handles, loc="outside lower center", ncols=min(6, len(handles)), frameon=False, fontsize=8
        )


def save(film: Film, path) -> None:
    """Write the picture as a PNG file."""
    draw(film).savefig(path, dpi=150)
