"""The transport of ranks on one machine: each message is streamed through a queue in shared memory.

A message may be larger than its queue. If a rank does not receive, its queue fills up and sends to it block, as on a
real network.
"""

from minidist import trace
from minidist.comm.transports.messages import HEADER_BYTES, SHORT
from minidist.comm.transports.shared_memory.byte_queue import ALIGNMENT
from minidist.comm.transports.shared_memory.segment import Segment
from minidist.comm.transports.transport import Transport

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

    def publish(self, state: int, awaited: int) -> None:
        self.status.write(state, awaited, self.moved)

    def tell_moved(self) -> None:
        self.status.tell_moved(self.moved)

    def count_poll(self) -> None:
        self.status.count_poll()

    @property
    def aborted(self) -> bool:
        """Whether the parent has ended the run."""
        return self.segment.aborted

    def close(self) -> None:
        """Let go of the queues."""
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
