"""The thread that runs a group's asynchronous collectives.

While a rank computes, a background thread of the group runs the sends and receives of its collectives, one call after
another in the order of the calls. PyTorch has a CUDA stream for each communicator of NCCL instead.
"""

import contextvars
import queue
import threading
from collections.abc import Callable

from minidist import backend, trace, turns
from minidist.comm.failures import Aborted, caller
from minidist.comm.transports.transport import Transport
from minidist.comm.work import Work, mark_waited

ABORT_CHECK_SECONDS = 0.05

# How long a thread of a rank may hold the interpreter while another waits for it. Python's 5 ms is longer than a whole
# all-reduce, so a background collective would wait longer than it works.
SWITCH_SECONDS = 5e-4


class BackgroundWork(Work):
    """A collective in flight on its group's background thread."""

    number: int  # in the order of the calls, once submitted

    def __init__(self, background: "Background", label: str, body: Callable[[], None]) -> None:
        self._background, self._transport, self.label = background, background.transport, label
        self._body = body
        self._caller = caller()
        self._context = contextvars.copy_context()  # NumPy keeps its error handling in it
        self._ended = threading.Event()

    def run(self) -> None:
        """Run on the background thread. After the first error of any group nothing more runs, as on a CUDA stream."""
        if self._transport.background_error is None:
            self.record("begin")
            try:
                self._context.run(self._body)
            except BaseException as error:  # the main thread raises it
                error.add_note(f"started asynchronously {self._caller}")
                self._transport.background_error = error
            self.record("end")

    def record(self, call: str) -> None:
        """Record a point in the life of this work, if recording."""
        if trace.log is not None:
            trace.record(trace.Task(call, self._background.stream, self.number, trace.stream()))

    def end(self) -> None:
        del self._body  # it refers to the arrays: let them be freed
        self._ended.set()

    def is_completed(self) -> bool:
        ended = self._ended.is_set()
        if ended:
            self._background.mark_waited(self)
        return ended

    def wait(self) -> bool:
        self._transport.check_usable()
        if not self._ended.is_set():
            blocked = self._transport.blocked(0, self._ended.is_set)  # the background thread says for which rank
            with self._transport.clock.paused(), blocked, trace.span("wait for the background", "wait"):
                while not self._ends_within(ABORT_CHECK_SECONDS):
                    self._transport.raise_background_error()
                    if self._transport.aborted and not self._ends_within(4 * ABORT_CHECK_SECONDS):
                        raise Aborted(f"{self.label}, started asynchronously {self._caller}")
        self._transport.raise_background_error()
        self._background.mark_waited(self)
        return True

    def _ends_within(self, seconds: float) -> bool:
        with turns.away():
            return self._ended.wait(seconds)


class Background:
    """A thread that runs works one after another. While it has work, its rank counts as computing."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.unwaited: list[BackgroundWork] = []  # works that the rank does not yet know to be done, in order
        self._works: queue.SimpleQueue[BackgroundWork | None] = queue.SimpleQueue()
        self._unfinished = self._submitted = 0
        self.stream = next(transport.new_streams)
        self._last: BackgroundWork | None = None
        self._gpu, self._rank = backend.current_gpu(), turns.here()
        self._thread = threading.Thread(target=self._run, daemon=True, name="collectives")
        self._thread.start()

    @property
    def busy(self) -> bool:
        return self._unfinished > 0

    def submit(self, work: BackgroundWork) -> None:
        work.number, self._submitted = self._submitted, self._submitted + 1
        work.record("submit")
        with self.transport.lock:
            self._unfinished += 1
            if self._unfinished == 1:
                self.transport.change_active(+1)
            self._last = work
        self.unwaited.append(work)
        self._works.put(work)

    def mark_waited(self, work: BackgroundWork) -> None:
        """Note that the rank knows a work to be done, and with it all before it."""
        if mark_waited(work, self.unwaited):
            work.record("wait")

    def _run(self) -> None:
        self.transport.threads.add(threading.get_ident())
        trace.use_stream(self.stream)
        backend.use_gpu(self._gpu)
        while (work := self._works.get()) is not None:
            with turns.taken(self._rank):
                work.run()
                with self.transport.lock:
                    self._unfinished -= 1
                    work.end()
                    if self._unfinished == 0:
                        self.transport.change_active(-1)

    def finish(self) -> None:
        """Complete all submitted works; raise the first error, even if nobody waited for it."""
        if self._last is not None:
            self._last.wait()

    def close(self) -> None:
        """Complete all submitted works, then end the thread."""
        self.finish()
        self._works.put(None)
        with turns.away():
            self._thread.join()

    def abandon(self, seconds: float) -> bool:
        """End the thread although its works will never be complete; return whether it ends within ``seconds``."""
        self._works.put(None)
        with turns.away():
            self._thread.join(seconds)
        return not self._thread.is_alive()
