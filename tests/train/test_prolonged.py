"""A run that goes on longer than it was to, or ends before: the bits of one that was never interrupted."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from choosing import long

from minidist.cli.main import main as cli

DOCUMENTS = str(Path(__file__).parents[1] / "verify" / "documents.jsonl")
SMALL = [
    "--layers=1", "--heads=2", "--width=16", "--context=12", "--sequence-chunks=2", "--global-batch=6",
    "--micro-batch=1", "--warmup=2", f"--text={DOCUMENTS}", "--packing=first-fit",
]  # fmt: skip


def trained(capsys, *arguments: str) -> dict:
    assert cli(["train", *arguments, "--json=-"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("before", "after", "layouts"),
    [
        (["--lr-schedule=constant"], [], ("", "--dp=2")),
        long(["--lr-schedule=constant"], ["--lr-schedule=wsd", "--lr-decay-steps=3"], ("--cp=2", "--dp=3 --zero=2")),
        long(["--lr-schedule=wsd", "--lr-decay-steps=1"], [], ("--tp=2", "--pp=1")),
        long(["--lr-schedule=constant", "--rampup-batch-size=2,2,18"], [], ("--dp=2", "--cp=2 --cp-kind=balanced")),
    ],
)
def test_a_prolonged_run_is_that_of_as_many_steps(capsys, tmp_path, before, after, layouts):
    """The checkpoint is from before a decay. Epochs of some 60 samples end within the run."""
    saved, layout, other = str(tmp_path / "saved"), *map(str.split, layouts)
    trained(capsys, *SMALL, *before, *layout, "--steps=6", f"--save={saved}", "--save-every=5", "--keep=0")
    longer = ["--steps=14", *before, *after]
    found = trained(capsys, f"--resume={saved}/step-000005", *longer, *other)
    whole = trained(capsys, *SMALL, *longer)
    assert found["losses"] == whole["losses"] and found["fingerprint"] == whole["fingerprint"]


def test_a_run_whose_steps_would_have_had_other_learning_rates_is_not_prolonged(capsys, tmp_path):
    saved = str(tmp_path / "saved")
    trained(capsys, *SMALL, "--steps=4", f"--save={saved}")
    assert cli(["train", f"--resume={saved}", "--steps=6"]) == 2
    assert "the 4 steps so far would have had other learning rates" in capsys.readouterr().err
    assert cli(["train", f"--resume={saved}", "--steps=3"]) == 2
    assert "the checkpoint is of step 4, and this run has 3" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.skipif(not hasattr(signal, "SIGTERM"), reason="needs SIGTERM")
def test_sigterm_ends_a_run_with_a_checkpoint(capsys, tmp_path):
    saved, schedule = tmp_path / "saved", "--lr-schedule=constant"
    command = [sys.executable, "-m", "minidist.cli", "train", *SMALL, schedule, "--steps=1000000", "--dp=2"]
    run = subprocess.Popen([*command, f"--save={saved}", "--save-every=1000000"], stderr=subprocess.DEVNULL)
    while not any(server.children() for server in psutil.Process(run.pid).children()):  # the server that forks ranks
        assert run.poll() is None
        time.sleep(0.05)
    run.send_signal(signal.SIGTERM)
    assert run.wait() == 130
    (checkpoint,) = saved.glob("step-*")
    taken = int(checkpoint.name.removeprefix("step-"))
    assert taken < 1000
    longer = [f"--steps={taken + 2}", schedule]
    found = trained(capsys, f"--resume={saved}", *longer)
    assert found["fingerprint"] == trained(capsys, *SMALL, *longer)["fingerprint"]
