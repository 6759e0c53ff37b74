"""Deadlock: a ring in which every rank sends before it receives, and three programs that do the same without one.

Each rank gives an array to its right neighbour and gets one from its left. It reports every call that it enters to the
parent, so that the wait-for graph can be drawn as it was after each of them:

    in a send    a rank waits until the receiver asks for the message, unless the message fits the queue
    in a recv    a rank waits until the sender has sent

These calls determine which rank waits for which. In the end, the parent finds the cycle independently, from what each
rank says it is blocked on, and reports who waits for whom, in which call and line. The two must agree.
"""

from minidist.analysis.traffic import edges
from minidist.comm.runtime.launch import Cluster
from minidist.show.demos.deadlock import lecture, scene
from minidist.show.demos.deadlock.bug import BUG, deadlock, send_first
from minidist.show.demos.deadlock.programs import ODD, SEND_FIRST, TOGETHER
from minidist.show.demos.deadlock.run import FITS, QUEUE_BYTES, events_of, odd_receive_first, posted_together
from minidist.show.player.animation import Animation

MOST = 1_000_000  # numbers: 8 ranks have two arrays each


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
    right = "Every rank has its left neighbour's numbers, bit for bit."
    luck = f"{right} But only by luck: with one more number per message, every rank would wait forever."
    small_about = "Every rank sends first, messages fit the queue"
    scenes = (
        lecture.together(
            scene.of_events("posted together", "Send and receive posted together", TOGETHER, together, size, right)
        ),
        lecture.odd_first(
            scene.of_events("odd recv first", "Even ranks send first, odd ranks receive first", ODD, odd, size, right)
        ),
        lecture.small(scene.of_events("small messages", small_about, SEND_FIRST, small, FITS, luck)),
    )
    cycle, outcome = edges(error.waiting), scene.verdict(error, seconds)
    broken = scene.of_events("broken", "Every rank sends first", SEND_FIRST, stuck, size, outcome, cycle)
    broken = lecture.stuck(broken, ranks)
    return Animation("deadlock", "Deadlock: which rank waits for which", scenes, broken, BUG, logs)
