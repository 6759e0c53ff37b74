"""A rank's end of one torch group: minidist's groups on shared memory, and a limit on every wait."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from minidist import comm
from minidist.comm.failures import Aborted
from minidist.comm.runtime.deadlock import awaited_ranks
from minidist.comm.transports.shared_memory import Segment, SharedMemoryTransport
from minidist.comm.transports.transport import FINISHED, Status

LOOK_SECONDS = 0.1
LEAVE_SECONDS = 5.0  # for the background thread to notice that the group has ended


class Channel:
    """A rank's end of one torch group, on which the group's collectives run.

    A torch collective is a small program: a collective of minidist, and copies around it. The programs run one after
    another, in the order of their calls, in the background thread of ``_programs``; inside, they call the collectives
    of ``group``. A wait may take ``timeout`` seconds.
    """

    def __init__(self, segment: Segment, rank: int, timeout: float) -> None:
        self.segment, self.timeout = segment, timeout
        self.transport = SharedMemoryTransport(segment, rank)
        self.group = comm.ProcessGroup(self.transport, tuple(range(segment.world_size)), context=0)
        self._programs = self.group.duplicate()
        self._running: deque[comm.Work] = deque()
        self._background: int | None = None  # the thread
        self.ended: str | None = None  # why the group cannot be used any longer
        self._waits: dict[object, tuple[float, str, float]] = {}  # token -> when it expires, what waits, its limit
        self._closed = threading.Event()
        self._watchdog = threading.Thread(target=self._watch, daemon=True, name="watchdog")
        self._watchdog.start()

    def start(self, call: str, body: Callable[[], None]) -> comm.Work | None:
        """Run ``body()``, which must not raise, in the background, after all that was started before.

        A callback of a collective's future runs in the background thread. What it starts runs at once, before what is
        in the queue, and so at the same moment on every rank; the result is then None.
        """
        self.admit()
        if self.in_background:
            body()
            return None
        while self._running and self._running[0].is_completed():
            self._running.popleft()
        work = self._programs.run_in_background(call, body)
        self._running.append(work)
        return work

    @property
    def in_background(self) -> bool:
        """Whether the calling thread is the one that carries out the collectives."""
        return threading.get_ident() == self._background

    def admit(self) -> None:
        """Let the calling thread communicate: torch runs a backward pass in threads of its own.

        Raises:
            RuntimeError: when the group has ended.
        """
        if self.ended is not None:
            raise RuntimeError(self.ended)
        self.transport.threads.add(threading.get_ident())

    @contextmanager
    def limited(self, call: str, seconds: float | None = None) -> Iterator[None]:
        """Limit a wait for other ranks, the ``with`` block, to ``seconds``; None for ``timeout``. A failure ends the
        group for all its ranks, since none of them knows any longer which messages are still to come.

        Raises:
            RuntimeError: when the time is up, or another rank has ended the group.
        """
        token, seconds = object(), self.timeout if seconds is None else seconds
        self._waits[token] = time.monotonic() + seconds, call, seconds
        try:
            yield
        except Aborted as error:
            self.ended = self.ended or f"{call}: another rank of this group has failed or given up: see its error"
            raise RuntimeError(self.ended) from error
        except Exception as error:
            self.end(f"{call}: this group has ended with {type(error).__name__}: {error}")
            raise
        finally:
            del self._waits[token]

    def _watch(self) -> None:
        """End the group when a wait is beyond its limit, as the watchdog of torch's NCCL backend does.

        Under ``minidist.launch`` the parent sees when a rank dies or the ranks are deadlocked. Here no process does.
        """
        while not self._closed.wait(LOOK_SECONDS):
            for expires, call, seconds in list(self._waits.values()):
                if time.monotonic() > expires:
                    ranks = [f"rank {rank} {_doing(status.read())}" for rank, status in enumerate(self.segment.status)]
                    why = f"not done after {seconds:g} s, which is this group's timeout. {'; '.join(ranks)}"
                    return self.end(f"{call}: {why}")

    def running_in_background(self) -> None:
        """Note that the calling thread runs the programs; each program calls this once."""
        self._background = threading.get_ident()

    def end(self, why: str) -> None:
        """End the group for all its ranks: calls that wait raise within a moment."""
        self.ended = self.ended or why
        self.segment.abort()

    def close(self) -> None:
        """Complete what is in flight, then leave the group. The other ranks may still read what was sent."""
        if self._closed.is_set():
            return
        try:
            if self.ended is None:
                with self.limited("destroy_process_group"):
                    self.admit()
                    self._programs.close()
                    self.transport.finish()
        finally:
            self._closed.set()
            self._watchdog.join()
            ended = self._programs.abandon(LEAVE_SECONDS)
            self.ended = self.ended or "this group has been destroyed"
            if ended:
                self.transport.close()
                with suppress(BufferError):  # something holds a piece of a queue: mapped until the process ends
                    self.segment.close()


def _doing(status: Status) -> str:
    if status.state == FINISHED:
        return "has left the group"
    if awaited := awaited_ranks(status):
        return f"waits for rank {', '.join(map(str, sorted(awaited)))}"
    return "waits for no rank: it is computing, or has ended"
