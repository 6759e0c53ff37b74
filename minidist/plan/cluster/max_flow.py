"""The most that can flow through a network at once: Dinic's algorithm (1970)."""

import itertools
from collections import defaultdict, deque
from collections.abc import Mapping

Edge = tuple[str, str]
Residual = dict[str, dict[str, float]]  # capacity that is left on each edge, also against the flow


def max_flow(capacities: Mapping[Edge, float], sources: set[str], sinks: set[str]) -> float:
    """The maximum flow from all sources together to all sinks together.

    By the theorem of Ford and Fulkerson it is the capacity of the smallest cut between them.
    """
    left: Residual = defaultdict(dict)
    for (start, end), capacity in capacities.items():
        left[start][end] = capacity
        left[end].setdefault(start, 0.0)
    least = 1e-12 * max(capacities.values(), default=0.0)  # below that, a difference of floats and no capacity
    total = 0.0
    while (levels := _levels(left, sources, sinks, least)).keys() & sinks:
        total += _blocking_flow(left, levels, sources, sinks, least)
    return total


def _levels(left: Residual, sources: set[str], sinks: set[str], least: float) -> dict[str, int]:
    """How many edges with capacity left a vertex is away from the nearest source."""
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
    """Send flow along paths that go up one level with each edge, until each of them has a full edge."""
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
