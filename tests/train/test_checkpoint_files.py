"""What a run writes, keeps and removes; what is wrong with a checkpoint is told by name, and nothing is overwritten.

(What it goes on with, and its bits: test_goes_on.py. What somebody else wrote: test_foreign_checkpoints.py.)
"""

import json
import random
import shutil
from contextlib import nullcontext
from copy import copy
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from acting import train_acting

from minidist.cli.main import main as cli
from minidist.nn.data import default_text, load_corpus
from minidist.plan.units import in_bytes
from minidist.train.checkpoint import manifest as library
from minidist.train.checkpoint.commit import LATEST, MANIFEST, committed, is_name, latest, name_of
from minidist.train.checkpoint.disk import Disk
from minidist.train.checkpoint.folder import check_folder, own_folder
from minidist.train.checkpoint.restore import check_files, find_checkpoint, missing_elements, read_part
from minidist.train.checkpoint.saver import Saving
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RunOptions
from minidist.train.trainer import run

CONFIG = TrainConfig(layers=1, heads=2, width=8, context=8, global_batch=6, steps=4)
LARGER = TrainConfig(
    layers=2, heads=4, width=16, context=8, global_batch=5, micro_batch=1, steps=4, warmup=2, dropout=0.1,
    sequence_chunks=4, experts=4, expert_hidden=8, bias_rate=0.01,
)  # fmt: skip


def manifest_of(checkpoint: Path) -> library.Manifest:
    return library.Manifest.read(Disk(), checkpoint)


def save(ranks, config, layout: str, folder, every=2, **options):
    layout, saving = Layout.parse(layout), Saving(str(folder), every, **options)
    return run(ranks(layout.world_size), config, layout, RunOptions(saving=saving, stop_after=1))


# What is written


@pytest.mark.long
def test_each_rank_writes_about_as_much(ranks, tmp_path):
    """Under dp=3 any rank could write anything: the loads differ by one part at most, of three arrays."""
    save(ranks, LARGER, "dp=3", tmp_path)
    manifest = manifest_of(tmp_path / name_of(2))
    sizes = [entry.bytes for entry in manifest.files.values()]
    largest = max(int(np.prod(entry.shape)) * 4 for entry in manifest.arrays.values())
    headers = 20_000  # names and places, in each file
    assert len(sizes) == 3 and max(sizes) - min(sizes) <= 3 * largest + headers and min(sizes) > headers


@pytest.mark.long
def test_each_rank_reads_what_it_needs_and_no_more(ranks, tmp_path):
    """Under ZeRO-3 the ranks together read every element of the state once, whoever wrote it."""
    save(ranks, LARGER, "tp=2,pp=2", tmp_path)
    options = RunOptions(resume=str(tmp_path / name_of(2)))
    arrays = manifest_of(tmp_path / name_of(2)).arrays
    sizes = {name: int(np.prod(entry.shape)) * np.dtype(entry.dtype).itemsize for name, entry in arrays.items()}
    extra = sum(size for name, size in sizes.items() if name.startswith(("router_b", "router_c")))
    assert extra > 0  # all ranks have the routers' biases and counts
    result = run(ranks(5), LARGER, Layout(dp=5, zero=3), options)
    assert sum(rank.bytes_read for rank in result.ranks) == sum(sizes.values()) + 4 * extra


@pytest.mark.long
def test_an_export_has_the_arrays_of_the_run_and_torch_loads_it(ranks, tmp_path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file

    expected = run(ranks(1), LARGER, Layout(), RunOptions(stop_after=1)).ranks[0].arrays
    save(ranks, LARGER, "dp=2,tp=2,zero=1", tmp_path)
    path = str(tmp_path / "plain.safetensors")
    for flags in ([], ["--optimizer"]):
        assert cli(["checkpoint", str(tmp_path), "--export", path, *flags]) == 0
        found = load_file(path)
        assert found.keys() == {name for name in expected if flags or not name.startswith("exp_avg")}
        assert all(np.array_equal(array.numpy(), expected[name]) for name, array in found.items())
    assert found["exp_avg.blocks.0.attention.qkv.weight"].dtype == torch.float32


@pytest.mark.long
def test_a_checkpoint_says_how_far_its_numbers_were_checked(ranks, tmp_path, capsys):
    """Checks after 3 and 4 steps, checkpoints after 2 and 4: the first was saved before anything had been checked."""
    options = RunOptions(saving=Saving(str(tmp_path), every=2, keep=0, mode="sync"), check_replicas=3)
    run(ranks(3), CONFIG, Layout(dp=3), options)
    for step, checked in ((2, 0), (4, 4)):
        assert manifest_of(tmp_path / name_of(step)).checked == checked
        assert cli(["train", "--resume", str(tmp_path / name_of(step))]) == 0
        shown = capsys.readouterr().out
        assert ("last checked" in shown) == (step == 2) == ("note: its numbers were last checked after step 0" in shown)


def test_a_list_says_what_a_folder_has(folder, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    (folder / name_of(6)).mkdir()
    expected = []
    for name, manifest in ((name, manifest_of(folder / name)) for name in (name_of(2), name_of(4))):
        sizes = [file.stat().st_size for file in (folder / name).glob("rank-*")]
        row = {"name": name, "committed": True, "whole": True, "problem": "", "layout": "dp=3", "precision": "fp32"}
        row |= {"step": manifest.progress.step, "loss": manifest.progress.losses[-1]}
        expected.append(row | {"files": 3, "bytes": sum(sizes)})
    why = "cut off before its manifest was written; the next run removes it"
    expected.append({"name": name_of(6), "committed": False, "whole": False, "problem": why})
    for place, rows in ((folder, expected), (folder / name_of(2), expected[:1])):
        assert cli(["checkpoint", str(place), "--json", "-"]) == 0
        printed = capsys.readouterr()
        assert json.loads(printed.out) == {"latest": name_of(4), "checkpoints": rows}
        lines = [line.split() for line in printed.err.splitlines()]
        for row in (row for row in rows if row["whole"]):
            name = row["name"] + "*" * (row["step"] == 4)
            size = in_bytes(row["bytes"]).split()
            assert [name, "dp=3", "fp32", str(row["step"]), f"{row['loss']:.4f}", "3", *size, "yes"] in lines
        assert ([name_of(6), "not", "committed"] in lines) == (place == folder) == ("*: the latest" in printed.err)
        assert (f"{name_of(6)}: {why}" in printed.err) == (place == folder)


# What is removed, and what is not


def test_a_folder_that_becomes_a_file_costs_checkpoints_and_nothing_else(ranks, tmp_path):
    def become_a_file(step):
        if step == 0:
            shutil.rmtree(folder)
            folder.write_text("mine")

    folder = tmp_path / "run"
    saving = RunOptions(saving=Saving(str(folder), every=1, mode="sync"))
    result = run(ranks(1), CONFIG, Layout(), saving, rank_function=partial(train_acting, end=become_a_file))
    assert result.fingerprint == run(ranks(1), CONFIG, Layout()).fingerprint and folder.read_text() == "mine"
    assert ["Not a directory" in error for error in result.ranks[0].save_errors] == [True] * 3
    assert len(result.ranks[0].pauses) == 4  # of each save, done or not: one was


def test_what_no_run_has_saved_is_not_removed(tmp_path):
    """The rests of a save that was cut off may be: they bear names that a saver gives."""
    for strange in (
        "step-000100/mine.bin", "step-000100/rank-0.safetensors.old", "step-000100/rank-0.safetensors/mine.bin",
        "step-000100",
    ):  # fmt: skip
        folder = tmp_path / strange.replace("/", "-")
        path, half = folder / strange, folder / "step-000002"
        half.mkdir(parents=True)
        for name in ("rank-0.safetensors", ".new-rank-1.safetensors", "tokenizer.json", ".new-manifest.json"):
            (half / name).write_bytes(b"half")
        check_folder(str(folder), None)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"precious")
        with pytest.raises(ValueError, match=r"--save: .*step-000100.* is where a checkpoint may go, but no run has"):
            check_folder(str(folder), None)
        assert path.read_bytes() == b"precious"


def test_checkpoints_of_other_runs_are_not_mixed(ranks, saved, folder, tmp_path):
    for resume in (None, str(saved / name_of(4))):
        with pytest.raises(ValueError, match="already has checkpoints"):
            check_folder(str(folder), resume)
    branch = RunOptions(saving=Saving(str(folder)), resume=str(folder / name_of(2)))
    newer = r"has newer checkpoints than step-000002 \(step-000004\).*save in another folder, or remove"
    with pytest.raises(ValueError, match=newer):
        run(ranks(1), CONFIG, Layout(), branch)
    check_folder(f"{folder}/../{folder.name}", str(folder / name_of(4)))
    check_folder(str(tmp_path / "new" / "deep"), None)
    (folder / LATEST).write_text(name_of(2))  # the run was killed before it wrote the newer name
    check_folder(str(folder), str(folder / name_of(2)))
    (folder / LATEST).write_text(name_of(4))
    (folder / name_of(4) / "rank-0.safetensors").write_text("damaged")  # nobody can go on from it
    check_folder(str(folder), str(folder / name_of(2)))


def test_two_runs_do_not_save_in_one_folder(ranks, tmp_path, monkeypatch):
    """A file system without locks is no reason to stop: some NFS says "[Errno 37] No locks available"."""

    def flock(*_):
        raise OSError(37, "No locks available")

    notes, saving = [], RunOptions(saving=Saving(str(tmp_path), every=2))
    with own_folder(str(tmp_path), None):
        with pytest.raises(ValueError, match="another run is saving in"):
            run(ranks(1), CONFIG, Layout(), saving)
        with own_folder(str(tmp_path / "other"), None), own_folder(None, None):
            pass
    monkeypatch.setattr("fcntl.flock", flock)
    run(ranks(1), CONFIG, Layout(), saving, on_event=lambda rank, event: notes.append(event))
    assert ("note", f"{tmp_path} cannot be claimed (No locks available): let no other run save there") in notes
    assert find_checkpoint(str(tmp_path)) == tmp_path / name_of(4)


# What is wrong with a checkpoint


def test_any_byte_that_changes_or_is_missing_is_found(folder):
    rng, checkpoint = random.Random(0), folder / name_of(4)
    paths = sorted(checkpoint.iterdir())
    damages = [(path, length) for path in paths for length in (0, 1, 100, -1)]
    for path, length in damages + [(rng.choice(paths), None) for _ in range(30)]:
        content = path.read_bytes()
        changed = bytearray(content[:length])
        place = rng.randrange(len(content))
        if length is None:
            changed[place] ^= 1 << rng.randrange(8)
        path.write_bytes(changed)
        with pytest.raises(library.BadCheckpoint, match=path.name):
            check_files(checkpoint, manifest_of(checkpoint))
            pytest.fail(f"{path.name}: {length or place}")
        path.write_bytes(content)
    check_files(checkpoint, manifest_of(checkpoint))


def test_a_manifest_has_no_element_twice_and_no_more_updates_than_steps(folder):
    """Against element by element, for all pairs of runs, in an array of three; what no run has is not made up."""
    checkpoint = folder / name_of(4)
    whole, runs = manifest_of(checkpoint), [*product(range(5), repeat=2)]
    for pair, updates in [*((pair, 4) for pair in product(runs, repeat=2)), *((runs[1:2], n) for n in range(7))]:
        entry = library.ArrayEntry((3,), "float32", (library.Slice(next(iter(whole.files)), tuple(pair)),))
        some = replace(whole, arrays={"weight": entry}, progress=replace(whole.progress, updates=updates))
        (checkpoint / MANIFEST).write_bytes(some.encoded())
        elements = [place for run in pair for place in range(*run)]
        if max(elements, default=0) < 3:
            assert missing_elements(entry) == 3 - len(set(elements)), pair
        legal = all(start < stop <= 3 for start, stop in pair) and len(set(elements)) == len(elements) and updates <= 4
        with nullcontext() if legal else pytest.raises(library.BadCheckpoint):
            assert manifest_of(checkpoint) == some, (pair, updates)
    with pytest.raises(library.BadCheckpoint, match="1 of the elements of weight"):
        read_part(
            library.ArrayEntry((4,), "float32", (library.Slice("file", ((0, 3),)),)), "weight", ((0, 4),), lambda *_: 0
        )


def test_only_committed_checkpoints_are_found(folder, tmp_path, monkeypatch):
    assert find_checkpoint(str(folder)) == folder / name_of(4)
    assert find_checkpoint(str(folder / name_of(2))) == folder / name_of(2)
    (folder / "best").symlink_to(name_of(2))
    link = tmp_path / "kept" / name_of(2)
    link.parent.mkdir()
    link.symlink_to(folder / name_of(2))
    monkeypatch.chdir(folder / name_of(2))  # whoever stands in it, or has a link to it, knows it by another path
    for path in (".", str(folder / "best"), str(link)):
        assert find_checkpoint(path) == (folder / name_of(2)).resolve()
    (folder / name_of(4)).rename(folder / name_of(5))
    with pytest.raises(library.BadCheckpoint, match=f"it is of step 4, and its folder is called {name_of(5)}"):
        manifest_of(folder / name_of(5))
    (folder / name_of(5)).rename(folder / name_of(4))
    (folder / name_of(4) / MANIFEST).unlink()
    assert find_checkpoint(str(folder)) == folder / name_of(2)  # although `latest` says otherwise
    with pytest.raises(library.BadCheckpoint, match=f"no checkpoint in .*: beside it are {name_of(2)}"):
        find_checkpoint(str(folder / name_of(4)))
    (folder / LATEST).unlink()
    assert latest(Disk(), folder) == name_of(2)
    for step in (1_000_000, 999_999):
        (folder / name_of(step)).mkdir()
        (folder / name_of(step) / MANIFEST).touch()
    assert committed(Disk(), folder) == [name_of(step) for step in (2, 999_999, 1_000_000)]
    assert is_name("step-000050") and is_name("step-1234567")
    assert not any(map(is_name, ("step-50", "step-", "step-00005x", "latest", "step-000050.old", "step-٠٠٠٠٥٠")))


def test_another_run_is_refused_and_other_versions_are_told(saved, folder, tmp_path, monkeypatch):
    """A text and a tokenizer are compared by their bytes, and may be elsewhere."""
    manifest, corpus = manifest_of(saved / name_of(4)), load_corpus(None, CONFIG.context)
    with pytest.raises(library.BadCheckpoint, match="seed 0 there and 5 here, precision fp32 there and bf16 here"):
        library.check_same_run(manifest, replace(CONFIG, precision="bf16", seed=5), corpus)
    for name in asdict(CONFIG).keys() - set(library.PROLONGED):
        object.__setattr__(other := copy(CONFIG), name, "another")
        refused = pytest.raises(library.BadCheckpoint, match=f"{name} .* there and another here")
        with nullcontext() if name in ("text", "tokenizer", "backend") else refused:
            library.check_same_run(manifest, other, corpus)
    text = tmp_path / "text"
    text.write_bytes(b"a text about texts " * 100)
    with pytest.raises(library.BadCheckpoint, match="another text"):
        library.check_same_run(manifest, CONFIG, load_corpus(str(text), CONFIG.context))
    text.write_bytes(default_text())
    library.check_same_run(manifest, replace(CONFIG, text=str(text)), load_corpus(str(text), CONFIG.context))
    assert library.other_versions(manifest, "numpy") == ""
    newer = manifest.versions | {"numpy": "9.9"}
    monkeypatch.setattr(library, "versions", lambda backend: newer | ({"cupy": "14"} if backend == "cupy" else {}))
    told = f"the checkpoint was written with numpy {manifest.versions['numpy']}, now 9.9: the bits may differ"
    assert library.other_versions(manifest, "numpy") == told
    assert "with backend numpy, now cupy and numpy" in library.other_versions(manifest, "cupy")
    exact = replace(manifest, config=manifest.config | {"products": "exact"})
    assert library.other_versions(exact, "cupy") == told
    newer["numpy"], newer["bits of its products"] = manifest.versions["numpy"], "0badb175"
    assert "the bits of its products" not in told and "bits of its products" in library.other_versions(
        manifest, "numpy"
    )
    assert library.other_versions(exact, "numpy") == library.other_versions(replace(exact, versions={}), "numpy") == ""
    with pytest.raises(library.BadCheckpoint, match="another version of minidist, with other settings: rope_theta"):
        library.config_in(replace(manifest, config=manifest.config | {"rope_theta": 1}))
    path = folder / name_of(4) / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 7}))
    with pytest.raises(library.BadCheckpoint, match="written in format 7"):
        manifest_of(folder / name_of(4))


@pytest.mark.long
def test_a_resumed_command_takes_its_settings_from_the_checkpoint(folder, capsys):
    """Layout too, unless a flag says otherwise; a setting that differs is refused. A run that has ended stays so."""
    found = []
    for after, *flags in ((2,), (2, "--tp", "2"), (4,)):
        assert cli(["train", "--resume", str(folder / name_of(after)), *flags, "--json", str(folder / "x.json")]) == 0
        assert f"resuming after step {after}" in capsys.readouterr().out
        found.append(json.loads((folder / "x.json").read_text()))
    one, two, ended = found
    assert one["layout"] == "dp=3" and two["layout"] == "tp=2" and ended["utilization"] is None
    assert one["fingerprint"] == two["fingerprint"] == ended["fingerprint"]
    assert one["config"]["width"] == CONFIG.width and one["resumed_after"] == 2
    assert cli(["train", "--resume", str(folder), "--width", "16"]) == 2
    assert "width 8 there and 16 here" in capsys.readouterr().err
    assert cli(["train", "--resume", str(folder / name_of(2)), "--fault", "rank=0,step=1,kind=kill"]) == 2
    assert "rank=0,step=1,kind=kill: the run goes on with step 2" in capsys.readouterr().err
