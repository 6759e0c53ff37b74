"""What pages hold."""

import base64
import gzip
import json
import re

LOADS = r"\b(src|href)=|https?://(?!www\.w3\.org/2000/svg)|@import|url\("  # what would need a network


def data_in(page: str, name: str) -> dict:
    """The data in a page's script of this name, as a browser unpacks it."""
    (found,) = re.findall(rf'<script id="{name}" type="application/gzip">(.*?)</script>', page)
    return json.loads(gzip.decompress(base64.b64decode(found)))


def packed_in(notebook: str) -> bytes:
    """The page in the output of a notebook's cell, compressed."""
    (packed,) = re.findall(r'atob\("(.*?)"\)', notebook)
    return base64.b64decode(packed)


def unpacked(page: str) -> dict:
    """The animation in a page, as ``page.as_dict`` returns it, after a way through JSON."""

    def restored(scene: dict) -> dict:
        shapes = [
            [kind, first, last, *(column[number] for column in tables[kind])]
            for kind, number, first, last in zip(*scene["shapes"], strict=True)
        ]
        return scene | {"shapes": shapes, "variants": [restored(one) for one in scene["variants"]]}

    animation = data_in(page, "animation")
    tables = animation.pop("tables")
    return animation | {"scenes": [restored(scene) for scene in animation["scenes"]]}
