"""Deadlock: a ring in which every rank sends before it receives, and three programs that do the same without one.

Each rank gives an array to its right neighbour and gets one from its left. It reports every call that it enters to the
parent, so that the wait-for graph can be drawn as it was after each of them:

    in a send    a rank waits until the receiver asks for the message, unless the message fits the queue
    in a recv    a rank waits until the sender has sent

In the end, the parent finds the cycle independently, from what each rank says it is blocked on.
"""

from minidist.analysis.traffic import edges
from minidist.comm.runtime.launch import Cluster
from minidist.show.demos.deadlock.run import (
    BUG,
    FITS,
    QUEUE_BYTES,
    deadlock,
    events_of,
    moments,
    odd_receive_first,
    posted_together,
    send_first,
)
from minidist.show.demos.deadlock.story import ODD, SEND_FIRST, TOGETHER, tell
from minidist.show.stage.animation import Animation

MOST = 1_000_000  # numbers in a message: each of 8 ranks has two such arrays
RIGHT = "Every rank has its left neighbour's numbers, bit for bit."
WHY_TOGETHER = "Both calls are posted before either wait, so a rank receives a message while it sends its own."
WHY_ODD = "An odd rank receives first, so its even neighbour's send can end. Then the odd rank sends."
WHY_SMALL = "The queue takes the whole message, so each send ends at once. MPI calls a program that needs this unsafe."
WHY_STUCK = "A send ends only when its receiver takes the message, and every receiver is in a send of its own: a cycle."


def animation(ranks: int, size: int, seed: int) -> Animation:
    """Run all programs with messages of ``size`` numbers, and the one that deadlocks with small messages too."""
    if not FITS < size <= MOST:
        raise ValueError(
            f"size, the float64 numbers in a message, must be from {FITS + 1:,} to {MOST:,}, got {size:,}: up to "
            f"{FITS:,} numbers fit a queue of {QUEUE_BYTES:,} bytes, and no rank has to wait"
        )
    with Cluster(ranks, queue_bytes=QUEUE_BYTES) as cluster:
        together, logs = events_of(cluster, posted_together, size, seed)
        odd, _ = events_of(cluster, odd_receive_first, size, seed)
        small, _ = events_of(cluster, send_first, FITS, seed)
        stuck, error, seconds = deadlock(cluster, size, seed)
    last = moments(sorted(stuck, key=lambda event: event.time), fits=False)[-1]
    if {rank: [awaited] for rank, awaited in edges(error.waiting).items()} != last.waiting:
        raise RuntimeError("the cycle that the launcher found is not the one that the calls make: a bug in minidist")
    first = "All send first. What happens?"
    found = f"Deadlock, found after {seconds:.1f} s."
    stories = (
        tell("send first", first, WHY_STUCK, SEND_FIRST, stuck, size, error, BUG, found),
        tell("send first", first, WHY_SMALL, SEND_FIRST, small, FITS, verdict=f"{RIGHT} But only by luck: it fits."),
        tell("odd recv first", "Odd ranks receive first. Now?", WHY_ODD, ODD, odd, size, verdict=RIGHT),
        tell("posted together", "Both are posted at once. Now?", WHY_TOGETHER, TOGETHER, together, size, verdict=RIGHT),
    )
    return Animation("deadlock", "Deadlock: which rank waits for which", stories, logs)
