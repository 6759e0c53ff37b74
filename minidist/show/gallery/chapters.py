"""The key pictures of the chapters: outputs of the cells that a notebook tags ``gallery``."""

import base64
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TAG = "gallery"


@dataclass(frozen=True)
class Picture:
    """Picture of a chapter.

    Args:
        file: name of the picture's file in the gallery.
        chapter: title of the chapter, such as "3. Collectives".
        question: question that the chapter asks at its beginning.
        content: bytes of the PNG file.
    """

    file: str
    chapter: str
    question: str
    content: bytes


def key_pictures(folder: Path) -> list[Picture]:
    """Return the pictures below the tagged cells of every notebook ``NN_name.ipynb`` in a folder, as committed."""
    return [picture for path in sorted(folder.glob("[0-9][0-9]_*.ipynb")) for picture in _of_notebook(path)]


def _of_notebook(path: Path) -> Iterator[Picture]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    beginning = "".join(cells[0]["source"])
    title, question = re.search(r"^# (.*)$", beginning, re.MULTILINE), re.search(r"\*\*(.*?)\*\*", beginning, re.DOTALL)
    tagged = [cell for cell in cells if TAG in cell["metadata"].get("tags", ())]
    outputs = [output.get("data", {}) for cell in tagged for output in cell.get("outputs", ())]
    for number, data in enumerate([data for data in outputs if "image/png" in data]):
        yield Picture(
            f"{path.stem}-{number}.png",
            title[1] if title else path.stem,
            " ".join(question[1].split()) if question else "",
            base64.b64decode("".join(data["image/png"])),
        )
