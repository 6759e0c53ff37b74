"""What each scene of a cluster comes to, in numbers of the clock."""

from collections.abc import Sequence

from minidist.show.demos.cluster.bars import microseconds
from minidist.show.demos.cluster.run import ONE, Step
from minidist.show.demos.cluster.scene import uplink_full


def verdict(steps: Sequence[Step], number: int, proof: str) -> str:
    """How long a step takes, and what it waits for."""
    step, one = steps[number], steps[0]
    if step.name == ONE:
        return f"The ranks wait {_waiting(step)} of the time. No message leaves the node. {proof}"
    times = f"{step.seconds / one.seconds:.1f} times as long as in one node"
    nbytes = step.crossing_bytes(tensor_parallel=False)
    return (
        f"{microseconds(step.seconds)}, {times}. The ranks wait {_waiting(step)} of the time, and the uplink is "
        f"full {uplink_full(step):.0%} of it. "
        f"Between nodes: {nbytes / 1e6:.1f} MB, all for the gradients of data parallelism."
    )


def harm(right: Step, across: Step, proof: str) -> str:
    """What it costs to have tensor parallelism across nodes instead of inside them.

    Raises:
        RuntimeError: if it costs nothing.
    """
    if across.seconds <= right.seconds:
        raise RuntimeError("with tensor parallelism across nodes the step is not longer: choose another size")
    before, now = right.report.bytes_between_nodes, across.report.bytes_between_nodes
    return (
        f"{microseconds(across.seconds)} instead of {microseconds(right.seconds)}: "
        f"{across.seconds / right.seconds:.1f} times as long. The ranks wait {_waiting(across)} of the time, "
        f"and the uplink is full {uplink_full(across):.0%} of it. Between nodes: {now / 1e6:.1f} MB "
        f"instead of {before / 1e6:.1f}. No result shows it: it is the same run. {proof}"
    )


def _waiting(step: Step) -> str:
    shares = [rank.waiting / step.seconds for rank in step.report.ranks]
    return f"{sum(shares) / len(shares):.0%}"
