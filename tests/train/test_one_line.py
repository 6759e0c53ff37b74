"""A folder holds the checkpoints of one line of steps, also where bits depend on the layout, and ``latest`` is its end.

Layouts, faults and branches are drawn. The oracle is a chain of plain runs: each segment of a line in its own layout,
handed on by a checkpoint in a folder that nothing else has used.
"""

import random
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from clusters import PatientCluster

from minidist.cli.main import main as cli
from minidist.train.checkpoint.commit import committed, latest, name_of
from minidist.train.checkpoint.disk import Disk
from minidist.train.checkpoint.export import full_arrays
from minidist.train.checkpoint.manifest import Manifest
from minidist.train.checkpoint.peers import PeerCopies
from minidist.train.checkpoint.restore import check_files
from minidist.train.checkpoint.saver import Saving
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.resilience.elastic import Elasticity, run_elastic
from minidist.train.resilience.faults import Fault
from minidist.train.result import RunOptions
from minidist.train.trainer import run

CONFIG = TrainConfig(
    layers=1, heads=2, width=16, context=8, global_batch=10, micro_batch=1, steps=8, warmup=2, lr=0.05, dropout=0.1
)
INEXACT = {  # settings with which the layouts below have different bits
    "float32 sums": (
        replace(CONFIG, reduce_dtype="float32"),
        ("dp=5", "dp=2", "dp=3,algorithm=naive", "dp=3,zero=3", "tp=2", "dp=2,zero=1,algorithm=direct", "dp=4"),
    ),
    "float32 softmax": (
        replace(CONFIG, softmax="online32", sequence_chunks=4),
        ("cp=2", "dp=1", "cp=2,cp_kind=all-gather", "cp=4", "cp=2,cp_kind=zigzag", "dp=2"),
    ),
}


@pytest.fixture(params=INEXACT)
def mode(request):
    config, layouts = INEXACT[request.param]
    return config, [Layout.parse(layout) for layout in layouts]


def chain(ranks, config, folder, segments):
    """Run segments (steps until the next, layout) one after another; returns the last run."""
    resume = None
    for until, layout in segments:
        saving = Saving(str(folder / str(until)), every=config.steps, mode="sync")
        last = until == config.steps
        options = RunOptions(saving=None if last else saving, resume=resume, stop_after=until - 1)
        result = run(ranks(layout.world_size), config, layout, options)
        resume = str(folder / str(until) / name_of(until))
    return result


def check_line(folder, config, result):
    """Every checkpoint is whole and on the way to the result, and the last one is the result."""
    names = committed(Disk(), folder)
    assert names[-1] == latest(Disk(), folder) == name_of(config.steps)
    for name in names:
        manifest = Manifest.read(Disk(), folder / name)
        check_files(folder / name, manifest)
        assert list(manifest.progress.losses) == result.losses[: manifest.progress.step], name
    arrays = full_arrays(folder / names[-1], manifest, optimizer=True)
    assert all(np.array_equal(arrays[name], values) for name, values in result.ranks[0].arrays.items())
    return names


def elastic(config, layout, folder, faults, on_failure, resume=None, copies=None, keep=0):
    """A run that goes on after failures; and the segments that it took."""
    options = RunOptions(
        saving=Saving(str(folder), every=2, keep=keep, mode="sync"),
        faults=faults,
        resume=resume,
        peer_copies=copies,
        stop_after=config.steps - 1,
    )
    result, interruptions = run_elastic(config, layout, options, Elasticity(on_failure), start=PatientCluster)
    segments, at = [], layout
    for it in interruptions:
        segments = [segment for segment in segments if segment[0] < it.resumed] + [(it.resumed, at)]
        at = it.after
    return result, [segment for segment in segments if segment[0]] + [(config.steps, at)]


@pytest.mark.parametrize("seed", range(2))
def test_whatever_fails_the_folder_has_one_line(ranks, tmp_path, mode, seed):
    config, layouts = mode
    rng = random.Random(seed)
    layout = rng.choice([layout for layout in layouts if layout.world_size > 2])
    faults = tuple(
        Fault(rng.randrange(2), step, "kill") for step in sorted(rng.sample(range(1, config.steps), rng.choice((1, 2))))
    )
    copies = PeerCopies(rng.choice((1, 3)), 1) if seed % 2 else None
    how = rng.choice(("shrink", "restart"))
    keep = rng.choice((0, 2))
    result, segments = elastic(config, layout, tmp_path / "run", faults, how, copies=copies, keep=keep)
    names = check_line(tmp_path / "run", config, result)
    assert len(names) == (keep or config.steps // 2)
    expected = chain(ranks, config, tmp_path / "chain", segments)
    assert result.fingerprint == expected.fingerprint, (layout, faults, segments)


def test_a_branch_needs_a_folder_of_its_own(ranks, tmp_path, mode):
    """Resumed from the middle, a run would leave the other's checkpoints behind its own."""
    config, layouts = mode
    one, other = layouts[0], layouts[1]
    saving = Saving(str(tmp_path / "b"), every=2, keep=0, mode="sync")
    first = run(ranks(one.world_size), config, one, RunOptions(saving=saving, stop_after=config.steps - 1))
    before = {path: path.read_bytes() for path in (tmp_path / "b").rglob("*") if path.is_file()}
    branch = RunOptions(saving=saving, resume=str(tmp_path / "b" / name_of(4)), stop_after=config.steps - 1)
    with pytest.raises(ValueError, match=r"has newer checkpoints than step-000004 \(step-000006 to step-000008\)"):
        run(ranks(other.world_size), config, other, branch)
    assert {path: path.read_bytes() for path in (tmp_path / "b").rglob("*") if path.is_file()} == before
    elsewhere = replace(saving, folder=str(tmp_path / "c"))
    second = run(ranks(other.world_size), config, other, replace(branch, saving=elsewhere))
    assert second.fingerprint != first.fingerprint, "these layouts should have different bits: choose others"
    check_line(tmp_path / "b", config, first)
    assert check_line(tmp_path / "c", config, second) == [name_of(6), name_of(8)]


@pytest.mark.parametrize("left", ["latest is older", "newer ones are damaged", "newer ones are half written"])
def test_what_is_ahead_of_a_run_and_nobody_needs_is_replaced(ranks, tmp_path, mode, left):
    """A kill between two steps of a commit leaves a newer checkpoint; a damaged one is of no use."""
    config, layouts = mode
    one, other = layouts[0], layouts[1]
    folder = tmp_path / "b"
    saving = Saving(str(folder), every=2, keep=0, mode="sync")
    run(ranks(one.world_size), config, one, RunOptions(saving=saving))
    for step in (6, 8):
        file = folder / name_of(step) / "rank-0.safetensors"
        if left == "newer ones are damaged":
            file.write_bytes(file.read_bytes()[:-1])
        if left == "newer ones are half written":
            (folder / name_of(step) / "manifest.json").unlink()
    if left != "newer ones are damaged":
        (folder / "latest").write_text(name_of(4))
    shutil.copytree(folder, tmp_path / "copy")
    resume = str(folder / name_of(4))
    options = RunOptions(saving=saving, resume=resume, stop_after=config.steps - 1)
    result = run(ranks(other.world_size), config, other, options)
    assert check_line(folder, config, result) == [name_of(step) for step in (2, 4, 6, 8)]
    expected = run(ranks(other.world_size), config, other, RunOptions(resume=str(tmp_path / "copy" / name_of(4))))
    assert result.fingerprint == expected.fingerprint


def test_the_command_says_so(tmp_path, capsys):
    run_one = [
        "train", "--steps", "4", "--layers", "1", "--width", "16", "--heads", "2", "--context", "8", "--global-batch",
        "4", "--reduce-dtype", "float32", "--save", str(tmp_path / "b"), "--save-every", "1", "--keep", "0",
    ]  # fmt: skip
    assert cli(run_one) == 0
    resume = ["train", "--dp", "2", "--resume", str(tmp_path / "b" / name_of(2)), "--save", str(tmp_path / "b")]
    capsys.readouterr()
    assert cli(resume) == 2
    told = capsys.readouterr().err
    assert "has newer checkpoints than step-000002 (step-000003 to step-000004)" in told
    assert "save in another folder, or remove them first" in told
    assert Path(tmp_path, "b", "latest").read_text() == name_of(4)
