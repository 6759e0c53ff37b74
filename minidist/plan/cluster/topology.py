"""A network as a graph, which shows the links that a message crosses, and those that messages share.

Vertices are the ranks' chips and the switches; an edge is one direction of a link. A message takes the shortest path
(fewest links; of several the one found first). Parallel cables are one edge of their total bandwidth, because a switch
spreads messages over them.
"""

import itertools
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from minidist.comm.placement import Link

Edge = tuple[str, str]  # from a vertex to a vertex


@dataclass
class Topology:
    """Network: links by their two ends, and the places of the ranks.

    Attributes:
        chips: vertex of each rank.
        nodes: number of the node of each rank.
        links: all directed links.
        routes: cache of ``route``.
        chips_forward: whether a message may cross the chips of other ranks, as in a torus.
    """

    chips: tuple[str, ...]
    nodes: tuple[int, ...]
    links: dict[Edge, Link]
    routes: dict[tuple[int, int], tuple[Edge, ...]] = field(default_factory=dict, repr=False)
    chips_forward: bool = True

    def __post_init__(self) -> None:
        self.neighbours: dict[str, list[str]] = {}
        for start, end in self.links:
            self.neighbours.setdefault(start, []).append(end)
        self.trees: dict[str, dict[str, str]] = {}  # chip -> vertex that it reaches -> the one before

    @property
    def size(self) -> int:
        return len(self.chips)

    def route(self, source: int, destination: int) -> tuple[Edge, ...]:
        """Return the links that a message from one rank to another crosses.

        Raises:
            ValueError: if no path leads there.
        """
        if (source, destination) not in self.routes:
            self.routes[source, destination] = self._path(source, destination)
        return self.routes[source, destination]

    def latency(self, source: int, destination: int) -> float:
        """Seconds that an empty message takes."""
        return sum(self.links[edge].latency for edge in self.route(source, destination))

    def bandwidth(self, source: int, destination: int) -> float:
        """Bytes/s of a message that shares no link: the bandwidth of the slowest link on its route."""
        return min((self.links[edge].bandwidth for edge in self.route(source, destination)), default=float("inf"))

    def _path(self, source: int, destination: int) -> tuple[Edge, ...]:
        start, end = self.chips[source], self.chips[destination]
        before = self.shortest_paths(start)
        if end not in before:
            reached = [rank for rank, chip in enumerate(self.chips) if chip in before and rank != source]
            raise ValueError(
                f"this topology has no path from rank {source} ({start}) to rank {destination} ({end}); "
                f"links lead from rank {source} to {_ranks(reached)}. Add a link, such as {start!r} to {end!r}"
            )
        path = [end]
        while path[-1] != start:
            path.append(before[path[-1]])
        path.reverse()
        return tuple(itertools.pairwise(path))

    def shortest_paths(self, start: str) -> dict[str, str]:
        """Return each vertex that a chip's messages reach, with the one before it: a breadth-first search."""
        if start in self.trees:
            return self.trees[start]
        ends = set() if self.chips_forward else set(self.chips) - {start}
        before = {start: start}
        frontier = deque([start])
        while frontier:
            here = frontier.popleft()
            for there in self.neighbours.get(here, ()) if here not in ends else ():
                if there not in before:
                    before[there] = here
                    frontier.append(there)
        self.trees[start] = before
        return before


def check_connected(topology: Topology) -> None:
    """Raise the ValueError of ``route`` if there is a pair of ranks without a path."""
    for source in range(topology.size):
        reached = topology.shortest_paths(topology.chips[source])
        for destination, chip in enumerate(topology.chips):
            if chip not in reached:
                topology.route(source, destination)


def _ranks(ranks: list[int], most: int = 8) -> str:
    shown = ", ".join(map(str, ranks[:most])) + f" and {len(ranks) - most} more" * (len(ranks) > most)
    return f"rank{'s' * (len(ranks) > 1)} {shown}" if ranks else "no rank"


Residual = dict[str, dict[str, float]]  # remaining capacity of each edge, also against the flow


def max_flow(capacities: Mapping[Edge, float], sources: set[str], sinks: set[str]) -> float:
    """Maximum flow from all sources together to all sinks together, by Dinic's algorithm (1970).

    By the theorem of Ford and Fulkerson it is the capacity of the smallest cut between them.
    """
    left: Residual = defaultdict(dict)
    for (start, end), capacity in capacities.items():
        left[start][end] = capacity
        left[end].setdefault(start, 0.0)
    least = 1e-12 * max(capacities.values(), default=0.0)  # a smaller capacity is rounding error
    total = 0.0
    while (levels := _levels(left, sources, sinks, least)).keys() & sinks:
        total += _blocking_flow(left, levels, sources, sinks, least)
    return total


def _levels(left: Residual, sources: set[str], sinks: set[str], least: float) -> dict[str, int]:
    """Return the distance of each vertex from the nearest source, in edges with remaining capacity."""
    levels = dict.fromkeys(sources, 0)
    frontier = deque(sorted(sources))
    while frontier:
        here = frontier.popleft()
        for there, capacity in left[here].items() if here not in sinks else ():
            if capacity > least and there not in levels:
                levels[there] = levels[here] + 1
                frontier.append(there)
    return levels


def _blocking_flow(left: Residual, levels: dict[str, int], sources: set[str], sinks: set[str], least: float) -> float:
    """Send flow along paths that go up one level with each edge, until each has a full edge; return the total."""
    untried = {vertex: list(left[vertex]) for vertex in levels}
    total = 0.0
    for source in sorted(sources):
        path = [source]
        while path:
            here = path[-1]
            if here in sinks:
                edges = list(itertools.pairwise(path))
                flow = min(left[start][end] for start, end in edges)
                for start, end in edges:
                    left[start][end] -= flow
                    left[end][start] += flow
                total += flow
                path = [source]
            elif not untried[here]:
                path.pop()
                if path:
                    untried[path[-1]].pop()
            else:
                there = untried[here][-1]
                if left[here][there] > least and levels.get(there) == levels[here] + 1:
                    path.append(there)
                else:
                    untried[here].pop()
    return total
