"""The transport of ranks on one machine: each message is streamed through a queue in shared memory.

A message may be larger than its queue. If a rank does not receive, its queue fills up and sends to it block, as on a
real network.

A cluster has one segment of shared memory: a status line for each rank, then a queue for each ordered pair of ranks.
The parent creates it; ranks only attach. Once all of them have, the parent unlinks its name: the system then frees the
memory when the last process ends, however it ends.

It always uses ``multiprocess.shared_memory``, never the standard library's: a child process of the one does not share
the other's resource tracker, and a tracker of its own would unlink a live segment when the child ends.
"""

import os
import secrets
import sys
from contextlib import suppress
from typing import ClassVar

from multiprocess import resource_tracker, shared_memory

from minidist import trace
from minidist.comm.runtime.sweep import PREFIX, owner
from minidist.comm.transports.byte_queue import ALIGNMENT, COUNTERS, ByteQueue, padded
from minidist.comm.transports.messages import HEADER_BYTES, SHORT
from minidist.comm.transports.transport import Status, Transport

MAX_RANKS = 64  # the ranks that one rank waits for are published as the bits of one 64-bit word
MIB = 1 << 20


class StatusLine:
    """A rank's status in one cache line of shared memory. The rank writes it; the parent reads it, and writes it
    between runs."""

    def __init__(self, memory: memoryview) -> None:
        self._words = memory[:ALIGNMENT].cast("Q")  # state, awaited, moved, polls

    def write(self, state: int, awaited: int, moved: int, polls: int) -> None:
        self._words[1] = awaited
        self._words[2] = moved
        self._words[3] = polls
        self._words[0] = state

    def read(self) -> Status:
        return Status(*self._words[:4])

    def release(self) -> None:
        self._words.release()


def queue_capacity(world_size: int) -> int:
    """Return the default bytes per queue: 1 MiB, or less if all queues would exceed 32 MiB in total."""
    pairs = max(1, world_size * (world_size - 1))
    return min(MIB, padded(32 * MIB // pairs))


class PrivateMemory:
    """Memory of this process alone, with the interface of ``SharedMemory``."""

    _by_name: ClassVar[dict[str, bytearray]] = {}

    def __init__(self, name: str, nbytes: int) -> None:
        self.name, self.buf = name, memoryview(self._by_name.setdefault(name, bytearray(nbytes)))

    def close(self) -> None:
        self.buf.release()

    def unlink(self) -> None:
        del self._by_name[self.name]


class Segment:
    """The shared memory of ``world_size`` ranks.

    With ``name=None`` it creates the memory, otherwise it attaches to it. ``capacity`` is that of each queue, in bytes.
    ``private`` memory is for ranks that are threads.

    Raises:
        MemoryError: when too little shared memory is free, before any rank could touch it.
    """

    def __init__(
        self, world_size: int, capacity: int | None = None, name: str | None = None, private: bool = False
    ) -> None:
        capacity = capacity or queue_capacity(world_size)
        self.world_size, self.capacity = world_size, capacity
        queues_start = (1 + world_size) * ALIGNMENT  # one line for the abort flag, then the status lines
        nbytes = queues_start + world_size * (world_size - 1) * (COUNTERS + capacity)
        if private:
            name = name or secrets.token_hex(8)
            self._memory = PrivateMemory(name, nbytes)
        elif name is None:
            _check_file_size(nbytes)
            name = f"{PREFIX}{owner()}-{secrets.token_hex(3)}"  # macOS, where an owner is short, allows 30 characters
            self._memory = shared_memory.SharedMemory(name, create=True, size=nbytes)
            try:
                _reserve(name, nbytes)
            except BaseException:
                self._memory.close()
                self._memory.unlink()
                raise
        else:
            self._memory = shared_memory.SharedMemory(name=name)
        self.name = name
        self.place = world_size, capacity, self.name, private  # Segment(*place) attaches to it
        self._linked = True
        view = self._memory.buf
        assert view is not None
        self._abort, self._queues = view[:8].cast("Q"), view[queues_start:]
        self.status = [StatusLine(view[(1 + rank) * ALIGNMENT :]) for rank in range(world_size)]

    def queue(self, source: int, destination: int) -> ByteQueue:
        step = COUNTERS + self.capacity
        peer = destination - (destination > source)  # no rank has a queue to itself
        start = (source * (self.world_size - 1) + peer) * step
        return ByteQueue(self._queues[start : start + step], self.capacity)

    @property
    def aborted(self) -> bool:
        """Whether the parent has ended the run: a waiting rank must give up."""
        return self._abort[0] != 0

    def abort(self) -> None:
        self._abort[0] = 1

    def unlink(self) -> None:
        """Remove the segment's name, once. The memory is freed when the last process has closed it."""
        if self._linked:
            with suppress(FileNotFoundError):  # an interrupted cleanup runs again
                self._memory.unlink()
            self._linked = False

    def disown(self) -> None:
        """Leave the name to its creator, in a process that has not inherited the creator's resource tracker: its own
        tracker would unlink the name when the process ends."""
        if os.name == "posix" and isinstance(self._memory, shared_memory.SharedMemory):
            resource_tracker.unregister(self._memory._name, "shared_memory")

    def close(self) -> None:
        """Detach this process from the memory."""
        for view in (self._abort, self._queues, *self.status):
            view.release()
        self._memory.close()


def _check_file_size(nbytes: int) -> None:
    """Raise MemoryError if shared memory, which Linux counts as a file, exceeds the limit on the size of a file."""
    if sys.platform != "linux":
        return
    import resource

    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if limit != resource.RLIM_INFINITY and nbytes > limit:
        raise MemoryError(
            f"the queues between the ranks need {nbytes / MIB:.1f} MiB of shared memory, which is a file in /dev/shm, "
            f"but a file may have {limit / MIB:.1f} MiB at most here. Raise that limit: ulimit -f unlimited"
        )


def _reserve(name: str, nbytes: int) -> None:
    """Reserve the pages, or raise MemoryError. Linux hands out shared memory that it does not have, and later kills the
    process that touches it with SIGBUS."""
    path = f"/dev/shm/{name}"
    if not (hasattr(os, "posix_fallocate") and os.path.exists(path)):
        return  # macOS and Windows refuse at creation
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.posix_fallocate(descriptor, 0, nbytes)
    except OSError as error:
        free = os.statvfs("/dev/shm")
        raise MemoryError(
            f"the queues between the ranks need {nbytes / MIB:.1f} MiB of shared memory, but /dev/shm has only "
            f"{free.f_bavail * free.f_frsize / MIB:.1f} MiB free ({error.strerror}). Enlarge /dev/shm (docker run "
            "--shm-size=1g; mount -o remount,size=1g /dev/shm), or pass a smaller queue_bytes= to Cluster"
        ) from None
    finally:
        os.close(descriptor)


PIECE = 256 << 10  # bytes: small enough that the reader copies one piece while the writer fills the next

assert HEADER_BYTES % ALIGNMENT == 0


class SharedMemoryTransport(Transport):
    """One rank's end of all its queues, for the duration of one run."""

    def __init__(self, segment: Segment, rank: int) -> None:
        self.segment, self.status = segment, segment.status[rank]
        super().__init__(rank, segment.world_size)
        self.outgoing = {peer: segment.queue(rank, peer) for peer in self.sends}
        self.incoming = {peer: segment.queue(peer, rank) for peer in self.sends}
        self.short = min([SHORT, *(queue.capacity - HEADER_BYTES for queue in self.outgoing.values())])

    def publish(self) -> None:
        self.status.write(self.state, self.awaited, self.moved, self.polls)

    @property
    def aborted(self) -> bool:
        return self.segment.aborted

    def close(self) -> None:
        super().close()
        for queue in (*self.outgoing.values(), *self.incoming.values()):
            queue.close()

    def _push(self, peer: int) -> None:
        """Write at most one piece of the oldest posted send to ``peer``, its header first."""
        send, queue = self.sends[peer][0], self.outgoing[peer]
        room, before = queue.room(), queue.written
        if send.header is not None:
            if room < len(send.header):
                return
            queue.write(send.header)
            room -= len(send.header)
            send.header = None
            trace.message("send", self.rank, peer, send.number, send.nbytes)
        if send.offset < send.nbytes:
            piece = min(send.nbytes - send.offset, room, PIECE)  # a multiple of 64, or the end of the message
            queue.write(send.payload[send.offset : send.offset + piece])
            send.offset += piece
        if queue.written == before:
            return
        queue.publish()
        self.moved += 1
        if send.offset == send.nbytes:
            self._finish_send(send)

    def _pull(self, peer: int) -> None:
        """Read at most one piece of the message arriving from ``peer``, its header first."""
        queue, message = self.incoming[peer], self.arriving[peer]
        available = queue.available()
        if not available:
            return
        if message is None:
            message = self._arrive(peer, queue.read(HEADER_BYTES))
            available -= HEADER_BYTES
        if available and message.nbytes:
            piece = queue.peek(min(available, PIECE, message.nbytes - message.offset))
            self._store(message, piece)
            queue.skip(len(piece))
        queue.release()
        self.moved += 1
        self._end_if_complete(message, peer)
