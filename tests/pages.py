"""What pages hold."""

import base64
import gzip
import json
import re

LOADS = r"\b(src|href)=(?!.data:)|https?://(?!www\.w3\.org/2000/svg)|@import|url\("  # what would need a network
CONTRAST = """const light = (c) => c.match(/[\\d.]+/g).slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const of = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);"""


def data_in(page: str, name: str) -> dict:
    """The data in a page's script of this name, as a browser unpacks it."""
    (found,) = re.findall(rf'<script id="{name}" type="application/gzip">(.*?)</script>', page)
    return json.loads(gzip.decompress(base64.b64decode(found)))


def packed_in(notebook: str) -> bytes:
    """The page in the output of a notebook's cell, compressed."""
    (packed,) = re.findall(r'atob\("(.*?)"\)', notebook)
    return base64.b64decode(packed)
