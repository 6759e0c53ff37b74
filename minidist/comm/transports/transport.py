"""Messages between two ranks: ``isend``, ``irecv`` and ``wait``, whatever carries their bytes.

Nothing moves by itself: ``isend`` pushes a first piece, and ``progress`` moves some of the oldest send to each peer and
of the message that arrives from it; a waiting rank calls it again and again (MPI calls this the progress engine). A
message is a header and a payload, which travels in pieces, so the reader may start before the writer has finished.

Receives match messages by (context, tag), in order. An unexpected message, which no receive has asked for yet, is set
aside, but only while another receive from the same rank is waiting.

This is the part that all transports share. How a piece moves is a subclass's business: through queues in shared memory
(shared_memory.py), or through MPI (mpi.py). Nothing above this file knows which.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from minidist import trace, turns
from minidist.comm.failures import Aborted, Mismatch, caller
from minidist.comm.transports.cores import SHARED_SECONDS, ComputeClock, Core
from minidist.comm.transports.messages import SHORT, AnyOf, Arriving, Combine, Receive, Send, shorten

SPINS = 100  # polls before a waiting rank sleeps between polls
POLL_SECONDS = (20e-6, 1e-3)  # the first and the longest of these sleeps
RUNNING, BLOCKED, FINISHED = 0, 1, 2  # the states of a rank


@dataclass(slots=True, frozen=True)
class Status:
    """The status that a rank publishes about itself, so that a deadlock can be found."""

    state: int  # RUNNING, BLOCKED or FINISHED
    awaited: int  # bit p is set while the rank waits for rank p
    moved: int  # pieces of messages that it has moved
    polls: int  # unsuccessful polls of its queues while it was blocked


class Transport(ABC):
    """One rank's end of the messages of one run."""

    short = SHORT  # bytes of payload that travel with the header

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        peers = [peer for peer in range(self.size) if peer != rank]
        self.sends: dict[int, deque[Send]] = {peer: deque() for peer in peers}
        self.receives: dict[int, list[Receive]] = {peer: [] for peer in peers}
        self.arriving: dict[int, Arriving | None] = dict.fromkeys(peers)
        self.unexpected: dict[int, list[Arriving]] = {peer: [] for peer in peers}
        self.numbers = dict.fromkeys(peers, 0)  # messages sent so far to each peer
        self.unwaited: set[Send] = set()  # sends that the program does not yet know to be done
        self.traffic = trace.TrafficCounter(self.size)
        self.collectives = trace.CollectiveCounter()
        self.new_streams = count(1)  # a number for each thread of asynchronous collectives: see ``trace.stream``
        self.nodes: tuple[int, ...] = (0,) * self.size  # of each rank: all on one, but see placement.py
        self.links: Any = None  # Links: the speeds inside a node and between nodes, where they are known
        self.gpus: Any = None  # Gpus of all ranks, where they are known: see nccl/stream.py
        self.groups: list = []  # the process groups of this run; closed at its end
        self.lock = threading.RLock()  # shared by the main thread and the threads of asynchronous collectives
        self.state, self.awaited, self.moved, self.polls = RUNNING, 0, 0, 0  # as in Status
        self.core = Core()
        self.clock = ComputeClock()  # of the main thread, which makes the transport
        self.main_thread = threading.get_ident()
        self.threads = {self.main_thread}  # all that may send and receive: also the background threads
        self.background_error: BaseException | None = None  # the first error of a background thread
        self.mismatched: dict[Receive, Exception] = {}  # errors of receives that have not been raised yet
        self.ended = False  # whether the run is over: its groups may not be used later
        self.active_threads = 1  # threads of this rank that compute rather than wait
        self.waits: dict[int, tuple[int, Callable[[], bool]]] = {}  # thread -> whom it awaits, whether it is over
        self.publish()

    # What others see of this rank, and it of them

    @abstractmethod
    def publish(self) -> None:
        """Publish the Status of this rank: its ``state``, ``awaited``, ``moved`` and ``polls``."""

    @property
    @abstractmethod
    def aborted(self) -> bool:
        """Whether the run has been ended: a waiting rank must give up."""

    @abstractmethod
    def close(self) -> None:
        """Release what carries the messages. Nothing can be sent or received afterwards."""
        self.clock.close()

    # Posting

    # ``call`` travels with the message and must be the same at both ends; ``label`` names this end's call in errors.

    def isend(self, array: np.ndarray, peer: int, context: int, tag: int, call: bytes, label: str) -> Send:
        """Post a flat array of any dtype. It must not change before the send is done."""
        with self.lock:
            send = Send(self, array, peer, self.numbers[peer], context, tag, call, label)
            self.numbers[peer] += 1
            self.sends[peer].append(send)
            self._push(peer)
        return send

    def irecv(
        self, array: np.ndarray, peer: int, context: int, tag: int, call: bytes, label: str, combine: Combine | None
    ) -> Receive:
        """Post a receive into a flat array of the message's dtype and size."""
        receive = Receive(self, peer, array, context, tag, call, label, combine)
        with self.lock:
            message = self._unexpected_message(peer, context, tag)
            if message is None:
                self.receives[peer].append(receive)
            else:
                self._match(message, receive, peer)
                self._take(receive, message.buffer[: message.offset], 0)
                if message.offset == message.nbytes:
                    self.unexpected[peer].remove(message)
                    self._finish_receive(message, receive)
        return receive

    def _unexpected_message(self, peer: int, context: int, tag: int) -> Arriving | None:
        """Return the oldest unexpected message from ``peer`` that matches, complete or still arriving; None without."""
        for message in (*self.unexpected[peer], self.arriving[peer]):
            if message is not None and message.receive is None and (message.context, message.tag) == (context, tag):
                return message
        return None

    # Moving

    def progress(self) -> bool:
        """Move some of the oldest send to each peer, and of what arrives from it; return whether anything moved."""
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
            self.publish()
            return True

    @abstractmethod
    def _push(self, peer: int) -> None:
        """Move some of the oldest posted send to ``peer``; count it in ``moved``."""

    @abstractmethod
    def _pull(self, peer: int) -> None:
        """Move what has arrived of the current message from ``peer``, or of the next one; count it in ``moved``."""

    def _finish_send(self, send: Send) -> None:
        self.sends[send.peer].popleft()
        self.traffic.count(self.traffic.sent[send.peer], send.nbytes, send.elements)
        send.done = True

    def _arrive(self, peer: int, header: bytes | memoryview) -> Arriving:
        """Begin a message whose header has arrived. It goes to its receive, or aside if none has asked for it."""
        message = self.arriving[peer] = Arriving(header)
        for receive in self.receives[peer]:
            if (receive.context, receive.tag) == (message.context, message.tag):
                self.receives[peer].remove(receive)
                self._match(message, receive, peer)
                return message
        message.buffer = np.empty(message.nbytes, np.uint8)
        return message

    def _store(self, message: Arriving, piece: np.ndarray) -> None:
        """Give the next piece of a message to its receive, or set it aside if there is none yet."""
        if message.receive is None:
            message.buffer[message.offset : message.offset + len(piece)] = piece
        else:
            self._take(message.receive, piece, message.offset)
        message.offset += len(piece)

    def _end_if_complete(self, message: Arriving, peer: int) -> None:
        if message.offset < message.nbytes:
            return
        self.arriving[peer] = None
        if message.receive is None:
            self.unexpected[peer].append(message)
        else:
            self._finish_receive(message, message.receive)

    def _match(self, message: Arriving, receive: Receive, peer: int) -> None:
        """Match a message with its receive, which fails with a Mismatch if the two ends disagree about it."""
        message.receive, receive.number = receive, message.number
        if message.call != receive.call:
            theirs, ours = message.call.decode(errors="replace"), receive.label
            if receive.call != shorten(ours):  # a point-to-point call, whose name does not describe the message
                ours += f" of {receive.call.decode()}"
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
        """Give a piece to its receive. An error belongs to the receive, not to the thread that moved the piece."""
        if receive.error is None:
            try:
                receive.take(piece, offset)
            except Exception as error:
                self._fail(receive, error)

    def _fail(self, receive: Receive, error: Exception) -> None:
        receive.error = self.mismatched[receive] = error

    def _finish_receive(self, message: Arriving, receive: Receive) -> None:
        self.traffic.count(self.traffic.received[receive.peer], message.nbytes, message.elements)
        trace.message("receive", receive.peer, self.rank, message.number, message.nbytes)
        receive.done = True

    # Waiting

    def wait(self, work: Send | Receive | AnyOf) -> None:
        """Return once the work is done; for AnyOf, once one of its messages is.

        Raises:
            Mismatch: when the message is not the one that the receive expected.
        """
        if not work.done:
            self._wait(work)
        if isinstance(work, Receive) and work.error is not None:
            self.mismatched.pop(work, None)
            raise work.error

    def _wait(self, work: Send | Receive | AnyOf) -> None:
        """Poll, and after a while sleep between polls."""
        self.progress()  # what has arrived already needs no wait
        while not work.done and not self._spin(work):
            with self.clock.paused():
                self._wait_long(work)

    def _spin(self, work: Send | Receive | AnyOf) -> bool:
        """Poll for a while, and return whether the work is done."""
        began, without_core, fruitless = time.perf_counter(), 0.0, 0
        # leave the core to a computing thread of this rank, and the turn to another rank that is a thread
        spins = 0 if self.active_threads > 1 or turns.here() else SPINS
        while not work.done:
            if self.progress():
                fruitless = 0
            elif fruitless < spins and not self.core.crowded:
                fruitless += 1
                away = self.core.give_up()
                if away > SHARED_SECONDS:
                    without_core += away
                    fruitless = spins  # others want this core: a rank that sleeps gets it back sooner, when woken
            else:
                break
        self.clock.count_wait(time.perf_counter() - began, without_core)
        return work.done

    def _wait_long(self, work: Send | Receive | AnyOf) -> None:
        """Sleep between polls, and publish which rank we wait for, so that the parent can detect a deadlock."""
        started, pause = time.perf_counter_ns(), POLL_SECONDS[0]
        with self.blocked(work.awaited, lambda: work.done):
            while not work.done:
                if self._poll():
                    break
                self.check_aborted(work.describe_wait)
                with turns.away():
                    time.sleep(pause)
                pause = min(pause * 1.5, POLL_SECONDS[1])
        if trace.log is not None and threading.get_ident() == self.main_thread:
            trace.record(trace.Event(f"wait for rank {work.peer}", "wait", started, time.perf_counter_ns()))

    def _poll(self) -> bool:
        """Poll on behalf of a thread that sleeps between polls. An unsuccessful poll is published, unless another
        sleeping thread's wait is over and it has not noticed yet."""
        with self.lock:
            if self.progress():
                return True
            if not any(is_over() for _, is_over in self.waits.values()):
                self.publish_poll()
            return False

    def publish_poll(self) -> None:
        """Publish one more unsuccessful poll, so that deadlock.py can tell who is stuck."""
        self.polls += 1
        self.publish()

    @contextmanager
    def blocked(self, awaited: int, is_over: Callable[[], bool]) -> Iterator[None]:
        """Count the calling thread as blocked, on the ranks whose bits are set, until ``is_over()`` is true."""
        thread = threading.get_ident()
        with self.lock:
            self.waits[thread] = awaited, is_over
            self.change_active(-1)
        try:
            yield
        finally:
            with self.lock:
                del self.waits[thread]
                self.change_active(+1)

    def change_active(self, by: int) -> None:
        """Count a thread that begins (+1) or stops (-1) computing, and publish whether any is left."""
        with self.lock:
            self.active_threads += by
            self.state = RUNNING if self.active_threads else BLOCKED
            self.awaited = 0
            for awaited, _ in self.waits.values():
                self.awaited |= awaited
            self.publish()

    def check_usable(self) -> None:
        """Raise RuntimeError if this transport does not serve the calling thread or the current run."""
        if self.ended:
            raise RuntimeError(
                "this group belongs to a run that has ended; use the world that this run's function received"
            )
        if threading.get_ident() not in self.threads:
            raise RuntimeError(
                "only the thread that runs the rank's function may send and receive (MPI calls this "
                "MPI_THREAD_FUNNELED); for communication in the background use async_op=True"
            )
        if self.background_error is not None:
            self.raise_background_error()

    def check_aborted(self, describe_wait: Callable[[], str]) -> None:
        """Raise if the run has been ended, or if a background collective for which peers wait has failed."""
        if self.aborted:
            raise Aborted(", ".join(filter(None, (describe_wait(), caller()))))
        self.raise_background_error()

    def raise_background_error(self) -> None:
        if self.background_error is not None and threading.get_ident() == self.main_thread:
            raise self.background_error

    def finish(self) -> None:
        """Complete the sends that the rank function did not wait for, then publish that this rank has finished."""
        for sends in self.sends.values():
            while sends:
                self.wait(sends[-1])
        if self.mismatched:
            raise next(iter(self.mismatched.values()))
        self.ended, self.state, self.awaited = True, FINISHED, 0
        self.publish()

    def leftovers(self) -> list[str]:
        """Describe the messages that this rank never received. Call it once all ranks have finished."""
        for peer in self.unexpected:
            before = -1
            while self.moved != before:
                before = self.moved
                self._pull(peer)
        return [
            f"rank {peer} sent rank {self.rank} {message.elements:,} elements ({message.nbytes:,} bytes, tag "
            f"{message.tag}) in {message.call.decode(errors='replace')}, which were never received"
            for peer, messages in self.unexpected.items()
            for message in messages
        ]
