"""Regions: the places of a rank's part of a parameter in the full array, which a sharded checkpoint needs to know.

Axes cut in different ways. Tensor parallelism takes some heads, expert parallelism some experts of each head, ZeRO a
stretch of everything laid end to end. Lay the full array flat, in C order, and every one of these parts is a list of
*runs*, pairs (start, stop) of places in it, in the order in which the part has them:

    the weight (4, 3) of 4 heads                0  1  2 | 3  4  5 | 6  7  8 | 9 10 11
    heads 2 and 3, of tp=2                                         (6, 12)
    the middle column                           (1, 2)    (4, 5)    (7, 8)   (10, 11)
    the second half of heads 2 and 3, of ZeRO                                (9, 12)

A part of a part is again a list of runs. So each axis cuts the regions that the previous axes left, and reading a shard
takes no knowledge of the layout that wrote it: where two lists of runs overlap, there are elements to copy.

PyTorch's distributed checkpoint describes a shard by the offsets and sizes of a box (``ChunkStorageMetadata``); a
stretch of a flattened parameter takes several boxes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from math import prod

from minidist.backend import xp
from minidist.overrides import overridable

Run = tuple[int, int]  # start and stop


@dataclass(frozen=True)
class Region:
    """A part of a full array.

    Attributes:
        shape: the part's shape.
        runs: places of its elements in the flat full array, in the order of the part. Runs that touch are joined.
    """

    shape: tuple[int, ...]
    runs: tuple[Run, ...]

    @classmethod
    def full(cls, shape: tuple[int, ...]) -> "Region":
        """Return the region of a whole array of this shape."""
        return cls(shape, ((0, prod(shape)),) if prod(shape) else ())

    @property
    def size(self) -> int:
        return sum(stop - start for start, stop in self.runs)

    def cut(self, axis: int, start: int, stop: int) -> "Region":
        """Return the region of ``start`` to ``stop`` along one axis of this part."""
        outer, length, inner = prod(self.shape[:axis]), self.shape[axis], prod(self.shape[axis + 1 :])
        places = [((i * length + start) * inner, (i * length + stop) * inner) for i in range(outer)]
        return Region((*self.shape[:axis], stop - start, *self.shape[axis + 1 :]), part_of_runs(self.runs, places))

    def stretch(self, start: int, stop: int) -> "Region":
        """Return the region of ``start`` to ``stop`` of this part laid flat."""
        return Region((stop - start,), part_of_runs(self.runs, [(start, stop)]))

    def take(self, full):
        """Return the part of a full array, which is in C order, as a flat array."""
        return xp.concatenate([full.reshape(-1)[start:stop] for start, stop in self.runs or ((0, 0),)])

    def put(self, part, full) -> None:
        """Write the part to its place in the full array, which is in C order."""
        flat, part, place = full.reshape(-1), part.reshape(-1), 0
        for start, stop in self.runs:
            flat[start:stop] = part[place : place + stop - start]
            place += stop - start


def place_in_full(runs: tuple[Run, ...], place: int) -> int:
    """Return the place in the flat full array of the element at ``place`` of a flat part.

    Raises:
        IndexError: if the part is not that long.
    """
    for start, stop in runs:
        if place < stop - start:
            return start + place
        place -= stop - start
    raise IndexError(f"a part of {sum(stop - start for start, stop in runs)} elements ends {place + 1} before that one")


@overridable
def part_of_runs(runs: tuple[Run, ...], places: list[Run]) -> tuple[Run, ...]:
    """Return the runs of a part of a part.

    Args:
        runs: runs of the outer part in the full array.
        places: runs of the inner part in the flat outer part: pairs (start, stop), ascending.

    Returns:
        Runs of the inner part in the full array. Runs that touch are joined, and none is empty.
    """
    found: list[Run] = []
    ends = list(accumulate(stop - start for start, stop in runs))  # in the part
    for first, last in places:
        for (start, stop), end in zip(runs, ends, strict=True):
            begin = end - (stop - start)  # where this run begins in the part
            low, high = max(first, begin), min(last, end)
            if low < high:
                found.append((start + low - begin, start + high - begin))
    joined: list[Run] = []
    for start, stop in found:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return tuple(joined)


@overridable
def overlaps(wanted: tuple[Run, ...], there: tuple[Run, ...]) -> Iterator[tuple[int, int, int]]:
    """Yield the stretches that two parts of an array have in common.

    Args:
        wanted, there: the runs of the two parts.

    Yields:
        ``(place in wanted, place in there, length)``, both places counted in the flat part.
    """
    place = 0
    for start, stop in wanted:
        other = 0
        for first, last in there:
            low, high = max(start, first), min(stop, last)
            if low < high:
                yield place + low - start, other + low - first, high - low
            other += last - first
        place += stop - start
