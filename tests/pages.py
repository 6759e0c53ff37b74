"""What the page of an animation holds."""

import base64
import gzip
import json
import re


def unpacked(page: str) -> dict:
    """The animation in a page, as ``page.as_dict`` returns it, after a way through JSON."""
    (found,) = re.findall(r'<script id="animation" type="application/gzip">(.*?)</script>', page)
    return json.loads(gzip.decompress(base64.b64decode(found)))
