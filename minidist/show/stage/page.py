"""A story as a page: one file that needs no network, played by the browser's own Web Animations."""

import base64
import gzip
import html
import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from string import Template

from minidist.show.stage.marks import HEIGHT, WIDTH, Mark
from minidist.show.stage.story import Story

WEB = Path(__file__).parent / "web"


def whole(title: str, stories: Sequence[Story], links: dict[str, str] | None = None) -> str:
    """The page.

    Args:
        stories: in the order of the buttons; broken ones stand behind the right one of the same name.
        links: "previous", "next" and "gallery" -> other pages, where there are any.
    """
    data = {"width": WIDTH, "height": HEIGHT, "links": links or {}, "stories": [_story(story) for story in stories]}
    packed = gzip.compress(json.dumps(data, separators=(",", ":")).encode(), mtime=0)
    return Template(_file("stage.html")).substitute(
        TITLE=html.escape(title),
        STYLE=_file("stage.css"),
        SCRIPT=_file("stage.js"),
        STORIES=base64.b64encode(packed).decode(),
    )


def _story(story: Story) -> dict:
    return {
        "name": story.name,
        "question": story.question,
        "verdict": story.verdict,
        "broken": story.broken,
        "code": list(story.code),
        "key": list((story.key or {}).items()),
        "marks": [_mark(mark) for mark in story.marks],
        "beats": [asdict(beat) for beat in story.beats],
    }


def _mark(mark: Mark) -> list:
    """[kind, what never changes, thing, [[moment, what is new then], ...]]."""
    keys, before = [], {}
    for at, values in mark.keys:
        values = {name: round(value, 2) if isinstance(value, float) else value for name, value in values.items()}
        keys.append([round(at, 3), {name: value for name, value in values.items() if before.get(name) != value}])
        before = values
    return [mark.kind, mark.still, mark.thing, keys]


@cache
def _file(name: str) -> str:
    return (WEB / name).read_text(encoding="utf-8")
