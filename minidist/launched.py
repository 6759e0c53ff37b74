"""The rank of this process and the number of ranks, as the program that started the process says.

MPI says so too, once it has been initialised, and the two must agree. If a launcher and an MPI library do not belong
together, MPI tells each process that it is alone, and each would compute the whole run by itself.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass

TORCHRUN = "torchrun"
VARIABLES = (  # launcher, variable of the rank, variable of the size; the first pair that is set counts
    (TORCHRUN, "RANK", "WORLD_SIZE"),
    ("Open MPI's mpiexec", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("mpiexec or srun", "PMI_RANK", "PMI_SIZE"),
    ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),  # a batch script has SLURM_NTASKS too, but is no task
)


@dataclass(frozen=True)
class Launched:
    """A process that a launcher has started.

    Attributes:
        by: the launcher, in words. variables: the environment variables in which it says so.
    """

    rank: int
    size: int
    by: str
    variables: str


def launched(environment: Mapping[str, str] = os.environ) -> Launched | None:
    """Return what the launcher of this process says; None if no launcher has started it.

    Raises:
        ValueError: if the variables do not name a rank of a world.
    """
    for by, rank_name, size_name in VARIABLES:
        if rank_name in environment and size_name in environment:
            rank, size = environment[rank_name], environment[size_name]
            if not (rank.isdecimal() and size.isdecimal() and int(rank) < int(size)):
                raise ValueError(
                    f"{rank_name}={rank} and {size_name}={size} name no rank: {rank_name} must be a whole number from "
                    f"0 to {size_name} - 1"
                )
            return Launched(int(rank), int(size), by, f"{rank_name}, {size_name}")
    return None
