"""Amounts held over time, stacked by kind: a mountain that grows to the right while the clock runs, and its outline."""

from collections.abc import Callable, Mapping

from minidist.show.stage.marks import Mark, box, line

COLUMNS = 60


def mountain(
    held: Callable[[float, float], Mapping[str, float]],
    colours: Mapping[str, str],
    place,
    most: float,
    clock,
    columns: int = COLUMNS,
) -> list[Mark]:
    """Return the marks of a mountain.

    Args:
        held: (from, to), as shares of the time -> amount of each kind held in between.
        colours: kind -> colour, from the ground up.
        place: (x, y, width, height): upper left corner and size; ``most`` fills the height.
        clock: (start, seconds) on the story's clock.
    """
    x, y, width, height = place
    wide = width / columns
    marks = [line([(x, y + height), (x + width, y + height)], "ink", 3)]
    for number in range(columns):
        amounts, foot = held(number / columns, (number + 1) / columns), y + height
        for kind, colour in colours.items():
            high = height * amounts.get(kind, 0) / most
            if high >= 0.5:
                foot -= high
                bar = box(
                    x + number * wide, foot, wide + 0.5, high, colour, kind, sign="!" if kind == "wrong" else kind[0]
                )
                marks.append(bar.enter(clock[0] + clock[1] * (number + 0.5) / columns, 0.05))
    return marks


def outline(held: Callable[[float, float], float], place, most: float) -> Mark:
    """Return a faint line along the top of a mountain, visible from the beginning, to compare others with."""
    x, y, width, height = place
    levels = [y + height - height * held(number / COLUMNS, (number + 1) / COLUMNS) / most for number in range(COLUMNS)]
    edges = [(x + width * (number + side) / COLUMNS, level) for number, level in enumerate(levels) for side in (0, 1)]
    return line([(x, y + height), *edges, (x + width, y + height)], "faint", 4)
