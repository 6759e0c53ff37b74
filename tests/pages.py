"""What the page of an animation holds."""

import base64
import gzip
import json
import re


def unpacked(page: str) -> dict:
    """The animation in a page, as ``page.as_dict`` returns it, after a way through JSON."""

    def restored(scene: dict) -> dict:
        shapes = [
            [kind, first, last, *(column[number] for column in tables[kind])]
            for kind, number, first, last in zip(*scene["shapes"], strict=True)
        ]
        return scene | {"shapes": shapes, "variants": [restored(one) for one in scene["variants"]]}

    (found,) = re.findall(r'<script id="animation" type="application/gzip">(.*?)</script>', page)
    animation = json.loads(gzip.decompress(base64.b64decode(found)))
    tables = animation.pop("tables")
    return animation | {"scenes": [restored(scene) for scene in animation["scenes"]]}
