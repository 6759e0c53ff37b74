"""What tests look for in the frames of demonstrations."""

import re

from minidist.show.player.scene import Arrow, Box, Frame, Label, Scene


def boxes(frame: Frame, **wanted) -> list[Box]:
    """Those whose fields have the wanted values."""
    found = [shape for shape in frame.shapes if isinstance(shape, Box)]
    return [box for box in found if all(getattr(box, name) == value for name, value in wanted.items())]


def labels(frame: Frame) -> list[str]:
    return [shape.text for shape in frame.shapes if isinstance(shape, Label)]


def arrows(frame: Frame) -> list[str]:
    """What the arrows say, as a terminal prints it."""
    return [shape.label for shape in frame.shapes if isinstance(shape, Arrow)]


def texts(frame: Frame) -> list[tuple[float, float, float, str]]:
    """(left, right, middle in lines, text) of all texts that no later box covers."""
    found: list[tuple[float, float, float, str]] = []
    for shape in frame.shapes:
        if isinstance(shape, Box) and shape.fill is not None:
            left, right = shape.x - 0.25, shape.x + shape.w + 0.25  # a text may be wider than its box by half a letter
            inside = [left <= one[0] and one[1] <= right and shape.y <= one[2] <= shape.y + shape.h for one in found]
            found = [one for one, covered in zip(found, inside, strict=True) if not covered]
        if isinstance(shape, Box | Label) and shape.text.strip():
            share = {"start": 0, "middle": 0.5, "end": 1}[getattr(shape, "anchor", "middle")]
            x, y = (shape.x + shape.w / 2, shape.y + shape.h / 2) if isinstance(shape, Box) else (shape.x, shape.y)
            found.append((x - share * len(shape.text), x + (1 - share) * len(shape.text), y, shape.text))
    return found


def reds(frame: Frame) -> int:
    """How many shapes have the colour of what is wrong."""
    parts = "fill", "outline", "colour"
    return sum("wrong" in [getattr(shape, part, "") for part in parts] for shape in frame.shapes)


def told(shown: Scene) -> str:
    """All of the outcome, with its details."""
    return f"{shown.verdict} {shown.details}"


def numbers(text: str) -> list[float]:
    """The numbers in a text."""
    return [float(found.replace(",", "")) for found in re.findall(r"[-+]?\d[\d,]*(?:\.\d+)?", text)]


def last(scene: Scene, name: str) -> list[float]:
    """The numbers of a fact in the last frame; ``name`` is how it begins."""
    return numbers(next(text for fact, text in scene.frames[-1].facts.items() if fact.startswith(name)))
