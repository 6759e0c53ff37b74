"""Scenes as a self-contained page for a browser, with nothing to download.

page.html is the page, player.css its style, and player.js the player. Here the scenes become the JSON in the page: for
each scene its shapes, each once with the first and the last frame that shows it, and for each frame its note and facts.
The last scene is the broken one.
"""

import base64
import gzip
import hashlib
import html
import json
from collections import defaultdict, deque
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from string import Template

from minidist.show.notebook import png
from minidist.show.player import still
from minidist.show.player.scene import USUAL_SPEED, Box, Label, Scene, Shape

HERE = Path(__file__).parent
SPEEDS = range(1, 10)
FALLBACK_DPI = 56  # of the picture that a notebook shows until the player runs


def whole(title: str, scenes: Sequence[Scene], bug: str, first: int = 0) -> str:
    """The page. It begins with scene number ``first``."""
    return Template(_file("page.html")).substitute(
        TITLE=html.escape(title),
        STYLE=_file("player.css"),
        SCRIPT=_file("player.js"),
        SPEEDS="".join(f"<option{' selected' * (speed == USUAL_SPEED)}>{speed}</option>" for speed in SPEEDS),
        ANIMATION=_json(as_dict(scenes, bug, first)),
    )


def in_notebook(title: str, scenes: Sequence[Scene], bug: str) -> str:
    """What a notebook shows: the player in a frame of its own; without scripts, as on GitHub, the still picture."""
    page = gzip.compress(whole(title, scenes, bug).encode(), mtime=0)  # a tenth, in a notebook that is committed
    return Template(_file("notebook.html")).substitute(
        NAME=hashlib.sha256(page).hexdigest()[:12],
        TITLE=html.escape(title, quote=True),
        PICTURE=base64.b64encode(png(still.draw(scenes, bug), FALLBACK_DPI)).decode(),
        LINES=f"{max(scene.height for scene in scenes):g}",
        PAGE=base64.b64encode(page).decode(),
    )


def as_dict(scenes: Sequence[Scene], bug: str, first: int = 0) -> dict:
    """The scenes in the form that the player reads."""
    return {"bug": bug, "scenes": [_scene(scene) for scene in scenes], "first": first}


def _scene(scene: Scene) -> dict:
    return {
        "name": scene.name,
        "title": scene.title,
        "verdict": scene.verdict,
        "height": scene.height,
        "first_wrong": scene.first_wrong,
        "twin": scene.twin,
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
        return ["box", first, last, *map(_short, numbers), shape.fill, shape.text, shape.outline]
    if isinstance(shape, Label):
        return ["label", first, last, _short(shape.x), _short(shape.y), shape.text, shape.colour, shape.anchor]
    numbers = (shape.x, shape.y, shape.to_x, shape.to_y)
    return ["arrow", first, last, *map(_short, numbers), shape.colour, _short(shape.bend)]


def _short(number: float) -> float:
    return round(float(number), 3)


def _json(value) -> str:
    """JSON for the inside of a script element, which ends at the first ``</``."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("</", "<\\/")


@cache
def _file(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")
