"""Scenes as a self-contained page for a browser, with nothing to download.

web/ has the page, its style and the player. Here the scenes become the JSON in the page: for each scene its shapes,
each once with the first and the last frame that shows it, and for each frame its moment, note, facts and lines of code.
A scene with dials has a variant for each of their positions; the page shows the one where they are. The variants are
much alike, so each different shape is written once (tables.py), and gzip packs the JSON; the browser unpacks it.
"""

import base64
import gzip
import hashlib
import html
import json
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from string import Template

from minidist.show.notebook import png
from minidist.show.player.scene import USUAL_SPEED, Box, Curve, Label, Scene, Shape
from minidist.show.player.tables import tabled

WEB = Path(__file__).parent / "web"
SCRIPTS = ("unpack", "draw", "pane", "player", "questions", "panels", "controls")  # in this order, one page's script
SPEEDS = range(1, 10)
FALLBACK_DPI = 56  # of the picture that a notebook shows until the player runs
NO_LINKS: Mapping[str, str] = {}


def whole(
    title: str, scenes: Sequence[Scene], bug: str, broken: int = 1, first: int = 0, links: Mapping[str, str] = NO_LINKS
) -> str:
    """The page.

    Args:
        scenes: the correct scenes; then the broken ones, ``broken`` in number.
        first: the number of the scene that it begins with.
        links: "previous", "next" and "gallery" -> other pages, where there are any.
    """
    return Template(_file("page.html")).substitute(
        TITLE=html.escape(title),
        STYLE=_file("style.css"),
        SCRIPT="\n".join(_file(f"{name}.js") for name in SCRIPTS),
        SPEEDS="".join(f"<option{' selected' * (speed == USUAL_SPEED)}>{speed}</option>" for speed in SPEEDS),
        ANIMATION=packed(json.dumps(tabled(as_dict(scenes, bug, broken, first, links)), separators=(",", ":"))),
    )


def in_notebook(page: str, title: str, picture, lines: float) -> str:
    """What a notebook shows: the player in a frame of its own; without scripts, as on GitHub, a still picture.

    Args:
        page: a page made by ``whole``.
        picture: a matplotlib Figure.
        lines: the height of the tallest scene.
    """
    return Template(_file("notebook.html")).substitute(
        NAME=hashlib.sha256(page.encode()).hexdigest()[:12],
        TITLE=html.escape(title, quote=True),
        PICTURE=base64.b64encode(png(picture, FALLBACK_DPI)).decode(),
        LINES=f"{lines:g}",
        PAGE=packed(page),
    )


def packed(text: str) -> str:
    """A text compressed by gzip, in base64. The same text gives the same letters: there is no time stamp."""
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def as_dict(
    scenes: Sequence[Scene], bug: str, broken: int = 1, first: int = 0, links: Mapping[str, str] = NO_LINKS
) -> dict:
    """The scenes in the form that the player reads; arguments as in ``whole``."""
    correct = len(scenes) - broken
    made = [_scene(scene) | {"broken": number >= correct} for number, scene in enumerate(scenes)]
    return {"bug": bug, "scenes": made, "first": first, "links": dict(links)}


def _scene(scene: Scene) -> dict:
    """A scene, and its variants, each with what it says of itself."""
    return {
        "dials": [{"name": dial.name, "values": dial.values, "start": dial.start} for dial in scene.dials],
        "variants": [_scene(one) | {"broken": False} for one in scene.variants],
        "times": [number if frame.at is None else _short(frame.at) for number, frame in enumerate(scene.frames)],
        "lines": [frame.lines for frame in scene.frames],
        "code": scene.code,
        "details": scene.details,
        "questions": [asdict(question) for question in scene.questions],
        "cues": [asdict(cue) for cue in scene.cues],
        "name": scene.name,
        "title": scene.title,
        "verdict": scene.verdict,
        "height": scene.height,
        "first_wrong": scene.first_wrong,
        "twin": scene.twin,
        "bug": scene.bug,
        "key": [[name, colour, mark is not None] for name, colour, mark in scene.marks()],
        "shapes": _lasting([frame.shapes for frame in scene.frames]),
        "notes": [frame.note for frame in scene.frames],
        "facts": [list(frame.facts.items()) for frame in scene.frames],
    }


def _lasting(frames: Sequence[Sequence[Shape]]) -> list[list]:
    """Every shape once, with the first and the last frame that shows it, from the bottom up.

    A shape lasts if the next frame shows it too, above the same shapes. A new shape is placed directly above the
    lasting shape before it, and below those that were placed there earlier; its sort key says so.
    """
    seen: list[tuple] = []  # in the previous frame: (key, shape, first)
    ended: list[tuple] = []  # (key, shape, first, last)
    for number, shapes in enumerate(frames):
        places = defaultdict(deque)  # of each shape in the previous frame, from the bottom up
        for place, (_, shape, _) in enumerate(seen):
            places[shape].append(place)
        now, lasted, below, least = [], set(), (), 0
        for count, shape in enumerate(shapes):
            while places[shape] and places[shape][0] < least:
                places[shape].popleft()
            if places[shape]:
                place = places[shape].popleft()
                now.append(seen[place])
                lasted.add(place)
                below, least = seen[place][0], place + 1
            else:
                now.append(((*below, -number, count), shape, number))
        ended += [(*entry, number - 1) for place, entry in enumerate(seen) if place not in lasted]
        seen = now
    ended += [(*entry, len(frames) - 1) for entry in seen]
    return [_shape(shape, first, last) for _, shape, first, last in sorted(ended, key=lambda entry: entry[0])]


def _shape(shape: Shape, first: int, last: int) -> list:
    if isinstance(shape, Box):
        numbers = (shape.x, shape.y, shape.w, shape.h)
        return ["box", first, last, *map(_short, numbers), shape.fill, shape.text, shape.outline, shape.id]
    if isinstance(shape, Label):
        return ["label", first, last, _short(shape.x), _short(shape.y), shape.text, shape.colour, shape.anchor]
    if isinstance(shape, Curve):
        points = [[_short(x), _short(y)] for x, y in shape.points]
        return ["curve", first, last, points, shape.colour, shape.width]
    numbers = (shape.x, shape.y, shape.to_x, shape.to_y)
    return ["arrow", first, last, *map(_short, numbers), shape.colour, _short(shape.bend)]


def _short(number: float) -> float:
    return round(float(number), 3)


@cache
def _file(name: str) -> str:
    return (WEB / name).read_text(encoding="utf-8")
