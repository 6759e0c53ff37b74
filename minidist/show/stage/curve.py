"""Curves over axes, drawn while the clock runs."""

from collections.abc import Sequence

from minidist.show.stage.marks import SMALLEST, Mark, line, text


class Chart:
    """Axes with curves that are drawn while the clock runs.

    Args:
        place: (x, y, width, height) of the area of the curves.
        across, up: (first, last) value of each axis.
        names: names of the axes: across, up.
        ticks: labelled values of the axes: across, up.
    """

    def __init__(self, place, across, up, names=("", ""), ticks=((), ())) -> None:
        self.place, self.across, self.up = place, across, up
        x, y, width, height = place
        self.below = [line([(x, y), (x, y + height), (x + width, y + height)], "ink", 3)]
        self.below.append(text(x + width, y + height + SMALLEST * 1.9, names[0], anchor="end"))
        self.below.append(text(x, y - SMALLEST * 0.9, names[1], anchor="start"))
        for value in ticks[0]:
            self.below.append(text(self.at(value, up[0])[0], y + height + SMALLEST * 0.75, f"{value:g}"))
        for value in ticks[1]:
            self.below.append(text(x - 10, self.at(across[0], value)[1], f"{value:g}", anchor="end"))
        self.curves: list[Mark] = []

    def at(self, across: float, up: float) -> tuple[float, float]:
        """Return the place of a pair of values on the stage."""
        x, y, width, height = self.place
        return (
            x + width * (across - self.across[0]) / (self.across[1] - self.across[0]),
            y + height * (1 - (up - self.up[0]) / (self.up[1] - self.up[0])),
        )

    def curve(self, points: Sequence[tuple[float, float]], fill: str, at: float = 0.0, lasting: float = 0.0) -> Mark:
        """Add a curve through points (across, up), drawn in ``lasting`` seconds from ``at`` on; 0: always there."""
        mark = line([self.at(*point) for point in points], fill, 6)
        if lasting:
            mark.trace(at, lasting)
        self.curves.append(mark)
        return mark

    def marks(self) -> list[Mark]:
        return [*self.below, *self.curves]
