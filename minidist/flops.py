"""Counts of the floating-point operations of one rank's matrix products in forward, backward and recomputation.

A product of (n, k) by (k, m) counts 2 n k m: as many multiplications as additions. Nothing else counts, as is usual
(Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters", 2021, appendix).
Algorithms count nothing themselves: a mode around every operation does (nn/measuring.py).
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

PHASES = ("forward", "backward", "recompute")
_counts: Counter = Counter()
_phase = "forward"


def add(number: int, phase: str | None = None) -> None:
    """Count operations in a phase; None for the current phase."""
    _counts[phase or _phase] += number


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Count forward operations for this phase within the context."""
    global _phase
    before, _phase = _phase, name
    try:
        yield
    finally:
        _phase = before


def snapshot() -> Counter:
    """Return the counts so far, by phase. The difference of two snapshots is what was counted in between."""
    return _counts.copy()
