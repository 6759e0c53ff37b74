"""The stream on which NCCL works, beside the stream that computes.

A stream is a queue of work on the GPU. The host only puts work into it and goes on, so two queues must be told where
one waits for the other, and events do that:

    computing       ... writes x | event A |          ... computes on ... | waits for B | reads x ...
    communicating                | waits for A | all-reduce of x | event B |

That is the whole of ``async_op=True``: nothing runs in the background of the host. ``wait`` puts the wait for B into
the queue of the stream that computes. It does not stop the host (nor does torch's ``Work.wait`` with NCCL).

Memory. CuPy's pool hands a freed block out again to the stream that it was allocated on, at once, because whatever that
stream does later comes later (``_arenas`` of cupy/cuda/memory.pyx). It knows nothing of a second stream that still
reads the block. So a work holds its arrays until the stream that computes has been told to wait for it: a block that is
freed after that is reused behind the wait. What is allocated while NCCL's stream is the current one goes back to that
stream's own blocks, and needs no such care.
"""

from collections.abc import Callable

from minidist.backend import xp
from minidist.comm.work import Work


class NcclStream:
    """One for all groups of a rank, so the operations of two communicators never run at the same time.

    NCCL asks for that: operations of several communicators on one GPU may wait for each other in a circle, unless all
    ranks launch them in one order ("Using multiple NCCL communicators concurrently" in its user guide).

    Attributes:
        unwaited: the works that the stream that computes has not been told to wait for, in order.
    """

    def __init__(self) -> None:
        # CuPy computes on the null stream. The null stream and any other wait for each other, unless the other was
        # created as non-blocking.
        self.stream = xp.cuda.Stream(non_blocking=True)
        self.unwaited: list[NcclWork] = []

    def enqueue(self, label: str, arrays: list, issue: Callable[[int], None], check: Callable[[], None]) -> "NcclWork":
        """Let NCCL work behind what is computing now.

        Args:
            label: the call, in words.
            arrays: those that the operation reads or writes.
            issue: ``issue(stream)`` makes the calls of NCCL. What it computes with CuPy runs on that stream, too.
            check: raises what NCCL has noticed.
        """
        self.stream.wait_event(_event(xp.cuda.get_current_stream()))
        with self.stream:
            issue(self.stream.ptr)
        while self.unwaited and self.unwaited[0].is_completed():
            del self.unwaited[0]  # nobody waits for it
        work = NcclWork(self, label, arrays, check)
        self.unwaited.append(work)
        return work

    def waited(self, work: "NcclWork") -> None:
        """The stream that computes waits for a work, and so for all before it."""
        if work in self.unwaited:
            del self.unwaited[: self.unwaited.index(work) + 1]

    def synchronize(self) -> None:
        """Stop the host until everything is done."""
        self.stream.synchronize()
        self.unwaited.clear()


class NcclWork(Work):
    """A collective in flight on the GPU."""

    def __init__(self, stream: NcclStream, label: str, arrays: list, check: Callable[[], None]) -> None:
        self._stream, self.label, self._arrays, self._check = stream, label, arrays, check
        self._done = _event(stream.stream)

    def is_completed(self) -> bool:
        return self._done.done

    def wait(self) -> bool:
        """Let what is computed from here on find the result. The host goes on at once."""
        self._check()
        xp.cuda.get_current_stream().wait_event(self._done)
        self._stream.waited(self)
        self._arrays = None
        return True


def _event(stream):
    """An event at the present end of a stream's queue."""
    return stream.record(xp.cuda.Event(disable_timing=True))
