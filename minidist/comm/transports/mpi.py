"""The transport of ranks in an MPI job, on one node or on many: MPI moves the bytes, the matching stays ours.

MPI could match messages too, and sum them. But its tags have too few bits for ours, it cannot say that two ranks called
different collectives, and the order in which ``MPI_Allreduce`` adds is the implementation's own. So only its
point-to-point calls are used, and every layout keeps its bits.

A message is a header, with the payload behind it if that is short (MPI libraries call this eager), else followed by
pieces. MPI keeps the order of messages between two ranks that have one tag, so both ends know which piece comes next,
and no piece is so large that its length would overflow an int.

Ranks of one machine publish what they wait for in memory that all see, so a deadlock is found at once. Ranks of several
machines share no memory. So a rank that has waited too long asks all others what they do. Ranks that wait too, or have
ended, answer; a rank that computes does not. Gloo and torch's watchdog of NCCL have such a limit as well.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from mpi4py import MPI

from minidist import trace
from minidist.comm.failures import Deadlock, Hang, caller
from minidist.comm.transports.messages import HEADER_BYTES, SHORT, Arriving
from minidist.comm.transports.transport import Transport

HEADERS, PIECES = 0, 1  # the tags of both kinds of MPI message
PIECE = 1 << 20  # bytes
IN_FLIGHT = 4  # MPI messages to one peer or from it that MPI knows of at a time


class MPITransport(Transport):
    """One rank's end of ``comm``, in which only a run's ranks send. ``questions`` ends a run that does not move."""

    def __init__(self, comm: MPI.Comm, nodes: tuple[int, ...], questions: "Questions") -> None:
        super().__init__(comm.Get_rank(), comm.Get_size())
        self.comm, self.nodes, self._questions = comm, nodes, questions
        self.outgoing: dict[int, deque[MPI.Request]] = {peer: deque() for peer in self.sends}  # that MPI is sending
        self.incoming = {peer: Incoming(comm, peer) for peer in self.sends}

    def publish(self) -> None:
        """Note when something last moved. Other processes cannot see it; they ask this one."""
        self.moved_at = time.monotonic()

    def publish_poll(self) -> None:
        """Do nothing: no parent looks at the polls."""

    @property
    def aborted(self) -> bool:
        """Always False: ``MPI_Abort`` ends a process without asking it."""
        return False

    def check_aborted(self, describe_wait: Callable[[], str]) -> None:
        super().check_aborted(describe_wait)
        with self.lock:
            self._questions.look(self.moved_at, lambda: ", ".join(filter(None, (describe_wait(), caller()))), self.size)

    def finish(self) -> None:
        super().finish()
        for requests in self.outgoing.values():
            MPI.Request.Waitall(list(requests))

    def receive_rest(self, wait: Callable[[Callable[[], bool]], None]) -> None:
        """Receive the messages that no call has asked for. All ranks call it, once they have finished.

        MPI keeps them after the communicator's end and reuses its number, so they would reach a later run.
        ``wait(is_over)`` returns once ``is_over()`` is true.
        """
        sent = np.array([self.numbers.get(rank, 0) for rank in range(self.size)], np.int64)  # (ranks,) messages
        coming = np.empty_like(sent)
        wait(self.comm.Ialltoall(sent, coming).Test)
        for peer, incoming in self.incoming.items():
            while incoming.complete < coming[peer]:
                self._pull(peer)

    def close(self) -> None:
        """Cancel the posted receives, and free the communicator. All ranks call it."""
        super().close()
        for incoming in self.incoming.values():
            incoming.close()
        self.comm.Free()

    # Moving

    def _push(self, peer: int) -> None:
        """Hand MPI as much of the oldest posted send to ``peer`` as may be in flight, its header first."""
        send, requests = self.sends[peer][0], self.outgoing[peer]
        while requests and requests[0].Test():
            requests.popleft()
            self.moved += 1
        if send.header is not None:
            if len(requests) >= IN_FLIGHT:
                return
            trace.message("send", self.rank, peer, send.number, send.nbytes)
            requests.append(self.comm.Isend([send.header, MPI.BYTE], peer, HEADERS))  # a short payload with it
            send.header = None
            self.moved += 1
        while send.offset < send.nbytes and len(requests) < IN_FLIGHT:
            piece = send.payload[send.offset : send.offset + PIECE]
            requests.append(self.comm.Isend([piece, MPI.BYTE], peer, PIECES))
            send.offset += len(piece)
            self.moved += 1
        if send.offset == send.nbytes and (send.nbytes <= SHORT or not requests):
            self._finish_send(send)

    def _pull(self, peer: int) -> None:
        """Take what MPI has received from ``peer``, and tell it where the next pieces belong."""
        message, incoming = self.arriving[peer], self.incoming[peer]
        if message is None:
            if not incoming.header.Test():
                return
            self.moved += 1
            message = self._arrive(peer, incoming.buffer[:HEADER_BYTES].data)
            if message.nbytes <= SHORT:
                self._store(message, incoming.buffer[HEADER_BYTES : HEADER_BYTES + message.nbytes])
            incoming.expect_header()
        while message.offset < message.nbytes:
            incoming.expect_pieces(message)
            if not incoming.pieces[0].request.Test():
                return
            piece = incoming.pieces.popleft()
            self.moved += 1
            if piece.in_target:
                message.offset += len(piece.array)
            else:
                self._store(message, piece.array)
            if piece.scratch is not None:
                incoming.scratch.append(piece.scratch)
        incoming.complete += 1
        self._end_if_complete(message, peer)


@dataclass(slots=True)
class Piece:
    """A piece of a message for which MPI has a posted receive."""

    request: MPI.Request
    array: np.ndarray  # uint8, the memory that MPI fills
    in_target: bool  # whether ``array`` is a part of the target of our receive
    scratch: np.ndarray | None  # the reusable memory that ``array`` is a part of, if it is


class Incoming:
    """MPI's posted receives from one peer.

    The receive of a header is posted once for all headers (MPI calls it a persistent request), and started for each.
    """

    def __init__(self, comm: MPI.Comm, peer: int) -> None:
        self.comm, self.peer = comm, peer
        self.buffer = np.empty(HEADER_BYTES + SHORT, np.uint8)
        self.header = comm.Recv_init([self.buffer, MPI.BYTE], peer, HEADERS)
        self.complete = 0  # messages
        self.pieces: deque[Piece] = deque()
        self.scratch: list[np.ndarray] = []  # (PIECE,) uint8 each, for pieces to combine into the target
        self.expect_header()

    def expect_header(self) -> None:
        self.header.Start()
        self.expected = 0  # bytes of the message for which receives are posted

    def expect_pieces(self, message: Arriving) -> None:
        """Post receives for the next pieces of the message."""
        receive = message.receive
        while self.expected < message.nbytes and len(self.pieces) < IN_FLIGHT:
            start, stop = self.expected, min(self.expected + PIECE, message.nbytes)
            scratch, in_target = None, False
            if receive is None:
                array = message.buffer[start:stop]
            elif receive.combine is None and receive.error is None:
                array, in_target = receive.target.view(np.uint8)[start:stop], True
            else:
                scratch = self.scratch.pop() if self.scratch else np.empty(PIECE, np.uint8)
                array = scratch[: stop - start]
            request = self.comm.Irecv([array, MPI.BYTE], self.peer, PIECES)
            self.pieces.append(Piece(request, array, in_target, scratch))
            self.expected = stop

    def close(self) -> None:
        self.header.Cancel()
        self.header.Wait()
        self.header.Free()


ASK, ANSWER = 10, 11  # tags
ANSWER_SECONDS = 2.0
IDLE_SECONDS = 2e-3  # between two looks of a rank that has nothing to do: MPI's own wait would take a whole core
LOOK_SECONDS = 0.05  # between two looks for questions: each is a call of MPI

WAITS = ": waits"  # what every description of a wait contains


class Questions:
    """Questions between the ranks of a job, which a rank asks once nothing has moved there for ``limit`` seconds."""

    def __init__(self, comm: MPI.Comm, limit: float) -> None:
        self.comm, self.limit = comm, limit
        self.rank = comm.Get_rank()
        self._looked = self._asked = 0.0

    def look(self, since: float, doing: Callable[[], str], ranks: int) -> None:
        """Answer ranks that have asked. A waiting rank, where nothing has moved ``since``, calls it again and again.

        Raises:
            Deadlock: when the limit is over and all other ranks wait too, or have ended.
            Hang: when it is over and some do not answer.
        """
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        if answer(self.comm, doing):
            self._asked = now  # the rank that has asked ends the run
        if now - max(since, self._asked) > self.limit:
            raise self._verdict(doing(), ranks)

    def _verdict(self, doing: str, ranks: int) -> Deadlock | Hang:
        """Ask all ranks what they do, and return the error that ends the run with their answers."""
        for rank in range(ranks):
            if rank != self.rank:
                self.comm.send(None, rank, ASK)
        answers, status = {self.rank: doing}, MPI.Status()
        deadline = time.monotonic() + ANSWER_SECONDS
        while len(answers) < ranks and time.monotonic() < deadline:
            if min(answer(self.comm, lambda: doing), default=self.rank) < self.rank:
                time.sleep(2 * ANSWER_SECONDS)  # a lower rank asks at the same time: its error is the one to be read
            while self.comm.Iprobe(MPI.ANY_SOURCE, ANSWER, status):
                answers[status.Get_source()] = self.comm.recv(source=status.Get_source(), tag=ANSWER)
            time.sleep(1e-3)
        silent = tuple(rank for rank in range(ranks) if rank not in answers)
        lines = [
            f"  rank {rank} is in {text}" if WAITS in text else f"  rank {rank} {text}"
            for rank, text in answers.items()
        ]
        lines += [f"  rank {rank} does not answer: it is computing, or stuck outside any call" for rank in silent]
        message = "\n".join([f"no message has reached rank {self.rank} for {self.limit:g} s:", *sorted(lines)])
        return Hang(message, silent, answers) if silent else Deadlock(message, answers)


def answer(comm: MPI.Comm, doing: Callable[[], str]) -> list[int]:
    """Tell all ranks that have asked what this one does; return these ranks."""
    status, asked = MPI.Status(), []
    while comm.Iprobe(MPI.ANY_SOURCE, ASK, status):
        asked.append(status.Get_source())
        comm.recv(source=asked[-1], tag=ASK)
        comm.send(doing(), asked[-1], ANSWER)
    return asked


def answer_until(comm: MPI.Comm, is_over: Callable[[], bool], doing: str) -> None:
    """Wait until ``is_over()`` between runs; tell all ranks that ask what this one does."""
    while not is_over():
        answer(comm, lambda: doing)
        time.sleep(IDLE_SECONDS)
