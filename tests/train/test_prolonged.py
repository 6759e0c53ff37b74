"""A run that goes on longer than it was to, or ends before: the bits of one that was never interrupted."""

import json
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest
from choosing import long
from scripts import LIMIT, assert_nothing_left, running, until

from minidist.cli.main import main as cli
from minidist.cli.train import resilience
from minidist.train.checkpoint.saver import Saving

unix = pytest.mark.skipif(sys.platform == "win32", reason="signals as on Unix")

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
    trained(capsys, *SMALL, "--experts=2", "--dp=2", "--steps=4", f"--save={saved}")
    assert cli(["train", f"--resume={saved}", "--tables", "--rebalance"]) == 0
    assert "no step was left to take after step 4\n" in capsys.readouterr().out  # no hint that would be refused
    assert cli(["train", f"--resume={saved}", "--steps=6"]) == 2
    assert "the 4 steps so far would have had other learning rates" in capsys.readouterr().err
    assert cli(["train", f"--resume={saved}", "--steps=3"]) == 2
    assert "the checkpoint is of step 4, but this run has only 3" in capsys.readouterr().err


@unix
@pytest.mark.parametrize("send", [long("kill"), long("killpg")])
def test_sigterm_ends_a_run_with_a_checkpoint(capsys, tmp_path, send):
    """Sent to the command alone, or to all its processes: ranks, what starts them, and their loaders."""
    saved, schedule = tmp_path / "saved", "--lr-schedule=constant"
    command = ["train", *SMALL, schedule, "--steps=1000000", "--dp=2", "--loader=1"]
    command += [f"--save={saved}", "--save-every=1000000"]
    script = f"import sys\nfrom minidist.cli import program\nsys.argv[1:] = {command}\nsys.exit(program())"
    with running(tmp_path, script) as run:
        until(lambda: len(psutil.Process(run.pid).children(recursive=True)) > 4)  # also a loader
        getattr(os, send)(run.pid, signal.SIGTERM)
        run.communicate(timeout=LIMIT)
        assert run.returncode == 130
        assert_nothing_left(run.pid)
    (checkpoint,) = saved.glob("step-*")
    taken = int(checkpoint.name.removeprefix("step-"))
    assert taken < 1_000_000
    longer = [f"--steps={taken + 2}", schedule]
    found = trained(capsys, f"--resume={saved}", *longer)
    assert found["fingerprint"] == trained(capsys, *SMALL, *longer)["fingerprint"]


@unix
def test_a_second_sigterm_asks_for_the_same(capsys, tmp_path):
    """``timeout`` sends one to the command, and one to all its processes."""
    with resilience.stopping(Saving(str(tmp_path))) as file:
        assert not Path(file).exists()
        for _ in range(2):
            signal.raise_signal(signal.SIGTERM)
            assert Path(file).exists()
    assert not Path(file).exists() and capsys.readouterr().err.count("SIGTERM") == 1
    with resilience.stopping(Saving(str(tmp_path / "none yet"))), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)
