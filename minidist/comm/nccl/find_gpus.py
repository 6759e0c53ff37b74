"""Which GPU each rank uses: known to all, so that all ranks of a group choose the same way for a call."""

from collections.abc import Sequence

import numpy as np

from minidist import backend
from minidist.comm.collectives import all_gather_into_tensor
from minidist.comm.group import ProcessGroup, check_group
from minidist.comm.nccl.stream import NcclStream

TEXT_BYTES = 512  # a host name has 64 bytes at most on Linux (man gethostname), an id 36 and a PCI address 13


class Gpus:
    """The GPUs of a run.

    Attributes:
        names: of each rank's GPU; "" where a rank has no NCCL.
        stream: on which NCCL works here.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self.stream = NcclStream()

    def of_their_own(self, ranks: Sequence[int]) -> bool:
        """Whether each of these ranks has a GPU that no other of them uses, and NCCL."""
        names = {self.names[rank] for rank in ranks}
        return len(names) == len(ranks) and "" not in names


def find_gpus(world: ProcessGroup) -> None:
    """Let NCCL carry collectives on arrays of GPUs, from now on, in all groups whose ranks have a GPU each.

    All ranks call it, once, after ``backend.use("cupy", ...)``. Two ranks on one GPU, which NCCL refuses, go on through
    host memory, and so does everything where a rank has no NCCL. With NumPy it does nothing.

    Raises:
        ValueError: for a group that is not the world.
    """
    check_group(world, "find_gpus")
    if world.size != world.transport.size:
        raise ValueError(
            f"find_gpus is about all {world.transport.size} ranks, but got a group of {world.size}: pass the world"
        )
    mine = backend.gpu_name()
    if mine is None or world.size == 1:
        return
    text = np.frombuffer(mine.encode().ljust(TEXT_BYTES), np.uint8)
    texts = np.empty((world.size, TEXT_BYTES), np.uint8)
    all_gather_into_tensor(texts, text.copy(), world)
    names = [bytes(text).decode().rstrip() for text in texts]
    if len(set(names)) == 1:
        return  # so nobody looks for NCCL, which may not be installed
    have_nccl = np.empty(world.size, bool)
    all_gather_into_tensor(have_nccl, np.array([backend.nccl() is not None]), world)
    world.transport.gpus = Gpus([name if has else "" for name, has in zip(names, have_nccl, strict=True)])
