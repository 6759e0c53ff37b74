"""How messages that are in flight at the same time share links: max-min fairness.

Messages that share a bottleneck link get equal shares of it, and no message could have more without taking it from one
that has no more. That is what TCP aims at, and what simulators of flows assume (Bertsekas and Gallager, "Data
Networks", 1992, section 6.5.2: progressive filling; SimGrid).
"""

from collections.abc import Mapping, Sequence

from minidist.overrides import overridable
from minidist.plan.cluster.topology import Edge


@overridable
def fair_rates(routes: Sequence[Sequence[Edge]], bandwidths: Mapping[Edge, float]) -> list[float]:
    """The rate of each message, bytes/s.

    Args:
        routes: for each message the links that it crosses, at least one.
        bandwidths: of every one of those links, bytes/s.
    """
    rates = [0.0] * len(routes)
    left = {edge: bandwidths[edge] for route in routes for edge in route}
    sharing: dict[Edge, set[int]] = {edge: set() for edge in left}
    for message, route in enumerate(routes):
        for edge in route:
            sharing[edge].add(message)
    while sharing:
        fullest = min(sharing, key=lambda edge: left[edge] / len(sharing[edge]))
        share = left[fullest] / len(sharing[fullest])
        for message in tuple(sharing[fullest]):
            rates[message] = share
            for edge in routes[message]:
                left[edge] -= share
                sharing[edge].discard(message)
                if not sharing[edge]:
                    del sharing[edge]
    return rates
