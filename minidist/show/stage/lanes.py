"""Rows of bars on one time axis, such as one for each rank: bars grow with the clock, and grey marks idle time."""

from minidist.show.stage.marks import SMALLEST, Mark, box, line, text


class Lanes:
    """Rows of bars that grow with the clock.

    Args:
        names: names of the rows, from the top.
        place: (x, y, width, height) of all rows; the names take ``margin`` of the width, on the left.
        span: (first, last) moment that is shown, in any unit, such as ms.
        clock: (start, seconds): the moment of the story at which the span begins, and how long the span takes.
        share: height of a bar, as a share of the row's height.
        until: for each row, the moment at which its grey ends; by default the end of the span.
    """

    def __init__(self, names, place, span, clock, margin: float = 120, share: float = 0.8, until=None) -> None:
        x, y, width, height = place
        self.left, self.top, self.wide, self.high = x + margin, y, width - margin, height / len(names)
        self.span, self.clock, self.share = span, clock, share
        self.rows = len(names)
        self.below: list[Mark] = []
        self.bars: list[Mark] = []
        for row, name in enumerate(names):
            middle = y + (row + 0.5) * self.high
            top, end = middle - self.high * share / 2, until[row] if until else span[1]
            self.below.append(box(self.left, top, self.wide, self.high * share, "paper", stroke="faint", width=2))
            grey = box(self.left, top, 0, self.high * share, "faint", sign=".")
            self.below.append(grey.to(clock[0], self.at(end) - clock[0], w=self.x(end) - self.left))
            if name:
                self.below.append(text(self.left - 14, middle, name, anchor="end"))

    def x(self, moment: float) -> float:
        """Return the x of a moment of the span."""
        first, last = self.span
        return self.left + self.wide * (moment - first) / (last - first)

    def at(self, moment: float) -> float:
        """Return the moment of the story at which the playhead passes a moment of the span."""
        start, lasting = self.clock
        return start + lasting * (self.x(moment) - self.left) / self.wide

    def bar(self, row: int, start: float, end: float, fill: str, label: str = "", thing: str = "") -> Mark:
        """Add a bar that grows in a row from one moment to another."""
        end = max(start, end)  # a gap that the caller leaves may be longer than the bar
        y = self.top + (row + 0.5 - self.share / 2) * self.high
        width = self.x(end) - self.x(start)
        fits = label and width > 0.6 * SMALLEST * len(label)
        still = ({"text": label} if fits else {}) | ({"sign": "."} if fill == "faint" else {})
        mark = box(self.x(start), y, 0, self.high * self.share, fill, thing, **still)
        self.bars.append(mark.to(self.at(start), self.at(end) - self.at(start), w=width))
        return mark

    def marks(self) -> list[Mark]:
        """Return the rows, their bars and the playhead."""
        bottom = self.top + self.high * self.rows
        head = line([(self.left, self.top - 6), (self.left, bottom + 6)], "ink", 4)
        head.to(self.clock[0], self.clock[1], x=self.wide)
        return [*self.below, *self.bars, head]
