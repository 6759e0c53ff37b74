"""Lets the system free MPI's shared memory when a job ends, however it ends."""

import os
from contextlib import suppress
from pathlib import Path

OF_MPICH = "/dev/shm/mpich_shm_"


def unlink_segments() -> None:
    """Remove the names of the segments through which MPICH links the ranks of a node. All ranks must have them.

    MPICH does so in MPI_Finalize, which a job that is killed or aborted never reaches: 2 MiB and more would stay in
    /dev/shm each time. Memory without a name is freed when the last process ends (man shm_unlink), as that of a Cluster
    is. Open MPI attaches to a segment at the first message, and so keeps the names.
    """
    with suppress(OSError):  # not on Linux
        for line in Path("/proc/self/maps").read_text().splitlines():
            name = line.split(maxsplit=5)[-1]
            if name.startswith(OF_MPICH):
                with suppress(OSError):  # another rank of this node was faster
                    os.unlink(name)
