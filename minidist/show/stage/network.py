"""GPUs as boxes on a ring, in a tree or a fan, and marks that travel between them."""

from math import cos, pi, sin

from minidist.show.stage.marks import SMALLEST, Mark, box, line, text

WAY = 8  # straight pieces of a way along the ring
Place = tuple[float, float]


class Network:
    """Boxes for ranks, and the ways between them.

    Args:
        size: (width, height) of a box.
        places: middle of each box.
        links: pairs of boxes to join by a line, where there is no ring.
        names: name of a box, with {} for its rank.
    """

    ring: tuple[Place, Place] | None = None  # centre and radii of the ellipse along which marks travel

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
        """Place rank 0 at the top of a ring, and the others clockwise.

        Args:
            area: (x, y, width, height) of the ring with its boxes.
            onward: whether arrows show that every rank sends to the next one.
            names: name of a box, with {} for its rank.
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
        """Place rank 0 on the left and the others on the right, in two columns from 5 ranks on."""
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
        """Place ranks in a binomial tree: each is below the one that it receives from, on the level of that step."""
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
        """Return the ways, boxes and names; they belong below the marks that travel."""
        return [*self.ways, *self.boxes, *self.names]

    def travel(self, mark: Mark, source: int, destination: int, to: Place, at: float, lasting: float) -> None:
        """Move a mark from its place in one box to a place in another: along the ring, if there is one."""
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
    """Return the place on an ellipse at an angle, clockwise from its top."""
    return center[0] + radii[0] * sin(angle), center[1] - radii[1] * cos(angle)


def _between(one: Place, other: Place, share: float) -> Place:
    return one[0] + (other[0] - one[0]) * share, one[1] + (other[1] - one[1]) * share
