"""The rings show what a real queue holds."""

import numpy as np
from figures.ch02 import byte_queue as picture

from minidist.comm.transports.shared_memory.byte_queue import COUNTERS, ByteQueue

LINES = 8


def a_queue() -> ByteQueue:
    return ByteQueue(memoryview(bytearray(COUNTERS + LINES * 64)), LINES * 64)


def put(queue: ByteQueue, letter: str, nbytes: int) -> None:
    queue.write(np.full(nbytes, ord(letter), np.uint8))
    queue.publish()


def take(queue: ByteQueue, nbytes: int) -> None:
    queue.skip(nbytes)
    queue.release()


def unread(shot: picture.Snapshot) -> str:
    return "".join((letter or "-") if shot.unread(line) else "." for line, letter in enumerate(shot.letters))


def test_snapshots_of_a_queue_that_wraps_around():
    queue = a_queue()
    assert unread(picture.snapshot(queue, "")) == "........"
    put(queue, "A", 192)
    put(queue, "B", 100)  # two lines, the second not full
    assert unread(picture.snapshot(queue, "")) == "AAABB..."
    take(queue, 192)
    put(queue, "C", 320)
    shot = picture.snapshot(queue, "full round")
    assert unread(shot) == "CC.BBCCC" and (shot.tail, shot.head) == (640, 192)
    put(queue, "D", 64)
    assert unread(picture.snapshot(queue, "full")) == "CCDBBCCC" and queue.room() == 0


def test_one_wedge_for_each_line_in_the_colour_of_its_message():
    queue = a_queue()
    put(queue, "A", 64)
    figure = picture.draw([picture.snapshot(queue, "one")], {"A": "#ff0000"})
    wedges = figure.axes[0].patches[:LINES]
    assert [wedge.get_facecolor()[:3] == (1, 0, 0) for wedge in wedges] == [True] + [False] * (LINES - 1)
    assert (wedges[0].theta2, wedges[1].theta2) == (90, 45)  # clockwise from the top
