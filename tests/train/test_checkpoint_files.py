"""What is wrong with a checkpoint is told by name, before any rank starts, and nothing is overwritten."""

import json
import os
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from minidist.cli.main import main as cli
from minidist.comm import Cluster
from minidist.nn.data import load_corpus
from minidist.train.checkpoint import identity
from minidist.train.checkpoint.commit import LATEST, MANIFEST, is_name, latest, name_of
from minidist.train.checkpoint.disk import Disk
from minidist.train.checkpoint.folder import check_folder, own_folder
from minidist.train.checkpoint.identity import check_same_run, config_in, other_versions
from minidist.train.checkpoint.manifest import ArrayEntry, BadCheckpoint, Manifest, Slice
from minidist.train.checkpoint.restore import check_files, find_checkpoint, missing_elements, read_part
from minidist.train.checkpoint.saver import Saving
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RunOptions
from minidist.train.trainer import run

CONFIG = TrainConfig(layers=1, heads=2, width=8, context=8, global_batch=6, steps=4)


@pytest.fixture(scope="module")
def saved(ranks, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    run(ranks(3), CONFIG, Layout(dp=3), RunOptions(saving=Saving(str(folder), every=2)))
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    """A copy of the checkpoints, to be damaged."""
    return Path(shutil.copytree(saved, tmp_path / "copy"))


@pytest.fixture
def no_ranks(monkeypatch):
    """Whoever starts a rank fails."""
    monkeypatch.setattr(Cluster, "__init__", lambda *_: pytest.fail("a rank was started"))


def manifest_of(checkpoint: Path) -> Manifest:
    return Manifest.read(Disk(), checkpoint)


@pytest.mark.parametrize("seed", range(30))
def test_any_byte_that_changes_is_found(folder, seed):
    rng = random.Random(seed)
    checkpoint = folder / name_of(4)
    path = rng.choice(sorted(checkpoint.iterdir()))
    content = bytearray(path.read_bytes())
    place = rng.randrange(len(content))
    content[place] ^= 1 << rng.randrange(8)
    path.write_bytes(content)
    with pytest.raises(BadCheckpoint, match=path.name):
        check_files(checkpoint, manifest_of(checkpoint))


@pytest.mark.parametrize("length", [0, 1, 100, -1])
def test_a_truncated_file_is_found(folder, length):
    checkpoint = folder / name_of(4)
    for path in sorted(checkpoint.iterdir()):
        content = path.read_bytes()
        path.write_bytes(content[:length])
        with pytest.raises(BadCheckpoint, match=path.name):
            check_files(checkpoint, manifest_of(checkpoint))
        path.write_bytes(content)
    check_files(checkpoint, manifest_of(checkpoint))


def test_all_that_is_wrong_is_told_at_once(folder, no_ranks, capsys):
    checkpoint = folder / name_of(4)
    (checkpoint / "rank-0.safetensors").unlink()
    (checkpoint / "rank-2.safetensors").write_bytes(b"other")
    assert cli(["train", "--resume", str(folder)]) == 2
    told = capsys.readouterr().err
    assert "rank-0.safetensors is missing" in told
    assert "rank-2.safetensors has 5 bytes, and had" in told
    assert cli(["checkpoint", str(folder)]) == 1
    listed = capsys.readouterr().out
    assert "rank-0.safetensors is missing" in listed
    assert "NO" in listed and "yes" in listed  # the one before is whole


def test_a_manifest_that_names_too_little_is_found(folder):
    checkpoint = folder / name_of(4)
    manifest = manifest_of(checkpoint)
    name, entry = next((n, e) for n, e in manifest.arrays.items() if n == "embeddings.token.weight")
    less = manifest.arrays | {name: replace(entry, slices=())}
    with pytest.raises(BadCheckpoint, match=r"no file has 2,0.. of the .* embeddings.token.weight"):
        check_files(checkpoint, replace(manifest, arrays=less))


@pytest.mark.parametrize(
    ("runs", "missing"),
    [([(0, 12)], 0), ([(0, 5), (5, 12)], 0), ([(5, 12), (0, 5)], 0), ([(0, 5), (6, 12)], 1), ([], 12),
     ([(0, 8), (4, 12)], 0), ([(0, 8), (2, 4)], 4), ([(3, 4)], 11)],
)  # fmt: skip
def test_missing_elements_are_counted(runs, missing):
    assert missing_elements(ArrayEntry((3, 4), "float32", (Slice("file", tuple(runs)),))) == missing


def test_what_no_slice_has_is_not_made_up():
    entry = ArrayEntry((4,), "float32", (Slice("file", ((0, 3),)),))
    with pytest.raises(BadCheckpoint, match="1 of the elements of weight"):
        read_part(entry, "weight", ((0, 4),), lambda *_: 0)


def test_only_committed_checkpoints_are_found(folder):
    assert find_checkpoint(str(folder)) == folder / name_of(4)
    assert find_checkpoint(str(folder / name_of(2))) == folder / name_of(2)
    (folder / name_of(4) / MANIFEST).unlink()
    assert find_checkpoint(str(folder)) == folder / name_of(2)  # although `latest` says otherwise
    with pytest.raises(BadCheckpoint, match="no checkpoint in"):
        find_checkpoint(str(folder / name_of(4)))
    (folder / LATEST).unlink()
    assert latest(Disk(), folder) == name_of(2)


@pytest.mark.parametrize("text", ["step-000050", "step-1234567"])
def test_names_are_those_of_steps(text):
    assert is_name(text)


@pytest.mark.parametrize("text", ["step-50", "step-", "step-00005x", "latest", "step-000050.old", "step-٠٠٠٠٥٠"])
def test_other_names_are_left_alone(text):
    assert not is_name(text)


def test_another_run_is_refused(saved, tmp_path):
    manifest = manifest_of(saved / name_of(4))
    corpus = load_corpus(None, CONFIG.context)
    check_same_run(manifest, CONFIG, corpus)
    with pytest.raises(BadCheckpoint, match="width 8 there and 16 here"):
        check_same_run(manifest, replace(CONFIG, width=16), corpus)
    with pytest.raises(BadCheckpoint, match="steps 4 there and 5 here, precision fp32 there and bf16 here"):
        check_same_run(manifest, replace(CONFIG, precision="bf16", steps=5), corpus)
    text = tmp_path / "text"
    text.write_bytes(b"some other text " * 100)
    with pytest.raises(BadCheckpoint, match="another text"):
        check_same_run(manifest, CONFIG, load_corpus(str(text), CONFIG.context))


def test_the_same_text_may_be_elsewhere(ranks, tmp_path):
    """It is compared by its bytes."""
    (tmp_path / "here").write_bytes(b"a text about texts " * 100)
    config = replace(CONFIG, text=str(tmp_path / "here"))
    run(ranks(1), config, Layout(), RunOptions(saving=Saving(str(tmp_path / "save"), every=2), stop_after=1))
    (tmp_path / "here").rename(tmp_path / "there")
    moved = load_corpus(str(tmp_path / "there"), config.context)
    manifest = manifest_of(tmp_path / "save" / name_of(2))
    check_same_run(manifest, replace(config, text=str(tmp_path / "there")), moved)


def test_other_versions_are_told(saved, folder, monkeypatch):
    manifest = manifest_of(saved / name_of(4))
    assert other_versions(manifest, "numpy") == ""
    newer = manifest.versions | {"numpy": "9.9"}
    monkeypatch.setattr(identity, "versions", lambda backend: newer | ({"cupy": "14"} if backend == "cupy" else {}))
    numpy = manifest.versions["numpy"]
    told = f"the checkpoint was written with numpy {numpy}, now 9.9: the bits may be others"
    assert other_versions(manifest, "numpy") == told
    assert "with backend numpy, now cupy and numpy" in other_versions(manifest, "cupy")
    with pytest.raises(BadCheckpoint, match="another version of minidist, with other settings: rope_theta"):
        config_in(replace(manifest, config=manifest.config | {"rope_theta": 1}))
    path = folder / name_of(4) / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 7}))
    with pytest.raises(BadCheckpoint, match="written in format 7"):
        manifest_of(folder / name_of(4))


def test_checkpoints_of_other_runs_are_not_mixed(saved, folder, tmp_path):
    with pytest.raises(ValueError, match="has checkpoints already"):
        check_folder(str(folder), None)
    with pytest.raises(ValueError, match="has checkpoints already"):
        check_folder(str(folder), str(saved / name_of(4)))
    check_folder(str(folder), str(folder / name_of(4)))
    check_folder(str(tmp_path / "new" / "deep"), None)


@pytest.mark.parametrize("strange", ["step-000100/mine.bin", "step-000100/rank-0.safetensors/mine.bin", "step-000100"])
def test_what_no_run_has_saved_is_not_removed(tmp_path, strange):
    """The rests of a save that was cut off may be: they bear names that a saver gives."""
    cut_off = tmp_path / "step-000002"
    cut_off.mkdir()
    for name in ("rank-0.safetensors", ".new-rank-1.safetensors", ".new-manifest.json"):
        (cut_off / name).write_bytes(b"half")
    check_folder(str(tmp_path), None)
    path = tmp_path / strange
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"precious")
    with pytest.raises(ValueError, match=r"--save: .*step-000100.* is where a checkpoint may go, and no run has saved"):
        check_folder(str(tmp_path), None)
    assert path.read_bytes() == b"precious"


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_a_folder_without_rights_is_told(tmp_path, no_ranks, capsys):
    tmp_path.chmod(0o500)
    assert cli(["train", "--save", str(tmp_path / "x")]) == 2
    assert "cannot write" in capsys.readouterr().err
    tmp_path.chmod(0o700)


def test_a_place_that_is_no_folder_is_told(tmp_path, no_ranks, capsys):
    (tmp_path / "file").write_text("not a folder")
    assert cli(["train", "--save", str(tmp_path / "file")]) == 2
    assert "--save: cannot write in" in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == "not a folder"


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (["--save-every", "3"], "add --save DIR"),
        (["--keep", "3"], "add --save DIR"),
        (["--save", "{}", "--save-every", "0"], "every 1 step or more"),
        (["--save", "{}", "--keep", "-1"], "--keep must be 0"),
        (["--resume", "{}"], "there is no checkpoint in"),
        (["--fault", "rank=1,step=2"], "write it as rank=2,step=7,kind=kill"),
        (["--fault", "rank=0,step=2,kind=melt"], "kind must be kill, raise"),
        (["--fault", "rank=0,step=2,kind=slow"], "1 to 1000 times"),
        (["--fault", "rank=0,step=2,kind=slow:x"], "not a number"),
        (["--fault", "rank=0,step=2,kind=kill:9"], "nothing behind a colon"),
        (["--fault", "rank=0,step=2,kind=flip"], "a bit flips in weights"),
        (["--fault", "rank=3,step=2,kind=kill"], "has ranks 0 to 0"),
        (["--fault", "rank=0,step=100,kind=kill"], "has steps 0 to 99"),
        (["--fault", "rank=-1,step=1,kind=kill"], "counted from 0"),
        (["--optimizer", "sgd", "--fault", "rank=0,step=1,kind=flip:moments"], "SGD keeps no moments"),
        (
            ["--dp", "2", "--sync", "async", "--fault", "rank=1,step=1,kind=flip:moments"],
            "choose a server, from rank 2",
        ),
        (["--dp", "2", "--sync", "async", "--fault", "rank=2,step=1,kind=flip:gradients"], "computes no gradients"),
        (["--dp", "2", "--sync", "async", "--fault", "rank=2,step=1,kind=slow:3"], "choose a worker, from rank 0 to 1"),
        (
            ["--dp", "2", "--compress", "int8", "--fault", "rank=0,step=1,kind=flip:message"],
            "compress=int8 sends bytes",
        ),
    ],
)
def test_flags_that_make_no_sense_are_told(tmp_path, no_ranks, capsys, flags, error):
    assert cli(["train", *(flag.format(tmp_path) for flag in flags)]) == 2
    assert error in capsys.readouterr().err


@pytest.mark.long
def test_a_resumed_command_takes_its_settings_from_the_checkpoint(folder, capsys):
    """Layout too, unless a flag says otherwise; a setting that differs is refused."""
    assert cli(["train", "--resume", str(folder / name_of(2)), "--json", str(folder / "a.json")]) == 0
    assert "resuming after step 2" in capsys.readouterr().out
    assert cli(["train", "--resume", str(folder / name_of(2)), "--tp", "2", "--json", str(folder / "b.json")]) == 0
    one, two = (json.loads((folder / name).read_text()) for name in ("a.json", "b.json"))
    assert one["layout"] == "dp=3" and two["layout"] == "tp=2"
    assert one["fingerprint"] == two["fingerprint"]
    assert one["config"]["width"] == CONFIG.width and one["resumed_after"] == 2
    assert cli(["train", "--resume", str(folder), "--width", "16"]) == 2
    assert "width 8 there and 16 here" in capsys.readouterr().err


def test_two_runs_do_not_save_in_one_folder(ranks, tmp_path):
    saving = RunOptions(saving=Saving(str(tmp_path), every=2))
    with own_folder(str(tmp_path), None):
        with pytest.raises(ValueError, match="another run is saving in"):
            run(ranks(1), CONFIG, Layout(), saving)
        with own_folder(str(tmp_path / "other"), None), own_folder(None, None):
            pass
    run(ranks(1), CONFIG, Layout(), saving)
    assert find_checkpoint(str(tmp_path)) == tmp_path / name_of(4)


@pytest.mark.long
def test_a_checkpoint_says_how_far_its_numbers_were_checked(ranks, tmp_path, capsys):
    """Checks after 3 and 4 steps, checkpoints after 2 and 4: the first was saved before anything had been checked."""
    options = RunOptions(saving=Saving(str(tmp_path), every=2, keep=0, mode="sync"), check_replicas=3)
    run(ranks(3), CONFIG, Layout(dp=3), options)
    assert [manifest_of(tmp_path / name_of(step)).checked for step in (2, 4)] == [0, 4]
    assert cli(["train", "--resume", str(tmp_path / name_of(2))]) == 0
    assert "note: its numbers were last checked after step 0" in capsys.readouterr().out
    assert cli(["train", "--resume", str(tmp_path / name_of(4))]) == 0
    assert "last checked" not in capsys.readouterr().out
