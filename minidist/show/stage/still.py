"""Moments of a story as pictures, by Matplotlib: a slide of one, a sheet of all beats, a GIF of the running clock."""

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill

import numpy as np

from minidist.show.palette import PAPER, ink_on
from minidist.show.stage.marks import HEIGHT, WIDTH, drawn
from minidist.show.stage.story import Story

INCHES = 13.333  # the width of a slide of 16:9
POINTS = 72 * INCHES / WIDTH  # per pixel of the stage
PER_ROW = 3
FRAMES = 12  # of a GIF, per second
PAUSE = 1.5  # seconds at every beat of a GIF
LINE = 82  # characters before a sentence wraps
COLOURS = 64  # of a GIF, shared by all frames


def draw(axes, story: Story, moment: float, points: float = POINTS) -> None:
    """Draw the stage at a moment into Matplotlib axes. points: width of a pixel of the stage there, in points."""
    from matplotlib.patches import FancyBboxPatch, PathPatch, Polygon, Rectangle
    from matplotlib.path import Path as Way

    axes.set(xlim=(0, WIDTH), ylim=(HEIGHT, 0), aspect="equal")
    axes.axis("off")
    for order, mark in enumerate(story.marks):
        now, still = mark.at(moment), mark.still
        if not now["opacity"]:
            continue
        colour, look = PAPER.get(now["fill"]) or now["fill"], {"alpha": now["opacity"], "zorder": order}
        if mark.kind == "text":
            weight = "bold" if still.get("weight", 500) > 600 else "normal"
            at = {"start": "left", "middle": "center", "end": "right"}[still["anchor"]]
            axes.text(
                now["x"],
                now["y"],
                still["text"],
                ha=at,
                va="center",
                fontsize=still["size"] * points * 0.92,
                color=colour,
                weight=weight,
                **look,
            )
        elif mark.kind == "line":
            way = drawn(mark, now)
            axes.add_patch(PathPatch(Way(way), fill=False, edgecolor=colour, linewidth=still["width"] * points, **look))
            if "head" in still and now["turn"] == 1:
                axes.add_patch(Polygon([(x + now["x"], y + now["y"]) for x, y in still["head"]], color=colour, **look))
        else:
            edge = {"linewidth": 0}
            if stroke := still.get("stroke"):
                edge = {"linewidth": still.get("width", 3) * points, "edgecolor": PAPER.get(stroke, stroke)}
            corner, size = (now["x"], now["y"]), (now["w"], now["h"])
            if (words := still.get("text")) and now["w"] > still["size"] * len(words) / 2:
                middle = corner[0] + size[0] / 2, corner[1] + size[1] / 2
                axes.text(
                    *middle,
                    words,
                    ha="center",
                    va="center",
                    fontsize=still["size"] * points * 0.92,
                    color=ink_on(colour) if colour.startswith("#") else PAPER["ink"],
                    **look | {"zorder": order + 0.5},
                )
            if still.get("round"):
                shape = f"round,pad=0,rounding_size={still['round']}"
                axes.add_patch(FancyBboxPatch(corner, *size, boxstyle=shape, facecolor=colour, **edge, **look))
            else:
                axes.add_patch(Rectangle(corner, *size, facecolor=colour, **edge, **look))


def slide(story: Story, beat: int):
    """Return a 16:9 matplotlib Figure with the question above and the sentence of the beat below.

    Raises:
        ValueError: if the story has no such beat.
    """
    if not 0 <= beat < len(story.beats):
        raise ValueError(f"scene {story.name!r} has the beats 0 to {len(story.beats) - 1}, and no beat {beat}")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(INCHES, 7.5))
    _compose(figure, story, beat, story.beats[beat].at)
    return figure


def sheet(stories: Sequence[Story], most: int | None = None):
    """Return a matplotlib Figure of each story's beats under its question: all, or ``most`` evenly spaced ones."""
    from matplotlib.figure import Figure

    chosen = []
    for story in stories:
        last, count = len(story.beats) - 1, min(most or len(story.beats), len(story.beats))
        chosen.append(sorted({round(last * i / max(1, count - 1)) for i in range(count)}))
    rows = [-(-len(numbers) // PER_ROW) for numbers in chosen]
    width = INCHES / PER_ROW
    named = len({story.name for story in stories}) > 1
    explained = sum(bool(story.shown_key) for story in stories)
    high = sum(rows) * (width * HEIGHT / WIDTH + 0.5) + 0.4 * len(stories) + 0.4 * explained
    figure = Figure(figsize=(INCHES, high), layout="constrained")
    parts = figure.subfigures(len(stories), 1, height_ratios=rows, squeeze=False)[:, 0]
    for part, story, numbers, count in zip(parts, stories, chosen, rows, strict=True):
        part.suptitle(f"{story.name}: " * named + _heading(story), fontsize=14, weight="bold")
        _explain(part, story, 9, "outside lower center")
        panels = part.subplots(count, PER_ROW, squeeze=False).flat
        for axes in panels:
            axes.axis("off")
        for axes, beat in zip(part.axes, numbers, strict=False):
            draw(axes, story, story.beats[beat].at, POINTS / PER_ROW)
            axes.set_title(fill(_says(story, beat), 60), fontsize=9)
    return figure


def gif(story: Story, path: Path) -> None:
    """Write the story as an animated picture in an endless loop that rests at every beat."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from PIL import Image

    pictures, rests = [], []
    for number, beat in enumerate(story.beats):
        after = story.beats[number + 1].at if number + 1 < len(story.beats) else beat.at
        for step in range(max(1, round((after - beat.at) * FRAMES))):
            figure = Figure(figsize=(8, 4.5), dpi=100)
            _compose(figure, story, number, beat.at + step / FRAMES)
            canvas = FigureCanvasAgg(figure)
            canvas.draw()
            pictures.append(Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB"))
            rests.append(1 / FRAMES if step else PAUSE)
    rests[-1] *= 2
    palette = Image.fromarray(np.concatenate([np.asarray(one)[::4, ::4] for one in pictures])).quantize(COLOURS)
    first, *others = [one.quantize(palette=palette, dither=0) for one in pictures]  # dithering would flicker
    times = [round(1000 * rest) for rest in rests]
    first.save(path, "GIF", save_all=True, append_images=others, duration=times, loop=0, optimize=True)


def _compose(figure, story: Story, beat: int, moment: float) -> None:
    """Draw a moment in a 16:9 figure of any size: the question above, the beat's sentence and the legend below."""
    scale = figure.get_figwidth() / INCHES
    place = (0, 0.17, 1, 0.76) if story.shown_key else (0, 0.1, 1, 600 / 720)  # left, bottom, width, height
    draw(figure.add_axes(place), story, moment, POINTS * scale)
    _explain(figure, story, 18 * scale)
    title, style = _heading(story), {"ha": "center", "va": "center", "color": PAPER["ink"]}
    figure.text(0.5, 0.96, title, fontsize=26 * scale * min(1, 58 / len(title)), weight="bold", **style)
    figure.text(0.5, 0.05, fill(_says(story, beat), LINE), fontsize=20 * scale, **style)


def _explain(figure, story: Story, size: float, where: str = "lower center") -> None:
    """Draw a legend of the story's colours below the stage, if it has a key."""
    from matplotlib.patches import Patch

    if key := story.shown_key:
        colours = [Patch(color=PAPER.get(colour, colour)) for colour in key.values()]
        below = {} if where.startswith("outside") else {"bbox_to_anchor": (0.5, 0.087)}
        figure.legend(colours, key, loc=where, ncols=len(colours), fontsize=size, frameon=False, **below)


def _heading(story: Story) -> str:
    return f"Broken: {story.broken}" if story.broken else story.question


def _says(story: Story, beat: int) -> str:
    last = beat == len(story.beats) - 1
    return f"{story.beats[beat].says} {story.verdict}".strip() if last else story.beats[beat].says
