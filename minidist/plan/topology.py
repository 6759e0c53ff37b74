"""A network as a graph: which links a message crosses, and which of them it shares with other messages.

Vertices are the ranks' chips and the switches; an edge is one direction of a link. A message takes the shortest path
(fewest links; of several the one found first). What several cables carry together is one edge of their bandwidth: a
switch spreads messages over them.
"""

import itertools
from collections import deque
from dataclasses import dataclass, field

Edge = tuple[str, str]  # from a vertex to a vertex


@dataclass(frozen=True)
class Link:
    """One direction of a link: bytes/s, and the seconds until a byte arrives."""

    bandwidth: float
    latency: float = 0.0


@dataclass
class Topology:
    """Links by their two ends, and where the ranks are.

    Attributes:
        chips: the vertex of each rank.
        nodes: the node of each rank, a number.
        links: all directed links.
    """

    chips: tuple[str, ...]
    nodes: tuple[int, ...]
    links: dict[Edge, Link]
    routes: dict[tuple[int, int], tuple[Edge, ...]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.neighbours: dict[str, list[str]] = {}
        for start, end in self.links:
            self.neighbours.setdefault(start, []).append(end)

    @property
    def size(self) -> int:
        return len(self.chips)

    def route(self, source: int, destination: int) -> tuple[Edge, ...]:
        """The links that a message between two ranks crosses.

        Raises:
            ValueError: if there is no path.
        """
        if (source, destination) not in self.routes:
            self.routes[source, destination] = self._shortest(source, destination)
        return self.routes[source, destination]

    def latency(self, source: int, destination: int) -> float:
        """Seconds that a message without content takes."""
        return sum(self.links[edge].latency for edge in self.route(source, destination))

    def _shortest(self, source: int, destination: int) -> tuple[Edge, ...]:
        start, end = self.chips[source], self.chips[destination]
        before: dict[str, str] = {start: start}
        frontier = deque([start])
        while frontier and end not in before:
            here = frontier.popleft()
            for there in self.neighbours.get(here, ()):
                if there not in before:
                    before[there] = here
                    frontier.append(there)
        if end not in before:
            reached = [rank for rank, chip in enumerate(self.chips) if chip in before and rank != source]
            raise ValueError(
                f"this topology has no path from rank {source} ({start}) to rank {destination} ({end}); from there "
                f"links lead to {', '.join(map(str, reached)) or 'no rank'}. Add a link, such as {start!r} to {end!r}"
            )
        path = [end]
        while path[-1] != start:
            path.append(before[path[-1]])
        path.reverse()
        return tuple(itertools.pairwise(path))
