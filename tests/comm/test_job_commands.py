"""The command line under ``mpiexec``: the job's processes are the ranks, each thing is said once, the bits are ours."""

import json
import re
import signal
import sys

import pytest
from choosing import long
from mpiexec import Job, needs_mpi

from minidist.cli.main import main as cli

MINIDIST = (sys.executable, "-m", "minidist.cli")
SIZES = ["--layers=1", "--heads=2", "--width=16", "--context=16", "--global-batch=6", "--micro-batch=1"]

pytestmark = needs_mpi


@pytest.mark.long
def test_train_has_the_bits_and_the_traffic_of_shared_memory(tmp_path, capsys):
    arguments = ["train", "--dp=2", "--sync=overlapped", "--bucket-mb=0.01", "--steps=2", "--json=-", *SIZES]
    status, output = Job(tmp_path, 2, *MINIDIST, *arguments).ended()
    assert status == cli(arguments) == 0, output
    found = json.loads(re.search(r"^\{$.*^\}$", output, re.MULTILINE | re.DOTALL)[0])
    expected = json.loads(capsys.readouterr().out)
    for key in ("fingerprint", "losses", "validation_loss", "layout", "config", "traffic", "collectives"):
        assert found[key] == expected[key], key
    for text in ('"fingerprint"', "rank 0 of 2: node 0 (", "rank 1 of 2: node 0 ("):
        assert output.count(text) == 1, text


@pytest.mark.parametrize(
    ("ranks", "command", "text", "status"),
    [
        (2, "train --dp=3 --steps=1", "minidist: dp=3 has 3 ranks, but the MPI job has 2: mpiexec -n 3", 2),
        (2, "train --dp=2 --elastic --peer-copies=1", "ends an MPI job: leave out --elastic, add --save, and start", 2),
        long(2, "verify dp=3", "needs 3 ranks, but the MPI job has 2: mpiexec -n 3", 2),
        long(3, "plan --model=llama3-8b --cluster=h100:64 --batch=64 --top=1", "Llama 3 8B: 8.03B parameters", 0),
    ],
)
def test_each_thing_is_said_once(tmp_path, ranks, command, text, status):
    found, output = Job(tmp_path, ranks, *MINIDIST, *command.split()).ended()
    assert found == status and output.count(text) == 1, output


@pytest.mark.long
@pytest.mark.parametrize("end", ["SIGINT", "SIGTERM", "SIGKILL"])
def test_training_that_is_ended_leaves_nothing(tmp_path, end):
    job = Job(tmp_path, 3, *MINIDIST, "train", "--dp=3", "--steps=100000", "--save", tmp_path / "saved", *SIZES)
    job.until("rank 2 of 3")
    job.process.send_signal(getattr(signal, end))
    assert job.ended()[0] != 0
