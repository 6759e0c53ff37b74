"""What Slurm 22.05 sets in the environment of a process, as recorded on two nodes, and what docs/cluster.md shows."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from minidist.cli.main import build_parser
from minidist.launched import launched

PAGE = (Path(__file__).parents[3] / "docs" / "cluster.md").read_text(encoding="utf-8")

ALLOCATION = {"SLURM_JOB_ID": "5", "SLURM_NTASKS": "4", "SLURM_TASKS_PER_NODE": "2(x2)"}
BATCH_SCRIPT = {**ALLOCATION, "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
TASK = {**BATCH_SCRIPT, "SLURM_PROCID": "3", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4"}
STARTED_BY_MPIEXEC = {**TASK, "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}  # one task of Slurm's for each node


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (ALLOCATION, None),
        (BATCH_SCRIPT, None),  # uses its own node, as on a laptop
        (TASK, (3, 4)),
        ({**TASK, "SLURM_MPI_TYPE": "pmi2", "PMI_RANK": "3", "PMI_SIZE": "4"}, (3, 4)),
        ({**TASK, "SLURM_MPI_TYPE": "pmix", "PMIX_RANK": "3"}, (3, 4)),
        ({**STARTED_BY_MPIEXEC, "PMI_RANK": "2", "PMI_SIZE": "4"}, (2, 4)),
        ({**STARTED_BY_MPIEXEC, "OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}, (2, 4)),
    ],
    ids=["salloc", "batch script", "srun", "srun pmi2", "srun pmix", "MPICH's mpiexec", "Open MPI's mpiexec"],
)
def test_who_a_process_of_a_slurm_job_is(environment, expected):
    found = launched(environment)
    assert (found and (found.rank, found.size)) == expected


def batch_script() -> str:
    return re.search(r"^```bash\n(#!/bin/bash\n.*?)^```", PAGE, re.DOTALL | re.MULTILINE)[1]


def test_the_batch_script_has_as_many_tasks_as_its_layout_ranks():
    script = batch_script()
    assert subprocess.run(["bash", "-n"], input=script, text=True, timeout=60).returncode == 0
    nodes, tasks, ranks = (
        int(re.search(rf"--{name}[= ](\d+)", script)[1]) for name in ("nodes", "ntasks-per-node", "dp")
    )
    assert nodes * tasks == ranks


def test_commands_that_a_launcher_starts_are_understood():
    lines = re.findall(r"^(?:mpiexec|srun|benchmarks/two_nodes.sh) .*?(minidist .*?)(?:#.*)?$", PAGE, re.MULTILINE)
    assert len(lines) >= 4
    for line in lines:
        build_parser().parse_args(shlex.split(line)[1:])
