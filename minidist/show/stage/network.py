"""Ranks as boxes on a rail, a tree or a fan, and what travels between them."""

from math import atan2, cos, pi, sin

from minidist.show.stage.marks import SMALLEST, Mark, box, line, text


class Network:
    """Where the ranks stand, and the ways between them.

    Args:
        ranks: how many.
        size: (width, height) of a rank's box.
        center, radius: of the ellipse that a ring's ranks stand on: (x, y) and (x, y).
        places: the middle of each rank's box, where they do not stand on a ring.
        names: of the ranks.
    """

    def __init__(self, ranks: int, size, center, radius=None, places=None, names: str = "GPU {}") -> None:
        self.size, self.center, self.radius = size, center, radius
        angles = [2 * pi * rank / ranks - pi / 2 for rank in range(ranks)]
        ring = [(center[0] + radius[0] * cos(a), center[1] + radius[1] * sin(a)) for a in angles] if radius else None
        self.places = places or ring
        self.on_ring = places is None
        w, h = size
        self.boxes = [
            box(x - w / 2, y - h / 2, w, h, "paper", f"{names.format(rank)}", stroke="ink", round=10)
            for rank, (x, y) in enumerate(self.places)
        ]
        self.names = [
            text(x, y + h / 2 - SMALLEST * 0.62, names.format(rank)) for rank, (x, y) in enumerate(self.places)
        ]

    def marks(self) -> list[Mark]:
        """The rail and the ranks, below whatever travels."""
        rail = []
        if self.on_ring:
            steps = [2 * pi * i / 120 for i in range(120)]
            (x, y), (rx, ry) = self.center, self.radius
            rail = [line([(x + rx * cos(a), y + ry * sin(a)) for a in steps], width=14, closed=True)]
        return [*rail, *self.boxes, *self.names]

    def travel(self, mark: Mark, source: int, destination: int, to: tuple[float, float], at: float, lasting: float):
        """Move a mark from the rank that it is at to a place at another one: along the rail, if there is one."""
        x, y = mark.now["x"], mark.now["y"]
        if not self.on_ring:
            return mark.to(at, lasting, x=to[0], y=to[1])
        (cx, cy), (rx, ry) = self.center, self.radius
        ends = []
        for rank in (source, destination):
            px, py = self.places[rank]
            ends.append(atan2((py - cy) / ry, (px - cx) / rx))
        turn = (ends[1] - ends[0]) % (2 * pi)
        turn = turn if turn <= pi + 1e-9 else turn - 2 * pi  # the shorter way
        count = 8
        sx, sy = self.places[source]
        dx, dy = self.places[destination]
        for i in range(1, count + 1):  # its distance from the rank's middle changes evenly on the way
            share = i / count
            angle = ends[0] + turn * share
            off_x = (x - sx) * (1 - share) + (to[0] - dx) * share
            off_y = (y - sy) * (1 - share) + (to[1] - dy) * share
            mark.to(
                at + lasting * (i - 1) / count,
                lasting / count,
                x=cx + rx * cos(angle) + off_x,
                y=cy + ry * sin(angle) + off_y,
            )
        return mark
