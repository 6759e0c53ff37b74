"""What several tests look for in the frames of demonstrations."""

from minidist.show.player import scene
from minidist.show.player.scene import Box, Frame, Label, Scene


def boxes(frame: Frame, **wanted) -> list[Box]:
    """Those whose fields have the wanted values."""
    found = [shape for shape in frame.shapes if isinstance(shape, Box)]
    return [box for box in found if all(getattr(box, name) == value for name, value in wanted.items())]


def labels(frame: Frame) -> list[str]:
    return [shape.text for shape in frame.shapes if isinstance(shape, Label)]


def told(shown: Scene) -> str:
    """All of the outcome, with its details."""
    return f"{shown.verdict} {shown.details}"


def check_inside(shown: Scene, note: int = 120) -> None:
    """Every shape is in the picture, every text in its box, and all frames have the same facts and short notes."""
    for shape in (shape for frame in shown.frames for shape in frame.shapes):
        if isinstance(shape, Box):
            assert 0 <= shape.x <= shape.x + shape.w <= scene.WIDTH
            assert 0 <= shape.y <= shape.y + shape.h <= shown.height + 1e-9
            assert len(shape.text) <= shape.w + 0.5
        elif isinstance(shape, Label):
            before = {"start": 0, "middle": 0.5, "end": 1}[shape.anchor] * len(shape.text)
            assert 0 <= shape.x - before <= shape.x - before + len(shape.text) <= scene.WIDTH
    assert len({tuple(frame.facts) for frame in shown.frames}) == 1
    assert max(len(frame.note) for frame in shown.frames) <= note
