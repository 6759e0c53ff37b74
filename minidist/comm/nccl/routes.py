"""Which calls NCCL carries, and how such a call runs. All others run the algorithms of this library."""

import threading
from collections.abc import Callable

import numpy as np

from minidist import backend
from minidist.backend import xp
from minidist.comm.group import ProcessGroup
from minidist.comm.nccl.communicator import DTYPES, Communicator, drops_nan
from minidist.comm.nccl.stream import NcclWork


def carries(name: str, group: ProcessGroup, algorithm: str, arrays: list, op=None) -> bool:
    """Whether NCCL carries a call: the same on all ranks, because all know all GPUs.

    An algorithm that is named runs. So does one of this library for arrays in host memory, on one rank, on ranks that
    share a GPU, and for numbers that NCCL cannot combine (``combines``). And so do calls of a background thread, a
    program of ``ProcessGroup.start``: NCCL wants the calls on several communicators in one order on all ranks, and
    nothing orders those of two threads.
    """
    return (
        own_gpus(group)
        and algorithm == "auto"
        and group.size > 1
        and threading.get_ident() == group.transport.main_thread
        and all(isinstance(array, xp.ndarray) and not backend.on_host(array) for array in arrays)
        and (op is None or combines(name, arrays[0].dtype, op))
    )


def own_gpus(group: ProcessGroup) -> bool:
    """Whether each rank of a group has a GPU that no other of them uses, and NCCL."""
    gpus = group.transport.gpus
    return gpus is not None and gpus.of_their_own(group.ranks)


def combines(name: str, dtype: np.dtype, op) -> bool:
    """Whether NCCL, and what is made of it, combines numbers of that dtype as NumPy does."""
    return dtype.name in DTYPES and (name == "all_reduce" or not drops_nan(dtype, op))


def run(
    group: ProcessGroup,
    description: str,
    nbytes: int,
    kind: tuple[str, str, int],
    arrays: list,
    async_op: bool,
    issue: Callable[[Communicator], None],
) -> NcclWork | None:
    """Let NCCL carry a call: ``issue(communicator)`` makes it. For the others see ``ProcessGroup.run_collective``.

    The host never waits for the GPU here. It waits for the other ranks at the first call of a group, and at the first
    of each description. The trace has the time that the host takes, not the GPU's.
    """
    group.finish_background()
    if group.communicator is None:
        group.communicator = Communicator(group)
    communicator, stream = group.communicator, group.transport.gpus.stream
    communicator.compare(description, group)
    works: list[NcclWork] = []

    def enqueue(inside: ProcessGroup) -> None:
        def call(pointer: int) -> None:
            communicator.bind(pointer, inside)
            issue(communicator)

        works.append(stream.enqueue(inside.collective, arrays, call, communicator.check))

    group.run_collective(description, nbytes, False, enqueue, kind)
    if async_op:
        return works[0]
    works[0].wait()
    return None
