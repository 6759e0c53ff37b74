"""How messages share links: no link has too much, and what one message cannot use the others get."""

import numpy as np
import pytest

from minidist.analysis.clock.fairness import fair_rates


@pytest.mark.parametrize("seed", range(20))
def test_rates_are_max_min_fair(seed):
    """Every message crosses a full link on which none is faster: the definition."""
    rng = np.random.default_rng(seed)
    bandwidths = {("link", str(i)): float(rng.integers(1, 20)) for i in range(6)}
    edges = list(bandwidths)
    routes = [[edges[i] for i in rng.choice(6, rng.integers(1, 4), replace=False)] for _ in range(9)]
    rates = fair_rates(routes, bandwidths)
    load = {edge: sum(r for r, route in zip(rates, routes, strict=True) if edge in route) for edge in edges}
    assert all(load[edge] <= bandwidths[edge] * (1 + 1e-12) for edge in edges)  # a few roundings
    for rate, route in zip(rates, routes, strict=True):
        assert any(
            load[edge] >= bandwidths[edge] * (1 - 1e-12)
            and rate >= (1 - 1e-12) * max(r for r, other in zip(rates, routes, strict=True) if edge in other)
            for edge in route
        )
