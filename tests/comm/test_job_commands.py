"""The command line under ``mpiexec``: the job's processes are the ranks, each thing is said once, the bits are ours."""

import contextlib
import io
import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest
from choosing import long
from mpiexec import TWO_NODES, ended, needs_mpi, run, start

from minidist.cli.main import main as cli

MINIDIST = (sys.executable, "-m", "minidist.cli")
SIZES = ["--layers=1", "--heads=2", "--width=16", "--context=16", "--global-batch=6", "--micro-batch=1"]

pytestmark = needs_mpi


def here(*arguments) -> str:
    """Run a command on shared memory; its output."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert cli([*map(str, arguments)]) == 0
    return out.getvalue()


def on_mpi(tmp_path, ranks: int, arguments: list, environment=None) -> str:
    status, output = run(tmp_path, ranks, *MINIDIST, *arguments, environment=environment)
    assert status == 0, output
    return output


def json_in(output: str) -> dict:
    """The JSON among what else was written."""
    return json.loads(re.search(r"^\{$.*^\}$", output, re.MULTILINE | re.DOTALL)[0])


@pytest.mark.long
@pytest.mark.parametrize("environment", [{}, TWO_NODES], ids=["one node", "two nodes"])
def test_train_has_the_bits_of_shared_memory(tmp_path, environment):
    ranks, flags = (3, ["--dp=3"]) if environment else (2, ["--dp=2", "--sync=overlapped", "--bucket-mb=0.01"])
    arguments = ["train", *flags, "--steps=2", "--json=-", *SIZES]
    output = on_mpi(tmp_path, ranks, arguments, environment)
    found, expected = json_in(output), json.loads(here(*arguments))
    same = ["fingerprint", "losses", "validation_loss", "layout", "config"]
    if not environment:  # on two nodes "auto" chooses other algorithms
        same += ["traffic", "collectives"]
    assert [found[key] for key in same] == [expected[key] for key in same]
    assert output.count('"fingerprint"') == 1
    for rank in range(ranks):
        assert output.count(f"rank {rank} of {ranks}: node {rank % 2 if environment else 0} (") == 1


@pytest.mark.long
def test_verify_has_the_fingerprints_of_shared_memory(tmp_path):
    layouts = ["dp=3", "pp=2", "tp=2", "dp=2,zero=3", "dp=2,sync=overlapped"]
    arguments = ["verify", *layouts, "--steps=2", "--json=-", *SIZES, "--layers=2"]
    found, expected = json_in(on_mpi(tmp_path, 3, arguments, TWO_NODES)), json.loads(here(*arguments))
    assert found["all_same"] and expected["all_same"]
    assert [r["fingerprint"] for r in found["runs"]] == [r["fingerprint"] for r in expected["runs"]]


@pytest.mark.long
def test_a_run_goes_on_where_another_transport_has_saved_it(tmp_path):
    straight = json.loads(here("train", "--steps=5", "--json=-", *SIZES))
    for name in ("shared memory", "MPI"):
        folder, results = tmp_path / name, tmp_path / f"{name}.json"
        first = ["train", "--dp=2", "--steps=5", "--save", folder, "--save-every=2", "--keep=0", *SIZES]
        second = ["train", "--dp=3", "--resume", folder / "step-000002", "--json", results]
        if name == "MPI":
            on_mpi(tmp_path, 2, first)
            here(*second)
        else:
            here(*first)
            on_mpi(tmp_path, 3, second)
        assert json.loads(results.read_text())["fingerprint"] == straight["fingerprint"], name


@pytest.mark.parametrize(
    ("ranks", "command", "text", "status"),
    [
        (2, "train --dp=3 --steps=1", "minidist: dp=3 has 3 ranks, but the MPI job has 2: mpiexec -n 3", 2),
        long(3, "train --dp=x", "argument --dp: x is not a whole number", 2),
        long(2, "verify dp=3", "needs 3 ranks, but the MPI job has 2: mpiexec -n 3", 2),
        long(3, "plan --model=llama3-8b --cluster=h100:64 --batch=64 --top=1", "Llama 3 8B: 8.03B parameters", 0),
    ],
)
def test_each_thing_is_said_once(tmp_path, ranks, command, text, status):
    found, output = run(tmp_path, ranks, *MINIDIST, *command.split())
    assert found == status and output.count(text) == 1, output


@pytest.mark.long
@pytest.mark.parametrize("end", ["SIGINT", "SIGTERM", "SIGKILL", "a rank is killed"])
def test_training_that_is_ended_leaves_nothing(tmp_path, end):
    job = start(tmp_path, 3, *MINIDIST, "train", "--dp=3", "--steps=100000", "--save", tmp_path / "saved", *SIZES)
    job.until("rank 2 of 3")
    if end.startswith("SIG"):
        os.kill(job.process.pid, getattr(signal, end))
    else:
        rank = next(pid for pid in job.commands() if b"PMI_RANK=1\0" in Path(f"/proc/{pid}/environ").read_bytes())
        os.kill(rank, signal.SIGKILL)
    status, _ = ended(job)
    assert status != 0
