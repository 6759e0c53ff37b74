"""GPUs as boxes on a ring, in a tree or a fan, and what travels between them."""

from math import cos, pi, sin

from minidist.show.stage.marks import SMALLEST, Mark, box, line, text

WAY = 8  # straight pieces of a way along the ring
Place = tuple[float, float]


class Network:
    """Boxes, the ways between them, and what travels.

    Args:
        size: (width, height) of a box.
        places: the middle of each box.
        links: the pairs of boxes between which a line is drawn, where there is no ring.
        names: of the boxes.
    """

    ring: tuple[Place, Place] | None = None  # the middle and the radii of an ellipse on which all travel

    def __init__(self, size: Place, places: list[Place], links=(), names: str = "GPU {}") -> None:
        self.places, (wide, high) = places, size
        self.ways = [line([places[one], places[other]], width=8) for one, other in links]
        self.boxes = [
            box(x - wide / 2, y - high / 2, wide, high, "paper", names.format(rank), stroke="ink", round=10)
            for rank, (x, y) in enumerate(places)
        ]
        self.names = [text(x, y + high / 2 - SMALLEST * 0.62, names.format(i)) for i, (x, y) in enumerate(places)]

    @classmethod
    def on_ring(cls, ranks: int, size: Place, area, onward: bool = True, names: str = "GPU {}") -> "Network":
        """Rank 0 at the top, the others clockwise.

        Args:
            area: (x, y, width, height) of the whole.
            onward: whether every rank sends to the next one: arrows show it.
            names: of the boxes.
        """
        x, y, wide, high = area
        center, radii = (x + wide / 2, y + high / 2), ((wide - size[0]) / 2 - 6, (high - size[1]) / 2 - 6)
        made = cls(size, [_around(center, radii, 2 * pi * rank / ranks) for rank in range(ranks)], names=names)
        made.ring = center, radii
        made.ways = [line([_around(center, radii, 2 * pi * i / 120) for i in range(120)], width=14, closed=True)]
        for rank in range(ranks if onward else 0):
            middle = 2 * pi * (rank + 0.5) / ranks
            arrow = [_around(center, radii, middle + turn) for turn in (-0.12, 0.04)]
            made.ways.append(line(arrow, "ink", 12, head=True))
        return made

    @classmethod
    def in_fan(cls, ranks: int, size: Place, area) -> "Network":
        """Rank 0 on the left, the others on the right, in two columns if they are many."""
        x, y, wide, high = area
        columns = 1 if ranks <= 4 else 2
        rows = -(-(ranks - 1) // columns)
        places = [(x + size[0] / 2 + 6, y + high / 2)]
        for rank in range(ranks - 1):
            right = x + wide - size[0] / 2 - 6 - (rank % columns) * (size[0] + 60)
            places.append((right, y + high * (rank // columns + 0.5) / rows))
        return cls(size, places, [(0, rank) for rank in range(1, ranks)])

    @classmethod
    def in_tree(cls, ranks: int, size: Place, area) -> "Network":
        """A binomial tree: each rank is below the one that it receives from, on the level of that step."""
        x, y, wide, high = area
        levels = (ranks - 1).bit_length()
        places = []
        for rank in range(ranks):
            turned = sum((rank >> bit & 1) / 2 ** (bit + 1) for bit in range(levels))  # so that no two links cross
            across = turned / (1 - 0.5**levels)  # from 0 to 1
            down = rank.bit_length() / max(1, levels)
            places.append(
                (
                    x + size[0] / 2 + 6 + across * (wide - size[0] - 12),
                    y + size[1] / 2 + 4 + down * (high - size[1] - 8),
                )
            )
        return cls(size, places, [(rank - (1 << rank.bit_length() - 1), rank) for rank in range(1, ranks)])

    def marks(self) -> list[Mark]:
        """The ways and the boxes, below whatever travels."""
        return [*self.ways, *self.boxes, *self.names]

    def travel(self, mark: Mark, source: int, destination: int, to: Place, at: float, lasting: float) -> None:
        """Move a mark from where it is, in one box, to a place in another one: along the ring, if there is one."""
        start, ranks = (mark.now["x"], mark.now["y"]), len(self.places)
        for i in range(1, WAY + 1 if self.ring else 2):
            x, y = place = _between(start, to, i / WAY) if self.ring else to
            if self.ring:
                turn = (destination - source + ranks / 2) % ranks - ranks / 2 or ranks / 2  # the shorter way
                here = _around(*self.ring, 2 * pi * (source + turn * i / WAY) / ranks)
                straight = _between(self.places[source], self.places[destination], i / WAY)
                x, y = (place[axis] + here[axis] - straight[axis] for axis in (0, 1))
            pieces = WAY if self.ring else 1
            mark.to(at + lasting * (i - 1) / pieces, lasting / pieces, x=x, y=y)


def _around(center: Place, radii: Place, angle: float) -> Place:
    """A place on an ellipse, clockwise from its top."""
    return center[0] + radii[0] * sin(angle), center[1] - radii[1] * cos(angle)


def _between(one: Place, other: Place, share: float) -> Place:
    return one[0] + (other[0] - one[0]) * share, one[1] + (other[1] - one[1]) * share
