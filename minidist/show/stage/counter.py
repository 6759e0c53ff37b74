"""One large number that changes, with what it counts below it."""

from collections.abc import Sequence

from minidist.show.stage.marks import SMALLEST, Mark, text


def counter(x: float, y: float, name: str, values: Sequence[tuple[float, str]], size: float = 110) -> list[Mark]:
    """The marks of a number in the middle of (x, y).

    Args:
        name: what it counts; a line break begins a new line.
        values: (moment, number as text) from which on it is shown.
    """
    marks = []
    for number, (at, value) in enumerate(values):
        mark = text(x, y, value, size, weight=700)
        if number:
            mark.enter(at, 0)
        if number + 1 < len(values):
            mark.leave(values[number + 1][0], 0)
        marks.append(mark)
    words = name.split("\n") if name else []
    return marks + [text(x, y + size * 0.75 + i * SMALLEST * 1.2, word) for i, word in enumerate(words)]
