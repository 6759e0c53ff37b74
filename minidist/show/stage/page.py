"""Stories as a page: one file that needs no network, played by the browser's own Web Animations."""

import base64
import gzip
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from string import Template

from minidist.show.stage.marks import HEIGHT, WIDTH, Mark
from minidist.show.stage.story import Story

WEB = Path(__file__).parent / "web"
NO_LINKS: Mapping[str, str] = {}


def whole(title: str, stories: Sequence[Story], first: int = 0, links: Mapping[str, str] = NO_LINKS) -> str:
    """Return the page.

    Args:
        stories: stories in the order of their buttons; a broken one has the name of its right one.
        first: number of the story that the page opens with.
        links: "previous", "next" and "gallery" -> address of that page; each may be missing.
    """
    data = {
        "width": WIDTH,
        "height": HEIGHT,
        "links": dict(links),
        "first": first,
        "stories": list(map(_story, stories)),
    }
    return Template(_file("stage.html")).substitute(
        TITLE=html.escape(title),
        STYLE=_file("stage.css"),
        SCRIPT=_file("stage.js"),
        STORIES=packed(json.dumps(data, separators=(",", ":"))),
    )


def in_notebook(page: str, title: str, picture: bytes, size: str = "aspect-ratio:16/9;min-height:640px") -> str:
    """Return HTML that shows the page in a frame; where no scripts run, as on GitHub, it shows the picture.

    Args:
        picture: a PNG file.
        size: size of the frame, in CSS.
    """
    return Template(_file("notebook.html")).substitute(
        NAME=hashlib.sha256(page.encode()).hexdigest()[:12],
        TITLE=html.escape(title, quote=True),
        PICTURE=base64.b64encode(picture).decode(),
        PAGE=packed(page),
        SIZE=size,
    )


def packed(text: str) -> str:
    """Return a text compressed by gzip, in base64. It has no time stamp, so equal texts give equal results."""
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def _story(story: Story) -> dict:
    return {
        "name": story.name,
        "question": story.question,
        "verdict": story.verdict,
        "broken": story.broken,
        "details": story.details,
        "code": list(story.code),
        "key": list(story.shown_key.items()),
        "marks": [] if story.dials else [_mark(mark) for mark in story.marks],
        "beats": [asdict(beat) for beat in story.beats],
        "dials": [asdict(dial) for dial in story.dials],
        "variants": list(map(_story, story.variants)),
    }


def _mark(mark: Mark) -> list:
    """Return [kind, still values, thing, [[moment, values that change then], ...]]."""
    keys, before = [], {}
    for at, values in mark.keys:
        values = {name: round(value, 2) if isinstance(value, float) else value for name, value in values.items()}
        keys.append([round(at, 3), {name: value for name, value in values.items() if before.get(name) != value}])
        before = values
    return [mark.kind, mark.still, mark.thing, keys]


@cache
def _file(name: str) -> str:
    return (WEB / name).read_text(encoding="utf-8")
