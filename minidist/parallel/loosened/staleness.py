"""Stale synchronous parallel: fast workers may run ahead of the slowest, but not far.

Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server" (NeurIPS 2013). A worker's
clock counts the steps that it has ended. It may begin the next one while it is at most ``staleness`` steps ahead of the
slowest. So the weights that it reads lack updates of the last few steps only, and convergence can be proved. With 0 all
workers take every step together (bulk synchronous parallel); without a bound nobody ever waits.
"""

from collections.abc import Sequence

from minidist.overrides import overridable


@overridable
def may_begin(clocks: Sequence[int], worker: int, staleness: float) -> bool:
    """Whether a worker may begin its next step.

    Args:
        clocks: how many steps each worker has ended.
        worker: which of them asks.
        staleness: by how many steps it may be ahead of the slowest; infinite for no bound.
    """
    return clocks[worker] - min(clocks) <= staleness
