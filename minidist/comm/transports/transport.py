"""Messages between two ranks: ``isend``, ``irecv`` and ``wait``, over the byte queues in shared memory.

Nothing moves by itself: ``progress`` pushes what it can of every posted message, and whoever waits calls it again and
again (MPI calls this the progress engine). A message is a header and its payload, streamed through the queue in
pieces, so that it may be larger than the queue and the reader may begin before the writer has ended.

Receives are matched to messages by (context, tag), in order. A message that nobody has asked for yet is put aside,
but only while some receive from the same rank is waiting: a rank that does not receive leaves its queue to fill up,
and then a send to it blocks, as it would on a real network.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable

import numpy as np

from minidist import trace
from minidist.comm.failures import Aborted, Mismatch, caller
from minidist.comm.transports import shared_memory as shared
from minidist.comm.transports.messages import HEADER, HEADER_BYTES, Arriving, Combine, Receive, Send

PIECE = 256 << 10  # bytes moved at once: small enough that the reader copies one piece while the writer fills the next

SPINS = 100  # looks at the queues before a waiting rank begins to sleep between two looks
POLL_SECONDS = (20e-6, 1e-3)  # the first and the longest of these sleeps


class Transport:
    """One rank's end of all its queues, for the length of one run."""

    def __init__(self, segment: shared.Segment, rank: int) -> None:
        self.segment, self.rank, self.size = segment, rank, segment.world_size
        peers = [peer for peer in range(self.size) if peer != rank]
        self.outgoing = {peer: segment.queue(rank, peer) for peer in peers}
        self.incoming = {peer: segment.queue(peer, rank) for peer in peers}
        self.sends: dict[int, deque[Send]] = {peer: deque() for peer in peers}
        self.receives: dict[int, list[Receive]] = {peer: [] for peer in peers}
        self.arriving: dict[int, Arriving | None] = dict.fromkeys(peers)
        self.put_aside: dict[int, list[Arriving]] = {peer: [] for peer in peers}
        self.numbers = dict.fromkeys(peers, 0)  # messages begun in each direction
        self.traffic = trace.TrafficCounter(self.size)
        self.collectives = trace.CollectiveCounter()
        self.groups: list = []  # the process groups of this run, to be closed at its end
        self.lock = threading.RLock()  # the main thread and those of asynchronous collectives share one engine
        self.status = segment.status[rank]
        self.moved = 0
        self.main_thread = threading.get_ident()
        self.threads = {self.main_thread}  # those that may send and receive: the others are its background threads
        self.background_error: BaseException | None = None  # the first of the background threads
        self.mismatched: list[Receive] = []  # receives whose error nobody has been told yet
        self.ended = False  # true once the run is over: its groups may not be used in a later one
        self.active_threads = 1  # threads of this rank that compute rather than wait
        self.waits: dict[int, Waiting] = {}  # thread -> what it is blocked on
        self.status.write(shared.RUNNING, 0, 0)

    # Posting

    # ``call`` travels with the message, and both ends must give the same; ``label`` names this end's call to a person.

    def isend(self, array: np.ndarray, peer: int, context: int, tag: int, call: bytes, label: str) -> Send:
        """Post a flat array of any dtype. Its memory must not change before the send is done."""
        send = Send(peer, array.view(np.uint8), array.size, label)
        with self.lock:
            send.number = self.numbers[peer]
            self.numbers[peer] += 1
            now = time.perf_counter_ns()
            send.header = HEADER.pack(send.number, context, tag, send.nbytes, send.elements, now, call)
            self.sends[peer].append(send)
            self._push(peer)
        return send

    def irecv(
        self, array: np.ndarray, peer: int, context: int, tag: int, call: bytes, label: str, combine: Combine | None
    ) -> Receive:
        """Post the wish for a message into a flat array of the message's dtype and size."""
        receive = Receive(peer, array, context, tag, call, label, combine)
        with self.lock:
            message = self._unasked_message(peer, context, tag)
            if message is None:
                self.receives[peer].append(receive)
            else:
                self._match(message, receive, peer)
                self._take(receive, message.unasked[: message.offset], 0)
                if message.offset == message.nbytes:
                    self.put_aside[peer].remove(message)
                    self._finish_receive(message, receive)
        return receive

    def _unasked_message(self, peer: int, context: int, tag: int) -> Arriving | None:
        """The oldest message from ``peer`` that came, or has begun to come, before anybody asked for it."""
        coming = self.arriving[peer]
        messages = self.put_aside[peer] + ([coming] if coming is not None and coming.receive is None else [])
        return next((message for message in messages if (message.context, message.tag) == (context, tag)), None)

    # Moving

    def progress(self) -> bool:
        """Move what can be moved of every posted message; False where that was nothing."""
        with self.lock:
            before = self.moved
            for peer, sends in self.sends.items():
                if sends:
                    self._push(peer)
            for peer, receives in self.receives.items():
                if receives or self.arriving[peer] is not None:
                    self._pull(peer)
            if self.moved == before:
                return False
            self.status.tell_moved(self.moved)
            return True

    def _push(self, peer: int) -> None:
        """Write at most one piece of the oldest posted send to ``peer``, its header first."""
        send, queue = self.sends[peer][0], self.outgoing[peer]
        room, before = queue.room(), queue.written
        if send.header is not None:
            if room < HEADER_BYTES:
                return
            queue.write(np.frombuffer(send.header, np.uint8))
            send.header = None
            room -= HEADER_BYTES
            trace.message("send", self.rank, peer, send.number, send.nbytes)
        piece = min(send.nbytes - send.offset, room, PIECE)  # a multiple of 64, or the end of the message
        if piece:
            queue.write(send.payload[send.offset : send.offset + piece])
            send.offset += piece
        if queue.written == before:
            return
        queue.publish()
        self.moved += 1
        if send.offset == send.nbytes:
            self.sends[peer].popleft()
            self.traffic.count(self.traffic.sent[peer], send.nbytes, send.elements)
            send.done = True

    def _pull(self, peer: int) -> None:
        """Read at most one piece of the message that comes from ``peer``, its header first."""
        queue, message = self.incoming[peer], self.arriving[peer]
        available = queue.available()
        if not available:
            return
        if message is None:
            message = self.arriving[peer] = self._read_header(peer)
            available -= HEADER_BYTES
        if available and message.nbytes:
            piece = queue.peek(min(available, PIECE, message.nbytes - message.offset))
            if message.receive is None:
                message.unasked[message.offset : message.offset + len(piece)] = piece
            else:
                self._take(message.receive, piece, message.offset)
            message.offset += len(piece)
            queue.skip(len(piece))
        queue.release()
        self.moved += 1
        if message.offset == message.nbytes:
            self.arriving[peer] = None
            if message.receive is None:
                self.put_aside[peer].append(message)
            else:
                self._finish_receive(message, message.receive)

    def _read_header(self, peer: int) -> Arriving:
        queue = self.incoming[peer]
        header = queue.peek(HEADER_BYTES)
        queue.skip(len(header))
        if len(header) < HEADER_BYTES:  # the end of the buffer cuts it
            rest = queue.peek(HEADER_BYTES - len(header))
            queue.skip(len(rest))
            header = np.concatenate([header, rest])
        message = Arriving(header)
        for receive in self.receives[peer]:
            if (receive.context, receive.tag) == (message.context, message.tag):
                self.receives[peer].remove(receive)
                self._match(message, receive, peer)
                return message
        message.unasked = np.empty(message.nbytes, np.uint8)
        return message

    def _match(self, message: Arriving, receive: Receive, peer: int) -> None:
        """Join a message to its receive, unless the two ends disagree about what it is."""
        message.receive, receive.number = receive, message.number
        if message.call != receive.call:
            theirs, ours = message.call.decode(errors="replace"), receive.call.decode()
            if receive.label != ours:  # a point-to-point call, whose name says nothing of the message
                ours = f"{receive.label} of {ours}"
            error = Mismatch(
                f"ranks {self.rank} and {peer} disagree. Rank {self.rank} called {ours}; what came from rank {peer} "
                f"is {theirs}"
            )
        elif message.nbytes != receive.target.nbytes:
            error = Mismatch(
                f"ranks {self.rank} and {peer} disagree in {receive.label}: rank {self.rank} expects "
                f"{receive.target.size:,} elements from rank {peer}, which sent {message.elements:,}"
            )
        else:
            return
        self._fail(receive, error)

    def _take(self, receive: Receive, piece: np.ndarray, offset: int) -> None:
        """Give a piece to its receive. Its error is its own, not that of whichever thread has moved the piece."""
        if receive.error is None:
            try:
                receive.take(piece, offset)
            except Exception as error:
                self._fail(receive, error)

    def _fail(self, receive: Receive, error: Exception) -> None:
        receive.error = error
        self.mismatched.append(receive)

    def _finish_receive(self, message: Arriving, receive: Receive) -> None:
        self.traffic.count(self.traffic.received[receive.peer], message.nbytes, message.elements)
        trace.message("receive", receive.peer, self.rank, message.number, message.nbytes)
        receive.done = True

    # Waiting

    def wait(self, work: Send | Receive) -> None:
        """Return once the work is done.

        Raises:
            Mismatch: when the message that came is not the one that was asked for.
        """
        fruitless = 0
        spins = SPINS if self.active_threads == 1 else 0  # leave the core to another thread of this rank that computes
        while not work.done:
            if self.progress():
                fruitless = 0
            elif fruitless < spins:
                fruitless += 1
                _give_way()
            else:
                self._wait_long(work)
        if isinstance(work, Receive) and work.error is not None:
            if work in self.mismatched:
                self.mismatched.remove(work)
            raise work.error

    def _wait_long(self, work: Send | Receive) -> None:
        """Sleep between looks, and say for whom, so that the parent can tell a deadlock from patience."""
        started, pause = time.perf_counter_ns(), POLL_SECONDS[0]
        with Waiting(self, 1 << work.peer, lambda: work.done):
            while not work.done:
                if self._look():
                    break
                self.give_up_if_hopeless(work.waits)
                time.sleep(pause)
                pause = min(pause * 1.5, POLL_SECONDS[1])
        if trace.recording() and threading.get_ident() == self.main_thread:
            trace.record(trace.Event(f"wait for rank {work.peer}", "wait", started, time.perf_counter_ns()))

    def _look(self) -> bool:
        """Progress of a thread that sleeps between two looks. A look in vain is told to the parent, unless the wait of
        another sleeping thread is over and it does not know yet."""
        with self.lock:
            if self.progress():
                return True
            if not any(wait.is_over() for wait in self.waits.values()):
                self.status.count_poll()
            return False

    def change_active(self, by: int) -> None:
        """Count a thread that begins (+1) or stops (-1) computing, and publish whether any is left."""
        with self.lock:
            self.active_threads += by
            awaited = 0
            for wait in self.waits.values():
                awaited |= wait.awaited
            self.status.write(shared.RUNNING if self.active_threads else shared.BLOCKED, awaited, self.moved)

    def check_usable(self) -> None:
        """Raise RuntimeError where the calling thread or the run is not the one that this transport serves."""
        if self.ended:
            raise RuntimeError(
                "this group belongs to a run that has ended; use the world that this run's function received"
            )
        if threading.get_ident() not in self.threads:
            raise RuntimeError(
                "only the thread that runs the rank's function may send and receive (MPI calls this "
                "MPI_THREAD_FUNNELED); for communication in the background use async_op=True"
            )
        self.raise_background_error()

    def give_up_if_hopeless(self, waits: Callable[[], str]) -> None:
        """Raise where the parent has ended the run, or a collective in the background has failed: peers wait for it."""
        if self.segment.aborted:
            raise Aborted(", ".join(filter(None, (waits(), caller()))))
        self.raise_background_error()

    def raise_background_error(self) -> None:
        if self.background_error is not None and threading.get_ident() == self.main_thread:
            raise self.background_error

    def finish(self) -> None:
        """Complete the sends that the rank function left unwaited, then tell the parent that nothing more comes."""
        for sends in self.sends.values():
            while sends:
                self.wait(sends[-1])
        if self.mismatched:
            raise self.mismatched[0].error
        self.ended = True
        self.status.write(shared.FINISHED, 0, self.moved)

    def leftovers(self) -> list[str]:
        """The messages that were sent to this rank and never received, in words. Call when all ranks have ended."""
        for peer, queue in self.incoming.items():
            while queue.available():
                self._pull(peer)
        return [
            f"rank {peer} sent rank {self.rank} {message.elements:,} elements ({message.nbytes:,} bytes, tag "
            f"{message.tag}) in {message.call.decode(errors='replace')}, which were never received"
            for peer, messages in self.put_aside.items()
            for message in messages
        ]


class Waiting:
    """While it is entered, the calling thread counts as blocked: on the ranks whose bits ``awaited`` has, until
    ``is_over()`` is true."""

    def __init__(self, transport: Transport, awaited: int, is_over: Callable[[], bool]) -> None:
        self.transport, self.awaited, self.is_over = transport, awaited, is_over
        self.thread = threading.get_ident()

    def __enter__(self) -> None:
        with self.transport.lock:
            self.transport.waits[self.thread] = self
            self.transport.change_active(-1)

    def __exit__(self, *_) -> None:
        with self.transport.lock:
            del self.transport.waits[self.thread]
            self.transport.change_active(+1)


# Let another process have the core: with more ranks than cores, the one that is waited for may need it.
_give_way = getattr(os, "sched_yield", lambda: time.sleep(0))
