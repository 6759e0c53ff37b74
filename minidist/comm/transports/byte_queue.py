"""A bounded byte queue in shared memory, with one writer and one reader.

Picture an endless tape of bytes, of which the queue holds the last few. ``tail`` counts the bytes ever written and
``head`` the bytes ever read, so ``tail - head`` bytes wait for the reader, and the rest of the capacity is free. Only
the writer moves the tail and only the reader moves the head, so no lock is needed. This is the single-producer
single-consumer ring of Lamport, "Proving the Correctness of Multiprocess Programs" (1977).

NCCL's FIFO between two GPUs has the same form: a ring of slots in memory that both can access, and two counters.
"""

import platform
import threading

import numpy as np

ALIGNMENT = 64  # bytes in a cache line. Every message starts on one, so it can be read as any dtype in place.
COUNTERS = 2 * ALIGNMENT  # head and tail are on separate cache lines, or each write would stall the other side

# The data must reach memory before the counter does. x86 keeps the order of stores; Arm does not guarantee it.
_STORES_KEEP_ORDER = platform.machine().lower() in ("x86_64", "amd64", "i386", "i686")
_fence_lock = threading.Lock()


def _fence() -> None:
    """Make a memory barrier with what Python has: stores before a lock's release are visible before those after its
    next acquisition."""
    for _ in range(2):
        with _fence_lock:
            pass


def padded(nbytes: int) -> int:
    """Return the number of bytes, rounded up to whole cache lines."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class ByteQueue:
    """One direction between two ranks, in ``COUNTERS + capacity`` bytes of zeroed shared memory.

    ``capacity`` is a multiple of 64. The same class serves both ends; an end uses either ``room``, ``write`` and
    ``publish``, or ``available``, ``read``, ``peek``, ``skip`` and ``release``.
    """

    def __init__(self, memory: memoryview, capacity: int) -> None:
        self.capacity = capacity
        self.data = np.frombuffer(memory, np.uint8, capacity, offset=COUNTERS)  # (capacity,)
        self._bytes = memory[COUNTERS : COUNTERS + capacity]  # the same memory: bytes copy into this view fastest
        self._tail = memory[:8].cast("Q")
        self._head = memory[ALIGNMENT : ALIGNMENT + 8].cast("Q")
        self.written = self._tail[0]  # the writer's own copy of the tail
        self.taken = self._head[0]  # the reader's own copy of the head

    @property
    def unread(self) -> int:
        """Bytes that were written but not read yet, as seen by a third process."""
        return self._tail[0] - self._head[0]

    def close(self) -> None:
        """Release the memory. The queue cannot be used afterwards."""
        self.data = np.empty(0, np.uint8)
        self._bytes.release()
        self._tail.release()
        self._head.release()

    # The writer's end

    def room(self) -> int:
        return self.capacity - (self.written - self._head[0])

    def write(self, source: bytes | memoryview) -> None:
        """Append bytes that fit the room, in whole cache lines. The reader sees them after ``publish``."""
        start = self.written % self.capacity
        end = start + len(source)
        if end <= self.capacity:
            self._bytes[start:end] = source
        else:
            first = self.capacity - start  # up to the buffer's end; the rest goes to its beginning
            self._bytes[start:] = source[:first]
            self._bytes[: end - self.capacity] = source[first:]
        self.written += padded(len(source))

    def publish(self) -> None:
        """Let the reader see all that was written."""
        if not _STORES_KEEP_ORDER:
            _fence()
        self._tail[0] = self.written

    # The reader's end

    def available(self) -> int:
        return self._tail[0] - self.taken

    def peek(self, nbytes: int) -> np.ndarray:
        """Return the next bytes in place, without a copy: at most ``nbytes``, fewer if the buffer ends before them."""
        if not _STORES_KEEP_ORDER:
            _fence()
        start = self.taken % self.capacity
        return self.data[start : start + nbytes]  # a slice ends with the buffer

    def skip(self, nbytes: int) -> None:
        """Advance past the next bytes and their padding. ``release`` gives their space back to the writer."""
        self.taken += padded(nbytes)

    def read(self, nbytes: int) -> bytes | memoryview:
        """Take the next bytes in one piece: in place, or as a copy if the buffer ends within them."""
        if not _STORES_KEEP_ORDER:
            _fence()
        start = self.taken % self.capacity
        end = start + nbytes
        self.taken += padded(nbytes)
        if end <= self.capacity:
            return self._bytes[start:end]
        return self._bytes[start:].tobytes() + self._bytes[: end - self.capacity].tobytes()

    def release(self) -> None:
        """Give the space of all skipped bytes back to the writer. What was read in place is invalid afterwards."""
        if not _STORES_KEEP_ORDER:
            _fence()  # the copy out of the queue must be complete before the writer reuses the space
        self._head[0] = self.taken
