"""Who has started this process: what the launchers' variables say, and whether MPI says so too."""

import os
import subprocess
import sys

import pytest
from mpiexec import LIMIT, ROOT, needs_mpi, run

from minidist.cli import main as cli
from minidist.comm.runtime.mpi.job import check_agreement, ranges
from minidist.launched import Launched, launched

TORCHRUN, OPEN_MPI = {"RANK": "1", "WORLD_SIZE": "2"}, {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3"}
PMI, SLURM = {"PMI_RANK": "3", "PMI_SIZE": "4"}, {"SLURM_PROCID": "4", "SLURM_STEP_NUM_TASKS": "5"}


@pytest.mark.parametrize(
    ("environment", "rank", "by"),
    [
        (TORCHRUN | OPEN_MPI | PMI | SLURM, 1, "torchrun"),
        (OPEN_MPI | PMI | SLURM, 2, "Open MPI's mpiexec"),
        (PMI | SLURM, 3, "mpiexec or srun"),
        (SLURM, 4, "srun"),
        ({"RANK": "1"} | SLURM, 4, "srun"),  # half of a pair says nothing
    ],
)
def test_the_first_pair_of_variables_counts(environment, rank, by):
    found = launched(environment)
    assert (found.rank, found.size, found.by) == (rank, rank + 1, by)


@pytest.mark.parametrize("environment", [{}, {"RANK": "0"}, {"WORLD_SIZE": "4"}, {"SLURM_JOB_ID": "7"}])
def test_without_a_launcher_there_is_none(environment):
    assert launched(environment) is None


@pytest.mark.parametrize(
    ("rank", "size"), [("4", "4"), ("-1", "4"), ("0", "0"), ("x", "4"), ("0", ""), ("0.5", "2"), ("1", "four")]
)
def test_variables_that_name_no_rank(rank, size):
    with pytest.raises(ValueError, match=f"PMI_RANK={rank} and PMI_SIZE={size} name no rank of a world"):
        launched({"PMI_RANK": rank, "PMI_SIZE": size})


def test_who_agrees():
    check_agreement(None, 0, 1)
    check_agreement(Launched(2, 4, "mpiexec", "PMI_RANK, PMI_SIZE"), 2, 4)


@pytest.mark.parametrize(
    ("by", "rank", "size", "texts"),
    [
        ("srun", 0, 1, ["srun says that this is rank 1 of 4", "MPI finds this process alone", "srun --mpi=pmi2"]),
        ("torchrun", 0, 1, ["torchrun says", "start the program with mpiexec", "docs/pytorch.md"]),
        ("mpiexec", 0, 1, ["mpiexec says", "alone", "do not belong together"]),
        ("srun", 1, 3, ["MPI says that it is rank 1 of 3"]),
        ("mpiexec", 2, 4, ["rank 1 of 4 (here)", "MPI says that it is rank 2 of 4"]),
    ],
)
def test_who_does_not_agree_is_told_why(by, rank, size, texts):
    with pytest.raises(RuntimeError) as caught:
        check_agreement(Launched(1, 4, by, "here"), rank, size)
    for text in [*texts, "docs/cluster.md"]:
        assert text in str(caught.value)


@pytest.mark.parametrize(
    ("numbers", "text"), [([], ""), ([3], "3"), ([0, 1, 2, 3, 8], "0-3, 8"), ([0, 2, 4, 5], "0, 2, 4-5")]
)
def test_ranges(numbers, text):
    assert ranges(numbers) == text


def alone(tmp_path, environment, *arguments) -> tuple[int, str]:
    """Python without mpiexec, in an environment: its exit status and output."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PMI", "SLURM", "OMPI"))}
    done = subprocess.run(
        [sys.executable, *arguments],
        env=inherited | {"PYTHONPATH": str(ROOT)} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT,
        cwd=tmp_path,
    )
    return done.returncode, done.stdout


@needs_mpi
def test_a_world_of_one_where_slurm_says_four_is_refused(tmp_path):
    """As with a launcher of another MPI library: four such processes would each compute the whole run."""
    slurm = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "4"}
    status, output = alone(tmp_path, slurm, "-c", "import minidist as md; md.init()")
    assert status == 1 and "srun says that this is rank 0 of 4 (SLURM_PROCID, SLURM_STEP_NUM_TASKS)" in output
    assert "but MPI finds this process alone; the launcher and mpi4py" in output
    status, output = alone(tmp_path, slurm, "-m", "minidist.cli", "train", "--steps=1")
    assert status == 2 and output.startswith("minidist: srun says that this is rank 0 of 4"), output


def test_a_command_names_variables_that_name_no_rank(capsys, monkeypatch):
    monkeypatch.setenv("RANK", "x")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert cli.main(["plan"]) == 2
    assert capsys.readouterr().err.startswith("minidist: RANK=x and WORLD_SIZE=4 name no rank of a world")


@needs_mpi
def test_a_plain_script_is_alone(tmp_path):
    script = """if True:
        import numpy as np, minidist as md
        world = md.init()
        x = np.ones(3)
        md.all_reduce(x, group=world)
        print(world, x)
        try:
            md.init()
        except RuntimeError as error:
            print(error)
    """
    status, output = alone(tmp_path, {}, "-c", script)
    assert status == 0 and "ProcessGroup(rank=0, size=1, ranks=[0]) [1. 1. 1.]" in output
    assert "init has been called already" in output


@needs_mpi
def test_a_script_on_three_ranks(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import numpy as np, minidist as md\n"
        "world = md.init()\n"
        "x = np.full(5, world.rank + 1)\n"
        "md.all_reduce(x, group=world)\n"
        "print(f'{world.rank} has {x.tolist()}')\n"
    )
    status, output = run(tmp_path, 3, sys.executable, script)
    assert status == 0
    for rank in range(3):
        assert f"{rank} has [6, 6, 6, 6, 6]" in output


def test_without_mpi4py_the_reason_is_told(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    for name, value in {"PMI_RANK": "0", "PMI_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    assert cli.main(["train", "--steps=1"]) == 2
    assert "the ranks of a launcher need mpi4py" in capsys.readouterr().err
