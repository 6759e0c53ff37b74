"""Figure of how long a send takes, by the size of its message."""

from collections.abc import Sequence

from minidist.show.figures.subplots import subplot
from minidist.show.palette import SERIES


def draw(sizes: Sequence[int], seconds: Sequence[float], asleep: float, capacity: int):
    """Return a matplotlib Figure on logarithmic axes.

    Args:
        sizes, seconds: bytes of each message, and how long its send took.
        asleep: seconds until the receiver starts to receive.
        capacity: bytes of the queue.
    """
    figure, axes = subplot(7, 3.2)
    axes.loglog(sizes, [1e3 * t for t in seconds], "o-", color=SERIES[0], label="rank 0 in send")
    axes.axhline(1e3 * asleep, color="#999999", linestyle=":", label="rank 1 starts to receive")
    axes.axvline(capacity, color=SERIES[1], linestyle="--", label="capacity of the queue")
    axes.set(xlabel="message size, bytes", ylabel="milliseconds")
    axes.set_title("Duration of a send to a sleeping receiver", loc="left", fontsize=11)
    axes.legend(frameon=False)
    return figure
