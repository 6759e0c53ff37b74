"""A run that is cut off and goes on in another layout ends on the bits of the run that was never interrupted."""

import random
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from minidist.cli.main import main as cli
from minidist.nn.gpt import GPT
from minidist.nn.precision.loss_scaling import GradScaler
from minidist.nn.precision.policy import POLICIES
from minidist.train import around, share
from minidist.train.checkpoint.commit import committed, latest, name_of
from minidist.train.checkpoint.disk import Disk
from minidist.train.checkpoint.export import full_arrays
from minidist.train.checkpoint.manifest import Manifest
from minidist.train.checkpoint.restore import check_files, missing_elements
from minidist.train.checkpoint.saver import Saving
from minidist.train.checks.loosened import loosened_by
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RunOptions
from minidist.train.trainer import run, train_rank
from minidist.verify.interruption import covering_interruptions, run_interrupted
from minidist.verify.matrix import every_combination

CONFIG = TrainConfig(
    layers=2, heads=4, width=16, context=8, global_batch=5, micro_batch=1, steps=4, warmup=2, lr=1e-2, clip=0.5,
    dropout=0.1, sequence_chunks=4, experts=4, expert_hidden=8, aux_loss=0.01, aux_scope="global_batch",
    bias_rate=0.01,
)  # fmt: skip


@pytest.fixture(scope="module")
def references(ranks):
    """``references(config)`` is the run of one process, once for each config."""
    found = {}

    def reference(config):
        if config not in found:
            found[config] = run(ranks(1), config, Layout())
        return found[config]

    return reference


def interrupted(ranks, config, before, after, step, folder, **saving):
    """The run that goes on after so many steps."""
    saving = Saving(str(folder), every=1, keep=0, **saving)
    run(ranks(before.world_size), config, before, RunOptions(saving=saving, stop_after=step - 1))
    checkpoint = Path(folder, name_of(step))
    check_files(checkpoint, Manifest.read(Disk(), checkpoint))
    return run(ranks(after.world_size), config, after, RunOptions(resume=str(checkpoint)))


@pytest.mark.parametrize(("count", "most"), [(1, 3), pytest.param(24, 6, marks=pytest.mark.long)], ids=["one", "many"])
def test_interruptions_of_a_generated_set_of_layouts(ranks, references, tmp_path, count, most):
    """Drawn from all legal layouts on so many ranks; every precision; every step."""
    rng = random.Random(most)
    layouts = sorted({c.layout for c in every_combination(CONFIG, most) if not loosened_by(c.layout)}, key=str)
    for number in range(count):
        precision = list(POLICIES)[number % len(POLICIES)]
        config = replace(CONFIG, precision=precision)
        before, after = rng.choice(layouts), rng.choice(layouts)
        step = rng.randrange(1, config.steps)
        mode = ("sync", "async")[number % 2]
        result = interrupted(ranks, config, before, after, step, tmp_path / str(number), mode=mode)
        expected = references(config)
        assert {rank.fingerprint for rank in result.ranks} == {expected.fingerprint}, (precision, before, after, step)
        assert result.losses == expected.losses
        assert result.steps_here == config.steps - step


@pytest.mark.long
@pytest.mark.parametrize("optimizer", ["lamb", pytest.param("sgd", marks=pytest.mark.long)])
def test_other_optimizers_go_on_too(ranks, references, tmp_path, optimizer):
    """SGD has no arrays to save."""
    config = replace(CONFIG, optimizer=optimizer, precision="bf16")
    result = interrupted(ranks, config, Layout(dp=2, zero=1), Layout(tp=2), 2, tmp_path)
    assert result.fingerprint == references(config).fingerprint


@pytest.mark.long
def test_the_covering_set_of_interruptions(ranks):
    layouts = [Layout.parse(text) for text in ("dp=3", "zero=3,dp=5", "tp=2,pp=2", "cp=2", "dp=2,ep=2")]
    chosen = covering_interruptions(layouts, CONFIG.steps)
    assert {i.before for i in chosen} == {i.after for i in chosen} == set(layouts)
    outcomes = list(run_interrupted(chosen, CONFIG))
    assert len(outcomes) == len(chosen) + 1
    assert all(same for _, _, same in outcomes)


class Forgetful(GradScaler):
    """A scaler that cannot be set to the scale of a checkpoint."""

    scale = property(lambda self: 2.0**16, lambda self, value: None)


def train_without_the_scale(*arguments):
    original = share.grad_scaler
    share.grad_scaler = Forgetful
    try:
        return train_rank(*arguments)
    finally:
        share.grad_scaler = original


@pytest.mark.long
def test_the_scale_of_the_loss_is_part_of_the_state(ranks, references, tmp_path):
    """In this run it changes before the interruption; whoever forgets it ends elsewhere, and that is seen."""
    config = replace(CONFIG, precision="fp16", lr=3.0, experts=0, **{name: getattr(TrainConfig, name) for name in (
        "expert_hidden", "aux_loss", "aux_scope", "bias_rate")})  # fmt: skip
    expected = references(config)
    assert expected.ranks[0].skipped_steps > 0
    result = interrupted(ranks, config, Layout(dp=2), Layout(tp=2), 2, tmp_path)
    assert {rank.fingerprint for rank in result.ranks} == {expected.fingerprint}
    assert result.ranks[0].loss_scale == expected.ranks[0].loss_scale
    assert result.ranks[0].skipped_steps == expected.ranks[0].skipped_steps
    options = RunOptions(resume=str(tmp_path / name_of(2)))
    forgotten = run(ranks(2), config, Layout(tp=2), options, rank_function=train_without_the_scale)
    assert forgotten.ranks[0].loss_scale != expected.ranks[0].loss_scale


@pytest.mark.long
def test_each_rank_reads_what_it_needs_and_no_more(ranks, tmp_path):
    """Under ZeRO-3 the ranks together read every element of the state once, whoever wrote it."""
    run(ranks(4), CONFIG, Layout(tp=2, pp=2), RunOptions(saving=Saving(str(tmp_path), every=2), stop_after=1))
    checkpoint = tmp_path / name_of(2)
    manifest = Manifest.read(Disk(), checkpoint)
    result = run(ranks(5), CONFIG, Layout(dp=5, zero=3), RunOptions(resume=str(checkpoint)))
    sizes = {
        name: int(np.prod(entry.shape)) * np.dtype(entry.dtype).itemsize for name, entry in manifest.arrays.items()
    }
    extra = sum(size for name, size in sizes.items() if name.startswith("router_b") or name.startswith("router_c"))
    assert extra > 0  # all ranks have the routers' biases and counts
    assert sum(rank.bytes_read for rank in result.ranks) == sum(sizes.values()) + 4 * extra
    two = run(ranks(2), CONFIG, Layout(tp=2), RunOptions(resume=str(checkpoint)))
    assert max(rank.bytes_read for rank in two.ranks) < 0.75 * sum(sizes.values())


@pytest.mark.long
@pytest.mark.parametrize(
    "layout",
    [
        "zero=1,dp=3",
        "dp=4,ep=2",
        *(
            pytest.param(text, marks=pytest.mark.long)
            for text in ("dp=3", "zero=3,dp=4,shard=2", "tp=2,dp=2,sp=1", "pp=2,dp=2,zero=1", "cp=2")
        ),
    ],
)
def test_every_element_is_written_once_and_about_as_much_by_each_rank(ranks, tmp_path, layout):
    layout = Layout.parse(layout)
    run(ranks(layout.world_size), CONFIG, layout, RunOptions(saving=Saving(str(tmp_path), every=2), stop_after=1))
    manifest = Manifest.read(Disk(), tmp_path / name_of(2))
    shapes = {name: parameter.shape for name, parameter in GPT(CONFIG.model).named_parameters()}
    for name, entry in manifest.arrays.items():
        runs = [run for part in entry.slices for run in part.runs]
        assert sum(stop - start for start, stop in runs) == int(np.prod(entry.shape)), name
        assert missing_elements(entry) == 0
        assert entry.shape == shapes.get(name.removeprefix("exp_avg.").removeprefix("exp_avg_sq."), entry.shape)
    assert len(manifest.files) == layout.world_size
    if layout == Layout(dp=3):  # any rank could write anything: the loads differ by one part at most, of three arrays
        sizes = [entry.bytes for entry in manifest.files.values()]
        largest = max(int(np.prod(entry.shape)) * 4 for entry in manifest.arrays.values())
        headers = 20_000  # names and places, in each file
        assert max(sizes) - min(sizes) <= 3 * largest + headers
        assert min(sizes) > headers


@pytest.mark.long
def test_the_arrays_are_those_of_the_run(ranks, tmp_path):
    """What is in the files is what one process has after that step, to the bit: also under the names of export."""
    expected = run(ranks(1), CONFIG, Layout(), RunOptions(stop_after=1)).ranks[0].arrays
    layout = Layout(dp=2, tp=2, zero=1)
    run(ranks(4), CONFIG, layout, RunOptions(saving=Saving(str(tmp_path), every=2), stop_after=1))
    checkpoint = tmp_path / name_of(2)
    found = full_arrays(checkpoint, Manifest.read(Disk(), checkpoint), optimizer=True)
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], expected[name]) for name in expected)
    assert cli(["checkpoint", str(tmp_path), "--export", str(tmp_path / "plain.safetensors")]) == 0
    plain = load_file(tmp_path / "plain.safetensors")
    assert plain and all(np.array_equal(plain[name], expected[name]) for name in plain)
    assert not any(name.startswith("exp_avg") for name in plain)


@pytest.mark.long
def test_torch_loads_an_export(ranks, tmp_path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file as load_torch

    run(ranks(2), CONFIG, Layout(tp=2), RunOptions(saving=Saving(str(tmp_path), every=1), stop_after=0))
    path = tmp_path / "plain.safetensors"
    assert cli(["checkpoint", str(tmp_path), "--export", str(path), "--optimizer"]) == 0
    loaded = load_torch(path)
    assert loaded["exp_avg.blocks.0.attention.qkv.weight"].dtype == torch.float32
    weight = loaded["blocks.0.attention.qkv.weight"]
    assert tuple(weight.shape) == (4, 16, 12)
    assert np.array_equal(weight.numpy(), load_file(path)["blocks.0.attention.qkv.weight"])


@pytest.mark.long
def test_a_finished_run_resumes_at_its_end(ranks, references, tmp_path):
    options = RunOptions(saving=Saving(str(tmp_path), every=3))
    first = run(ranks(2), CONFIG, Layout(dp=2), options)
    assert committed(Disk(), tmp_path) == [name_of(3), name_of(4)]
    assert first.fingerprint == references(CONFIG).fingerprint
    again = run(ranks(1), CONFIG, Layout(), RunOptions(resume=str(tmp_path / name_of(4)), validate=True))
    assert again.steps_here == 0
    assert again.fingerprint == first.fingerprint


@pytest.mark.long
def test_old_checkpoints_are_removed_and_latest_follows(ranks, tmp_path):
    for keep, expected in ((1, [4]), (2, [3, 4]), (0, [1, 2, 3, 4])):
        folder = tmp_path / str(keep)
        run(ranks(2), CONFIG, Layout(dp=2), RunOptions(saving=Saving(str(folder), every=1, keep=keep)))
        assert committed(Disk(), folder) == [name_of(step) for step in expected]
        assert latest(Disk(), folder) == name_of(4)


def test_what_an_earlier_run_did_not_commit_is_removed(ranks, tmp_path):
    rest = tmp_path / name_of(1)
    rest.mkdir()
    (rest / "rank-6.safetensors").write_bytes(b"half")
    (tmp_path / "notes").mkdir()
    run(ranks(2), CONFIG, Layout(dp=2), RunOptions(saving=Saving(str(tmp_path), every=2), stop_after=1))
    assert not rest.exists()
    assert (tmp_path / "notes").is_dir()


def test_a_folder_that_becomes_a_file_costs_checkpoints_and_nothing_else(ranks, references, tmp_path):
    folder = tmp_path / "run"

    def on_event(rank, event):
        if event == ("saved", name_of(1), ""):
            shutil.rmtree(folder)
            folder.write_text("mine")

    saving = RunOptions(saving=Saving(str(folder), every=1, mode="sync"))
    result = run(ranks(2), CONFIG, Layout(dp=2), saving, on_event=on_event)
    assert result.fingerprint == references(CONFIG).fingerprint and folder.read_text() == "mine"
    assert len(result.ranks[0].save_errors) >= 2  # the second may have been under way
    assert all("Not a directory" in error for error in result.ranks[0].save_errors)


def train_on_a_disk_that_fills_up(world, config, layout, options):
    """The second rank's file of the checkpoint after two steps does not fit."""

    class Full(Disk):
        def write(self, path, content):
            if world.rank == 1 and path.parent.name == name_of(2):
                super().write(path, content[: len(content) // 2])
                raise OSError(28, "No space left on device")
            super().write(path, content)

    original = around.Saver
    around.Saver = lambda *arguments: original(*arguments, disk=Full())
    try:
        return train_rank(world, config, layout, options)
    finally:
        around.Saver = original


@pytest.mark.long
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_full_disk_costs_that_checkpoint_and_nothing_else(ranks, references, tmp_path, mode):
    events = []
    result = run(
        ranks(3), CONFIG, Layout(dp=3), RunOptions(saving=Saving(str(tmp_path), every=1, keep=0, mode=mode)),
        rank_function=train_on_a_disk_that_fills_up, on_event=lambda rank, event: events.append(event),
    )  # fmt: skip
    assert result.fingerprint == references(CONFIG).fingerprint
    assert committed(Disk(), tmp_path) == [name_of(step) for step in (1, 3, 4)]
    assert not (tmp_path / name_of(2)).exists()
    assert all(len(rank.save_errors) == 1 for rank in result.ranks)
    assert "rank-1.safetensors" in result.ranks[0].save_errors[0]
    assert "No space left" in result.ranks[0].save_errors[0]
    assert [name for kind, name, *error in events if kind == "saved" and error[0]] == [name_of(2)]
