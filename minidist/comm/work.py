"""Work: the handle that an asynchronous call returns.

A point-to-point message is carried by the transport, so it is its own Work (transports/messages.py). A collective is a
small program of many messages: a thread runs it (background.py), or NCCL (nccl/stream.py).
"""

from abc import ABC, abstractmethod


class Work(ABC):
    """An operation in flight, as in ``torch.distributed.Work``."""

    __slots__ = ()

    @abstractmethod
    def is_completed(self) -> bool:
        """Return whether ``wait`` would return at once."""

    @abstractmethod
    def wait(self) -> bool:
        """Block until the arrays of the call may be used again, and return True.

        Raises what the call raised; for a collective, the first error of any background collective on this rank.

        With NCCL the GPU waits, not the host: work that the GPU does later finds the result (nccl/stream.py).
        """


class Done(Work):
    """A collective of one rank, done at once. It counts as unwaited until its caller asks, as it does on many ranks."""

    def __init__(self, label: str, unwaited: list) -> None:
        self.label, self._unwaited = label, unwaited
        unwaited.append(self)

    def is_completed(self) -> bool:
        return self.wait()

    def wait(self) -> bool:
        mark_waited(self, self._unwaited)
        return True


def mark_waited(work: Work, unwaited: list) -> bool:
    """Remove a work, and those before it, which are done too, from a rank's list; return whether it was there."""
    there = work in unwaited
    if there:
        del unwaited[: unwaited.index(work) + 1]
    return there
