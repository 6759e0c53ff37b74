"""What each scene of a cluster comes to, in numbers of the clock."""

from collections.abc import Sequence

from minidist.show.demos.cluster.lanes import microseconds
from minidist.show.demos.cluster.run import ONE, Step
from minidist.show.demos.cluster.scene import uplink_full


def verdict(steps: Sequence[Step], number: int, proof: str) -> str:
    """How long a step takes, and what it waits for."""
    step, one = steps[number], steps[0]
    if step.name == ONE:
        return f"{_waiting(step)} No message leaves the node. {proof}"
    times = f"{step.seconds / one.seconds:.1f} times as long as in one node"
    nbytes = step.crossing_bytes(tensor_parallel=False)
    return (
        f"{microseconds(step.seconds)}, {times}. {_waiting(step)} The uplink is full {uplink_full(step):.0%} of it. "
        f"Between nodes: {nbytes / 1e6:.1f} MB, all for the gradients of data parallelism."
    )


def harm(steps: Sequence[Step], across: Step, proof: str) -> str:
    """What it costs to have tensor parallelism across nodes.

    Raises:
        RuntimeError: if it costs nothing.
    """
    right = steps[-1]
    if across.seconds <= right.seconds:
        raise RuntimeError("with tensor parallelism across nodes the step is not longer: choose another size")
    before, now = right.report.bytes_between_nodes, across.report.bytes_between_nodes
    return (
        f"{microseconds(across.seconds)} instead of {microseconds(right.seconds)}: "
        f"{across.seconds / right.seconds:.1f} times as long. {_waiting(across)} The uplink is full "
        f"{uplink_full(across):.0%} of it. Between nodes: {now / 1e6:.1f} MB "
        f"instead of {before / 1e6:.1f}. No result shows it: it is the same run. {proof}"
    )


def _waiting(step: Step) -> str:
    shares = [rank.computing / step.seconds for rank in step.report.ranks]
    return f"The ranks wait {1 - sum(shares) / len(shares):.0%} of the time."
