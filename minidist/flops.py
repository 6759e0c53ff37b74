"""How many floating-point operations one rank's matrix products took: in forward, in backward, and recomputing.

A product of (n, k) by (k, m) counts 2 n k m, a multiplication and an addition each; everything else counts nothing, as
is usual (Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters", 2021, appendix). Nothing
in an algorithm counts: it is done where a Function is dispatched (nn/tensor.py).
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

PHASES = ("forward", "backward", "recompute")
_counts: Counter = Counter()
_phase = "forward"


def add(number: int, phase: str | None = None) -> None:
    """Count operations in a phase; None for the one that the rank is in."""
    _counts[phase or _phase] += number


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Within it, forward operations count for this phase."""
    global _phase
    before, _phase = _phase, name
    try:
        yield
    finally:
        _phase = before


def snapshot() -> Counter:
    """The counts so far, by phase: the difference of two is what happened in between."""
    return _counts.copy()
