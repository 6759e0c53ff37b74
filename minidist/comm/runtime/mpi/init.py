"""``md.init()``: the world of a plain script that a launcher has started once for each rank."""

import atexit
import sys

from minidist.comm.group import ProcessGroup
from minidist.comm.runtime.mpi.job import LIMIT_SECONDS, Job, end_job
from minidist.launched import launched

_world: ProcessGroup | None = None


def init(limit: float = LIMIT_SECONDS) -> ProcessGroup:
    """Join the other processes of the MPI job, and return the world.

    It is what ``torch.distributed.init_process_group`` does. ``mpiexec -n 4 python script.py`` starts the script four
    times, and each process is a rank; a script that nobody has launched is alone in its world. From here on an
    exception that the script does not catch ends all ranks, after its traceback.

    Args:
        limit: seconds in which a rank waits and nothing moves, after which the job ends and says what each rank did.

    Raises:
        RuntimeError: when called twice, without mpi4py, or where the launcher and MPI do not agree.
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
