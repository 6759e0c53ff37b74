"""Type of an exact size for a place of a given width: where the text is wider, its letters are narrowed.

A typeface would have a condensed cut for this, and matplotlib comes with none. So letters are drawn as outlines.
"""

from matplotlib.patches import PathPatch
from matplotlib.textpath import TextPath
from matplotlib.transforms import Affine2D, ScaledTranslation, Transform

MIDDLE = 0.36  # of the type size: from the baseline to the middle of a capital
SHIFTS = {"start": 0.0, "middle": 0.5, "end": 1.0}  # where a text stands -> what part of it is to the left


class Condensed(PathPatch):
    """A line of text, vertically centred.

    Args:
        figure: figure that it will be on.
        place: (x, y), in the coordinates of a transform.
        text: one line.
        size: type size in points.
        room: inches that it may be wide.
        anchor: "start", "middle" or "end": which part of it is at x.
    """

    def __init__(
        self, figure, place: tuple[float, float], transform: Transform, text: str, size: float, room: float,
        anchor: str = "start", **look,
    ) -> None:  # fmt: skip
        outline = TextPath((0, 0), text.replace("$", r"\$"), size=size)  # a dollar begins no formula
        extent = outline.get_extents()
        narrow = min(1.0, 72 * room / extent.width) if extent.width else 1.0
        shape = Affine2D().translate(-extent.x0 - SHIFTS[anchor] * extent.width, -MIDDLE * size).scale(narrow, 1)
        to_page = shape.scale(1 / 72) + figure.dpi_scale_trans + ScaledTranslation(*place, transform)
        super().__init__(outline, linewidth=0, transform=to_page, clip_on=False, **look)
        self.text, self.size, self.narrow = text, size, narrow
