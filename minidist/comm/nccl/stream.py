"""The stream on which NCCL works, next to the stream that computes, and the choice of the calls that NCCL carries.

All other calls run the algorithms of this library. Every rank knows the GPUs of all ranks, so all ranks of a group make
the same choice for a call.

A stream is a queue of work on the GPU. The host only puts work into it and goes on, so events tell two queues where one
waits for the other:

    computing       ... writes x | event A |          ... computes on ... | waits for B | reads x ...
    communicating                | waits for A | all-reduce of x | event B |

That is all that ``async_op=True`` does: no thread of the host runs in the background. ``wait`` puts the wait for B into
the queue of the stream that computes. It does not stop the host (nor does torch's ``Work.wait`` with NCCL).

Memory. CuPy's pool reuses a freed block at once for the stream on which it was allocated, because that stream runs its
work in order (``_arenas`` of cupy/cuda/memory.pyx). The pool knows nothing of a second stream that still reads the
block. So a work holds its arrays until the stream that computes has been told to wait for it: a block freed after that
is reused only after the wait. What is allocated while NCCL's stream is the current one goes back to that stream's own
blocks, and needs no such care.
"""

import threading
from collections.abc import Callable, Sequence

import numpy as np

from minidist import backend
from minidist.backend import xp
from minidist.comm.algorithms import all_gather_direct
from minidist.comm.group import ProcessGroup, check_world
from minidist.comm.nccl.communicator import DTYPES, Communicator, drops_nan
from minidist.comm.work import Work, mark_waited

TEXT_BYTES = 512  # a host name has 64 bytes at most on Linux (man gethostname), an id 36 and a PCI address 13


class Gpus:
    """The GPUs of a run's ranks, and the stream on which this rank's NCCL works.

    All groups of a rank share one stream, so the operations of two communicators never run at the same time. NCCL
    requires that: operations of several communicators on one GPU may wait for each other in a circle, unless all ranks
    launch them in one order ("Using multiple NCCL communicators concurrently" in its user guide).
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)  # of each rank's GPU; "" where a rank has no NCCL
        # CuPy computes on the null stream. The null stream and any other wait for each other, unless the other was
        # created as non-blocking.
        self.stream = xp.cuda.Stream(non_blocking=True)
        self.unwaited: list[NcclWork] = []  # those that the computing stream was not told to wait for, in order

    def enqueue(self, label: str, arrays: list, body: Callable[[], None], check: Callable[[], None]) -> "NcclWork":
        """Queue NCCL's work on ``arrays``, after what the current stream computes now.

        ``body`` makes the calls of NCCL; what it computes with CuPy runs on the same stream. ``check`` raises an error
        that NCCL has noticed.
        """
        self.stream.wait_event(_event(xp.cuda.get_current_stream()))
        with self.stream:
            body()
        while self.unwaited and self.unwaited[0].is_completed():
            del self.unwaited[0]  # nobody waits for it
        work = NcclWork(self, label, arrays, check)
        self.unwaited.append(work)
        return work

    def synchronize(self) -> None:
        """Block the host until NCCL has done all its work."""
        self.stream.synchronize()
        self.unwaited.clear()


class NcclWork(Work):
    """A collective in flight on the GPU."""

    def __init__(self, gpus: Gpus, label: str, arrays: list, check: Callable[[], None]) -> None:
        self._gpus, self.label, self._arrays, self._check = gpus, label, arrays, check
        self._done = _event(gpus.stream)

    def is_completed(self) -> bool:
        return self._done.done

    def wait(self) -> bool:
        """Let later work on the current stream wait for the result. The host goes on at once."""
        self._check()
        xp.cuda.get_current_stream().wait_event(self._done)
        mark_waited(self, self._gpus.unwaited)
        self._arrays = None
        return True


def _event(stream):
    """Return an event at the present end of a stream's queue."""
    return stream.record(xp.cuda.Event(disable_timing=True))


def find_gpus(world: ProcessGroup) -> None:
    """Let NCCL carry collectives on arrays on GPUs, from now on, in all groups whose ranks have a GPU each.

    All ranks call it, once, after ``backend.use("cupy", ...)``. Groups in which two ranks share a GPU, which NCCL
    refuses, or a rank has no NCCL, still communicate through host memory. With NumPy it does nothing.

    Raises:
        ValueError: for a group that is not the world.
    """
    check_world(world, "find_gpus")
    mine = backend.gpu_name()
    if mine is None:
        return
    texts = np.zeros((world.size, TEXT_BYTES), np.uint8)
    texts[world.rank] = np.frombuffer(mine.encode().ljust(TEXT_BYTES), np.uint8)
    world.run_collective("the GPUs of all ranks", lambda inside: all_gather_direct(list(texts), inside))
    names = [bytes(text).decode().rstrip() for text in texts]
    if len(set(names)) == 1:
        return  # so nobody looks for NCCL, which may not be installed
    have = np.zeros((world.size, 1), bool)
    have[world.rank] = backend.nccl() is not None
    world.run_collective("which ranks have NCCL", lambda inside: all_gather_direct(list(have), inside))
    world.transport.gpus = Gpus([name if has else "" for name, has in zip(names, have.ravel(), strict=True)])


def own_gpus(group: ProcessGroup) -> bool:
    """Return whether each rank of a group has NCCL, and a GPU that no other rank of the group uses."""
    if group.transport.gpus is None:
        return False
    names = {group.transport.gpus.names[rank] for rank in group.ranks}
    return len(names) == group.size and "" not in names


def carries(name: str, group: ProcessGroup, algorithm: str, arrays: list, op) -> bool:
    """Return whether NCCL carries a call: the same on all ranks, because all know all GPUs.

    Otherwise an algorithm of this library runs: if the call names one, for arrays in host memory, on one rank, on ranks
    that share a GPU, for reductions that neither NCCL nor the Communicator computes as NumPy does, and on a background
    thread, in a program of ``run_in_background``. NCCL needs the calls on several communicators in one order on all
    ranks, and nothing orders the calls of two threads.
    """
    return (
        own_gpus(group)
        and algorithm == "auto"
        and group.size > 1
        and threading.get_ident() == group.transport.main_thread
        and all(isinstance(array, xp.ndarray) and not backend.on_host(array) for array in arrays)
        and (
            op is None
            or (arrays[0].dtype.name in DTYPES and (name == "all_reduce" or not drops_nan(arrays[0].dtype, op.ufunc)))
        )
    )


def communicator_of(group: ProcessGroup) -> Communicator:
    """Return the group's communicator. All ranks of the group call it; the first call makes the communicator."""
    if group.communicator is None:
        group.finish_background()
        group.communicator = Communicator(group)
    return group.communicator


def run_collective(
    group: ProcessGroup,
    description: str,
    body: Callable[[ProcessGroup], None],
    async_op: bool,
    nbytes: int,
    kind: tuple[str, str, int],
    arrays: list,
) -> NcclWork | None:
    """Run ``body(inside)``, which gives NCCL work on these arrays; the rest is as in ``ProcessGroup.run_collective``.

    The host never waits for the GPU here. It waits for the other ranks at the first call of a group, and at the first
    of each description. The trace has the time that the host takes, not the GPU's.
    """
    group.finish_background()
    communicator, gpus = group.communicator, group.transport.gpus
    communicator.compare(description, group)
    works: list[NcclWork] = []

    def enqueue(inside: ProcessGroup) -> None:
        assert inside.running is not None
        works.append(gpus.enqueue(inside.running.label, arrays, lambda: body(inside), communicator.check))

    group.run_collective(description, enqueue, False, nbytes, kind)
    if async_op:
        return works[0]
    works[0].wait()
    return None
