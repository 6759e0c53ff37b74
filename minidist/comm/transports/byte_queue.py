"""A bounded byte queue in shared memory, with one writer and one reader.

Picture an endless tape of bytes, of which the queue holds the last few. ``tail`` counts the bytes ever written and
``head`` the bytes ever read, so ``tail - head`` bytes wait to be read and the rest of the capacity is free. Only the
writer moves the tail and only the reader moves the head: nobody needs a lock. This is the single-producer
single-consumer ring of Lamport, "Proving the Correctness of Multiprocess Programs" (1977).

NCCL's FIFO between two GPUs has the same form: a ring of slots in memory that both can reach, and two counters.
"""

import platform
import threading

import numpy as np

ALIGNMENT = 64  # bytes; a cache line. Every message starts on one, so that a queue can be read as any dtype.
COUNTERS = 2 * ALIGNMENT  # head and tail lie on lines of their own, or each write would stall the other side

# The data must be in memory before the counter says so. x86 keeps the order of stores; Arm does not promise to.
_STORES_KEEP_ORDER = platform.machine().lower() in ("x86_64", "amd64", "i386", "i686")
_fence_lock = threading.Lock()


def _fence() -> None:
    """A memory barrier, from what Python has: stores before a lock's release are seen before those after its next
    acquisition."""
    for _ in range(2):
        with _fence_lock:
            pass


def padded(nbytes: int) -> int:
    """The number of bytes rounded up to whole cache lines."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class ByteQueue:
    """One direction between two ranks, over ``COUNTERS + capacity`` bytes of zeroed shared memory.

    ``capacity`` is a multiple of 64. The same class serves both ends; an end uses either ``room``,
    ``write`` and ``publish``, or ``available``, ``peek``, ``skip`` and ``release``.
    """

    def __init__(self, memory: memoryview, capacity: int) -> None:
        self.capacity = capacity
        self.data = np.frombuffer(memory, np.uint8, capacity, offset=COUNTERS)  # (capacity,)
        self._tail = memory[:8].cast("Q")
        self._head = memory[ALIGNMENT : ALIGNMENT + 8].cast("Q")
        self.written = self._tail[0]  # the writer's own copy of the tail
        self.read = self._head[0]  # the reader's own copy of the head

    @property
    def unread(self) -> int:
        """Bytes that were written and not read yet, for whoever looks from outside."""
        return self._tail[0] - self._head[0]

    # The writer's end

    def room(self) -> int:
        return self.capacity - (self.written - self._head[0])

    def write(self, source: np.ndarray) -> None:
        """Append a uint8 array that fits the room, in whole cache lines. The reader sees it after ``publish``."""
        nbytes = len(source)
        start = self.written % self.capacity
        first = min(nbytes, self.capacity - start)  # up to the end of the buffer, the rest from its beginning
        self.data[start : start + first] = source[:first]
        if first < nbytes:
            self.data[: nbytes - first] = source[first:]
        self.written += padded(nbytes)

    def publish(self) -> None:
        """Let the reader see all that was written."""
        if not _STORES_KEEP_ORDER:
            _fence()
        self._tail[0] = self.written

    # The reader's end

    def available(self) -> int:
        return self._tail[0] - self.read

    def peek(self, nbytes: int) -> np.ndarray:
        """The next bytes in place, without copying: at most ``nbytes``, fewer where the buffer's end cuts them."""
        if not _STORES_KEEP_ORDER:
            _fence()
        start = self.read % self.capacity
        return self.data[start : start + nbytes]  # a slice ends with the buffer

    def skip(self, nbytes: int) -> None:
        """Go past the next bytes and the padding behind them. The writer gets their room at ``release``."""
        self.read += padded(nbytes)

    def release(self) -> None:
        """Give the room of all that was skipped back to the writer. Views from ``peek`` are not to be read after it."""
        if not _STORES_KEEP_ORDER:
            _fence()  # the copy out of the queue must be over before the writer may write there again
        self._head[0] = self.read
