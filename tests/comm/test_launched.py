"""Who has started this process: what the launchers' variables say, whether MPI says so too."""

import sys

from mpiexec import needs_mpi, of_a_job
from scripts import python

from minidist.cli.main import main
from minidist.comm.runtime.job import check_agreement, ranges
from minidist.launched import Launched, launched

TORCHRUN, OPEN_MPI = {"RANK": "1", "WORLD_SIZE": "2"}, {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3"}
PMI, SRUN = {"PMI_RANK": "3", "PMI_SIZE": "4"}, {"SLURM_PROCID": "4", "SLURM_STEP_NUM_TASKS": "5"}
# What Slurm 22.05 sets in a process, as recorded on two nodes
SALLOC = {"SLURM_JOB_ID": "5", "SLURM_NTASKS": "4", "SLURM_TASKS_PER_NODE": "2(x2)"}
BATCH_SCRIPT = {**SALLOC, "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
TASK = {**BATCH_SCRIPT, "SLURM_PROCID": "3", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4"}
BY_MPIEXEC = {**TASK, "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}  # one task of Slurm's for each node


def test_the_first_pair_of_variables_counts():
    for environment, expected in (
        (TORCHRUN | OPEN_MPI | PMI | SRUN, (1, 2, "torchrun")),
        ({"RANK": "1"} | SRUN, (4, 5, "srun")),  # half of a pair says nothing
        *((nobody, None) for nobody in ({}, {"RANK": "0"}, {"WORLD_SIZE": "4"}, SALLOC)),
        (BATCH_SCRIPT, None),  # uses its own node, as on a laptop
        (TASK, (3, 4, "srun")),
        ({**TASK, "SLURM_MPI_TYPE": "pmix", "PMIX_RANK": "3"}, (3, 4, "srun")),
        (BY_MPIEXEC | PMI, (3, 4, "mpiexec or srun")),
        (BY_MPIEXEC | OPEN_MPI | PMI, (2, 3, "Open MPI's mpiexec")),
    ):
        found = launched(environment)
        assert (found and (found.rank, found.size, found.by)) == expected, environment
    check_agreement(None, 0, 1)
    check_agreement(Launched(2, 4, "mpiexec", "PMI_RANK, PMI_SIZE"), 2, 4)
    for numbers, text in (([], ""), ([3], "3"), ([0, 1, 2, 3, 8], "0-3, 8"), ([0, 2, 4, 5], "0, 2, 4-5")):
        assert ranges(numbers) == text


ALONE = """
import minidist as md
print(md.init())
try:
    md.init()
except RuntimeError as error:
    print(error)
"""


@needs_mpi
def test_a_process_without_mpiexec_is_alone_and_refused_where_slurm_says_four(tmp_path):
    """A launcher of another MPI library starts such processes: each of the four would compute the whole run."""
    inherited = {k: v for k, v in of_a_job(tmp_path).items() if not k.startswith(("SLURM", "OMPI", "RANK"))}
    slurm = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "4"}
    refused = "srun says that this is rank 0 of 4 (SLURM_PROCID, SLURM_STEP_NUM_TASKS), but MPI finds thi"
    for more, command, status, text in (
        ({}, ["-c", ALONE], 0, "ProcessGroup(rank=0, size=1, ranks=[0])\ninit has been called already"),
        (slurm, ["-c", ALONE], 1, refused),
        (slurm, ["-m", "minidist.cli", "train", "--steps=1"], 2, f"minidist: {refused}"),
    ):
        done = python(*command, env=inherited | more, cwd=tmp_path)
        assert done.returncode == status and text in done.stdout + done.stderr, done


def test_a_command_says_that_it_lacks_mpi4py(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "4")
    assert main(["train", "--steps=1"]) == 2
    assert capsys.readouterr().err.startswith("minidist: the ranks of a launcher need mpi4py")
