"""What is in a matplotlib Figure."""

from matplotlib.patches import Rectangle
from matplotlib.text import Text


def words(figure) -> list[str]:
    """Return the figure's texts, also those of axes and legends."""
    figure.draw_without_rendering()  # makes the labels of ticks
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def bars(axes) -> list[tuple[float, float]]:
    """(left end, width) of the rectangles that have a width, rounded."""
    found = [patch for patch in axes.patches if isinstance(patch, Rectangle) and patch.get_width()]
    return [(round(float(bar.get_x()), 6), round(float(bar.get_width()), 6)) for bar in found]


def widths(axes) -> list[float]:
    return [width for _, width in bars(axes)]
