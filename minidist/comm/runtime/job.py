"""The MPI job that this process belongs to: how many ranks there are, on which nodes, and how they end together."""

import atexit
import os
import socket
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

from minidist.comm.background import SWITCH_SECONDS
from minidist.comm.failures import Deadlock, Hang, own_traceback, summary
from minidist.comm.group import ProcessGroup, end_run
from minidist.launched import TORCHRUN, Launched, launched

LIMIT_SECONDS = 600.0  # for a wait in which nothing moves, as in torch.distributed with NCCL
TELL_SECONDS = 0.2  # for the launcher to pass on what a rank has printed, before the job's end closes the pipe
INSTALL = "pip install -e '.[mpi]', or on a cluster mpi4py for the MPI library that is there (docs/cluster.md)"

SEGMENTS_OF_MPICH = "/dev/shm/mpich_shm_"


class Job:
    """This process, as a rank of an MPI job. Making one initialises MPI.

    Args:
        launched: what the launcher says about this process; None without a launcher.

    Raises:
        RuntimeError: when mpi4py is missing, MPI lets only one thread call it, or MPI and the launcher disagree.
    """

    def __init__(self, launched: Launched | None) -> None:
        try:
            from mpi4py import MPI  # initialises MPI, so nobody imports it before it is needed
        except (ImportError, RuntimeError) as error:  # not installed; installed without an MPI library
            raise RuntimeError(f"the ranks of a launcher need mpi4py: {error}. Install it: {INSTALL}") from None
        check_agreement(launched, MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size())
        if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            raise RuntimeError(
                "this MPI library lets only one thread call it, but collectives run in the background too: use one "
                "that offers MPI_THREAD_MULTIPLE"
            )
        self.comm = MPI.COMM_WORLD.Dup()  # apart from everybody else's communicators
        self.rank, self.size = self.comm.Get_rank(), self.comm.Get_size()
        shared = self.comm.Split_type(MPI.COMM_TYPE_SHARED)
        first = self.comm.allgather(shared.bcast(self.rank))  # of each rank: the first rank on its node
        self.nodes = tuple(sorted(set(first)).index(rank) for rank in first)  # ranks that can share memory are on one
        shared.Free()
        self.kept: dict = {}  # that of every world
        unlink_segments()
        sys.setswitchinterval(SWITCH_SECONDS)

    def world(self, size: int, limit: float) -> ProcessGroup:
        """Return the first ``size`` ranks as a world of their own. Exactly these ranks call it."""
        from minidist.comm.transports.mpi import MPITransport, Questions

        members = self.comm.Get_group().Incl(list(range(size)))
        questions = Questions(self.comm, limit)
        transport = MPITransport(self.comm.Create_group(members), self.nodes[:size], questions)
        world = ProcessGroup(transport, tuple(range(size)), context=0)
        world.kept = self.kept
        transport.groups.append(world)
        return world

    def leave(self, world: ProcessGroup, doing: str) -> list[str]:
        """Complete what a world has in flight, and end it; return the messages never received, in words.

        All ranks of the world call it. ``doing`` is this rank's answer to ranks that still wait for it and ask.
        """
        from minidist.comm.transports.mpi import MPITransport, answer_until

        end_run(world)
        transport = world.transport
        assert isinstance(transport, MPITransport)
        transport.receive_rest(partial(answer_until, self.comm, doing=doing))
        leftovers = transport.leftovers()
        transport.close()
        return leftovers

    def where(self) -> str:
        """Return in one line where this rank runs and what it may use."""
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        named = f"cores {ranges(cores)}" if cores else f"{os.cpu_count()} cores"
        node = f"node {self.nodes[self.rank]} ({socket.gethostname()})"
        return f"rank {self.rank} of {self.size}: {node}, {named}, 1 BLAS thread"


def check_agreement(launched: Launched | None, rank: int, size: int) -> None:
    """Raise RuntimeError if MPI and the launcher disagree about this process's rank or the number of ranks."""
    if launched is None or (launched.rank, launched.size) == (rank, size):
        return
    told = f"{launched.by} says that this is rank {launched.rank} of {launched.size} ({launched.variables})"
    if launched.by == TORCHRUN:
        fix = (
            "ranks find each other through MPI: start the program with mpiexec, or use minidist as a backend of "
            "torch.distributed (docs/pytorch.md)"
        )
    else:
        fix = (
            "the launcher and mpi4py's MPI library do not match: use the mpiexec that came with the library, "
            "or under Slurm srun --mpi=pmi2 (MPICH) or srun --mpi=pmix (Open MPI)"
        )
    found = "MPI finds this process alone" if size == 1 else f"MPI says that it is rank {rank} of {size}"
    raise RuntimeError(f"{told}, but {found}; {fix} (docs/cluster.md)")


def unlink_segments() -> None:
    """Remove the names of the segments through which MPICH links the ranks of a node, once all ranks have attached.

    The system then frees the memory when the last process ends (man shm_unlink), like that of a Cluster, however the
    job ends. MPICH removes the names in MPI_Finalize, which a job that is killed or aborted never reaches: 2 MiB and
    more would stay in /dev/shm each time. Open MPI attaches to a segment at the first message, so its names stay.
    """
    with suppress(OSError):  # not on Linux
        for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
            name = line.split(maxsplit=5)[-1]
            if name.startswith(SEGMENTS_OF_MPICH):
                with suppress(OSError):  # another rank of this node was faster
                    os.unlink(name)


def ranges(numbers: list[int]) -> str:
    """Return sorted whole numbers in short form, such as "0-3, 8"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def end_job(job: Job, error: BaseException, status: int, called_in: str) -> NoReturn:
    """Print an error of this process with its traceback (see ``own_traceback``), then end all processes of the job."""
    text = f"rank {job.rank} of {job.size} failed: {summary(error)}"
    if isinstance(error, Deadlock | Hang):  # they say where each rank is
        text = "\n".join([text, *getattr(error, "__notes__", [])])
    else:
        text += f"\n\n{own_traceback(error, called_in).rstrip()}"
    print(text, file=sys.__stderr__, flush=True)
    time.sleep(TELL_SECONDS)
    abort(status)


def abort(status: int) -> NoReturn:
    """End all processes of the job, this one too, with this status."""
    from mpi4py import MPI  # only where there is a job

    MPI.COMM_WORLD.Abort(status)  # for a duplicate, MPICH ends only this node's processes
    os._exit(status)  # where another rank aborts in the same moment, MPICH's Abort returns


_world: ProcessGroup | None = None


def init(limit: float = LIMIT_SECONDS) -> ProcessGroup:
    """Join the other processes of the MPI job, and return the world.

    It is what ``torch.distributed.init_process_group`` does. ``mpiexec -n 4 python script.py`` starts the script four
    times, and each process is a rank; a script without a launcher is alone in its world. From then on an exception that
    the script does not catch prints its traceback and ends all ranks.

    Args:
        limit: seconds that a rank may wait while nothing moves. Then the job ends and says what each rank was doing.

    Raises:
        RuntimeError: when called twice, without mpi4py, or if the launcher and MPI disagree.
    """
    global _world
    if _world is not None:
        raise RuntimeError("init has been called already: pass the world on to where you need it")
    job = Job(launched())
    _world = job.world(job.size, limit)
    before = sys.excepthook

    def end_all(kind, error, traceback) -> None:
        if job.size == 1:
            return before(kind, error, traceback)
        end_job(job, error, 1, __file__)

    sys.excepthook = end_all
    atexit.register(_leave, job, _world)
    return _world


def _leave(job: Job, world: ProcessGroup) -> None:
    """Wait for all others before MPI ends: a rank that waits for this one must learn that it has ended, and
    MPI_Finalize answers no questions."""
    for line in job.leave(world, "has ended its program"):
        print(f"minidist: {line}", file=sys.stderr)
