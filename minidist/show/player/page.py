"""An animation as a page for a browser: everything in one file, nothing to download.

page.html is the page, player.css how it looks, player.js what plays it. Here the animation becomes the JSON in it:
of each scene its shapes once, with the first and the last frame in which each is seen, and for each frame its note and
its facts. The broken scene is the last one.
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

from minidist.show.player.scene import USUAL_SPEED, Animation, Box, Label, Scene, Shape

HERE = Path(__file__).parent
SPEEDS = range(1, 10)
FALLBACK_DPI = 56  # of the picture that stands in a notebook until the player runs


def whole(animation: Animation, first: Scene | None = None) -> str:
    """The page, beginning with a scene: the first one, if not said."""
    return Template(_file("page.html")).substitute(
        TITLE=html.escape(animation.title),
        STYLE=_file("player.css"),
        SCRIPT=_file("player.js"),
        SPEEDS="".join(f"<option{' selected' * (speed == USUAL_SPEED)}>{speed}</option>" for speed in SPEEDS),
        FILM=_json(as_dict(animation, first)),
    )


def in_notebook(animation: Animation) -> str:
    """What a notebook shows: the player in a frame of its own; and where no script may run, as in an untrusted
    notebook or on GitHub, the still picture."""
    from minidist.show.notebook import png

    page = gzip.compress(whole(animation).encode(), mtime=0)  # a tenth: notebooks are committed with their outputs
    return Template(_file("notebook.html")).substitute(
        NAME=hashlib.sha256(page).hexdigest()[:12],
        TITLE=html.escape(animation.title, quote=True),
        PICTURE=base64.b64encode(png(animation.figure(), FALLBACK_DPI)).decode(),
        LINES=f"{max(scene.height for scene in (*animation.scenes, animation.broken)):g}",
        PAGE=base64.b64encode(page).decode(),
    )


def as_dict(animation: Animation, first: Scene | None = None) -> dict:
    """The animation as the player reads it."""
    scenes = [*animation.scenes, animation.broken]
    number = next((i for i, scene in enumerate(scenes) if scene is first), 0)
    return {"bug": animation.bug, "scenes": [_scene(scene) for scene in scenes], "first": number}


def _scene(scene: Scene) -> dict:
    return {
        "name": scene.name,
        "title": scene.title,
        "verdict": scene.verdict,
        "height": scene.height,
        "parts_at": scene.parts_at,
        "key": [[name, colour, mark is not None] for name, colour, mark in scene.marks()],
        "shapes": _lasting([frame.shapes for frame in scene.frames]),
        "notes": [frame.note for frame in scene.frames],
        "facts": [list(frame.facts.items()) for frame in scene.frames],
    }


def _lasting(frames: Sequence[Sequence[Shape]]) -> list[list]:
    """Every shape once, with the first and the last frame in which it is seen, those below first.

    A shape that is seen in the next frame too, above the same ones, lasts. One that is new lies right above the lasting
    one before it, and below whatever came to lie there earlier: that is what its key in the order of all says.
    """
    seen: list[tuple] = []  # in the frame before: (key, shape, first)
    ended: list[tuple] = []  # (key, shape, first, last)
    for number, shapes in enumerate(frames):
        places = defaultdict(deque)  # of each shape of the frame before, from below
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


def _json(thing) -> str:
    """For the inside of a script element, which ends at the first ``</``."""
    return json.dumps(thing, ensure_ascii=False, separators=(",", ":")).replace("</", "<\\/")


@cache
def _file(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")
