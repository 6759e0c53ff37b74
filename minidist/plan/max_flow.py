"""The most that can flow through a network at once: shortest augmenting paths (Edmonds and Karp, 1972)."""

from collections import defaultdict, deque
from collections.abc import Mapping

Edge = tuple[str, str]


def max_flow(capacities: Mapping[Edge, float], sources: set[str], sinks: set[str]) -> float:
    """The maximum flow from all sources together to all sinks together.

    By the theorem of Ford and Fulkerson it is the capacity of the smallest cut between them.
    """
    left: dict[str, dict[str, float]] = defaultdict(dict)  # capacity that is left, also against the flow
    for (start, end), capacity in capacities.items():
        left[start][end] = capacity
        left[end].setdefault(start, 0.0)
    least = 1e-12 * max(capacities.values(), default=0.0)  # below that, a difference of floats and no capacity
    total = 0.0
    while path := _augmenting_path(left, sources, sinks, least):
        flow = min(left[start][end] for start, end in path)
        for start, end in path:
            left[start][end] -= flow
            left[end][start] += flow
        total += flow
    return total


def _augmenting_path(left: dict[str, dict[str, float]], sources: set[str], sinks: set[str], least: float) -> list[Edge]:
    """A shortest path with capacity left on all of its edges; empty if there is none."""
    before = {source: source for source in sources}
    frontier = deque(sorted(sources))
    while frontier:
        here = frontier.popleft()
        for there, capacity in left[here].items():
            if capacity > least and there not in before:
                before[there] = here
                if there in sinks:
                    path = [(here, there)]
                    while path[-1][0] not in sources:
                        path.append((before[path[-1][0]], path[-1][0]))
                    return path[::-1]
                frontier.append(there)
    return []
