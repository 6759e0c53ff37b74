"""Checkpoints that somebody else wrote, or damaged: every command uses them as they were meant, or says what is wrong.

Damage is drawn from three kinds: values in the manifest (with a right SHA-256, as by somebody who knows the format),
the content of a file (likewise), and what a name stands for (a link, a pipe, a folder, nothing).
"""

import copy
import hashlib
import json
import os
import random
import shutil
import socket
import threading
from pathlib import Path

import numpy as np
import pytest
from choosing import long
from clusters import Started, start_no_ranks
from safetensors.numpy import load_file, save_file

from minidist.cli.main import main as cli
from minidist.train.checkpoint.commit import LATEST, MANIFEST, name_of
from minidist.train.checkpoint.disk import Disk
from minidist.train.checkpoint.manifest import Manifest
from minidist.train.checkpoint.restore import is_whole
from minidist.train.checkpoint.saver import Saving
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RunOptions
from minidist.train.trainer import run

CONFIG = TrainConfig(
    layers=1, heads=2, width=8, context=8, global_batch=6, steps=4, experts=2, expert_hidden=4, bias_rate=0.01
)
SECONDS = 120  # a command that takes longer waits for something that never comes
EVIL = [
    None, True, -1, 0, 7, 2**64, 1.5, float("nan"), float("inf"), "", "x", "../../evil.safetensors", "\x1b[31mred",
    "rank-0.safetensors\n", "a" * 5000, [], [0], [[0, 1]], [[5, 2]], {}, {"a": 1},
]  # fmt: skip
FREE = ("layout", "config", "corpus", "versions", "checked")  # may be others and still be those of some run


@pytest.fixture
def no_ranks(monkeypatch):
    start_no_ranks(monkeypatch)


def command(*arguments) -> int | None:
    """The exit status of a command; None where it would have started a rank."""
    found = []

    def call():
        try:
            found.append(cli([str(argument) for argument in arguments]))
        except Started:
            found.append(None)

    thread = threading.Thread(target=call, daemon=True)  # it may wait for a pipe for ever
    thread.start()
    thread.join(SECONDS)
    assert found, f"{arguments} raised an exception, or does not end"
    return found[0]


def paths_in(tree, path=()):
    """The paths of all values in a tree of JSON; of long lists and dictionaries the first and the last value alone."""
    yield path
    if isinstance(tree, dict | list):
        keys = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
        for key in keys if len(keys) < 9 or path == ("config",) else (keys[0], keys[-1]):
            yield from paths_in(tree[key], (*path, key))


def cases_of(content):
    """Every value, to be replaced by each of EVIL, removed, or joined by another: (path, what)."""
    return [(path, what) for path in paths_in(content) for what in ("remove", "add", *EVIL) if path or what != "remove"]


def changed(content, path, what):
    """A copy of a tree in which that is done to one value."""
    whole = {"": copy.deepcopy(content)}
    place, *path = whole, "", *path
    for key in path[:-1]:
        place = place[key]
    if what == "remove":
        del place[path[-1]]
    elif what == "add" and isinstance(place[path[-1]], dict):
        place[path[-1]]["strange"] = 1
    else:
        place[path[-1]] = what
    return whole[""]


def write_manifest(folder, content):
    sha256 = hashlib.sha256(json.dumps(content).encode()).hexdigest()
    (folder / MANIFEST).write_text(json.dumps({"format": 1, "sha256": sha256, "manifest": content}))


@pytest.mark.parametrize("count", [100, long(None)], ids=["some", "all"])
def test_whatever_stands_in_a_manifest(folder, capsys, count):
    checkpoint = folder / name_of(4)
    original = Manifest.read(Disk(), checkpoint)
    content = json.loads((checkpoint / MANIFEST).read_text())["manifest"]
    refused = accepted = 0
    cases = cases_of(content)
    for what in random.Random(0).sample(cases, count or len(cases)):
        write_manifest(checkpoint, changed(content, *what))
        status = cli(["checkpoint", str(checkpoint)])
        shown = capsys.readouterr()
        assert "\x1b[31m" not in shown.out + shown.err, what
        if status == 0:
            accepted += 1
            found = Manifest.read(Disk(), checkpoint)
            assert (found.arrays, found.files, found.progress) == (
                original.arrays, original.files, original.progress
            ) or what[0][0] == "progress", what  # fmt: skip
        else:
            refused += 1
            assert status == 1 and "NO" in shown.out, (what, shown)
    assert refused > 5 * accepted > 0


@pytest.mark.parametrize("count", [40, long(300)])
def test_whatever_stands_in_a_manifest_a_run_says_what_is_wrong(folder, no_ranks, capsys, count):
    """Before any rank starts."""
    checkpoint = folder / name_of(4)
    content = json.loads((checkpoint / MANIFEST).read_text())["manifest"]
    for what in random.Random(count).sample(cases_of(content), count):
        write_manifest(checkpoint, changed(content, *what))
        status = command("train", "--resume", checkpoint, "--save", folder)
        shown = capsys.readouterr()
        assert status == 2 or (status is None and what[0][0] in (*FREE, "progress")), (what, shown)
        assert status is None or shown.err.startswith("minidist: "), what
        assert command("checkpoint", checkpoint, "--export", folder / "plain.safetensors") in (0, 1, 2), what


def test_whatever_a_manifest_or_a_file_is(folder, capsys):
    texts = ["", "null", "[]", "7", '"x"', "{}", '{"format": 1}', "[" * 100_000, '{"a":' * 100_000, "\x00", "9" * 5000]
    checkpoint = folder / name_of(4)
    content = json.loads((checkpoint / MANIFEST).read_text())["manifest"]
    for text in texts:
        (checkpoint / MANIFEST).write_text(text)
        assert cli(["checkpoint", str(folder)]) == 1
        assert "is not a manifest, or was cut off" in capsys.readouterr().out.replace("\n", ""), text[:20]
    file = checkpoint / "rank-0.safetensors"
    file.write_bytes(b"x" * 100)
    content["files"][file.name] = {"bytes": 100, "sha256": hashlib.sha256(b"x" * 100).hexdigest()}
    write_manifest(checkpoint, content)
    assert cli(["checkpoint", str(folder)]) == 1
    assert "is no safetensors file" in capsys.readouterr().out.replace("\n", "")


def rewrite(folder, change):
    """Change the arrays of one file, and write the manifest that goes with it."""
    file = folder / "rank-0.safetensors"
    arrays = load_file(file)
    change(arrays)
    save_file(arrays, file)
    content = json.loads((folder / MANIFEST).read_text())["manifest"]
    nbytes = file.read_bytes()
    content["files"][file.name] = {"bytes": len(nbytes), "sha256": hashlib.sha256(nbytes).hexdigest()}
    write_manifest(folder, content)


CONTENTS = {
    "nothing": lambda arrays: arrays.clear(),
    "an array is missing": lambda arrays: arrays.pop(min(arrays)),
    "one more": lambda arrays: arrays.update(strange=np.zeros(3, np.float32)),
    "another name": lambda arrays: arrays.update(strange=arrays.pop(min(arrays))),
    "shorter": lambda arrays: arrays.update({min(arrays): arrays[min(arrays)][:-1].copy()}),
    "longer": lambda arrays: arrays.update({min(arrays): np.zeros(arrays[min(arrays)].size + 1, np.float32)}),
    "another dtype": lambda arrays: arrays.update({min(arrays): arrays[min(arrays)].astype(np.float16)}),
    "integers": lambda arrays: arrays.update({min(arrays): arrays[min(arrays)].view(np.int32)}),
    "two axes": lambda arrays: arrays.update({min(arrays): arrays[min(arrays)].reshape(1, -1)}),
}


def test_whatever_stands_in_a_file(saved, tmp_path, no_ranks, capsys):
    plain = tmp_path / "plain.safetensors"
    for what, change in ({"nothing is": lambda arrays: None} | CONTENTS).items():
        folder = Path(shutil.copytree(saved, tmp_path / what))
        rewrite(folder / name_of(4), change)
        if what == "nothing is":
            assert is_whole(Disk(), folder / name_of(4))
            continue
        assert command("checkpoint", folder) == 1, what
        assert "rank-0.safetensors: by its manifest" in capsys.readouterr().out.replace("\n", ""), what
        assert command("checkpoint", folder, "--export", plain) == 2, what
        assert command("train", "--resume", folder) == 2 and not plain.exists(), what


def stand_for(path, kind, elsewhere):
    """Let a name stand for something else."""
    elsewhere.mkdir()
    target = elsewhere / path.name
    path.rename(target)
    if kind == "a link":
        path.symlink_to(target)
    elif kind == "a link to nothing":
        path.symlink_to(elsewhere / "nothing")
    elif kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a socket":
        with socket.socket(socket.AF_UNIX) as server:
            here = os.getcwd()
            os.chdir(path.parent)  # a socket's path may not be long
            server.bind(path.name)
            os.chdir(here)
    elif kind.startswith("a folder"):
        path.mkdir()
        if kind == "a folder with a file":
            (path / "mine").write_text("precious")
    elif kind == "an empty file":
        path.write_bytes(b"")


KINDS = (
    "a link", "a link to nothing", "a pipe", "a socket", "a folder", "a folder with a file", "an empty file", "nothing",
)  # fmt: skip
PLACES = (f"{name_of(4)}/{MANIFEST}", f"{name_of(4)}/rank-0.safetensors", name_of(4), name_of(2), LATEST)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", [PLACES[0], PLACES[2], long(PLACES[1]), long(PLACES[3]), PLACES[4]])
def test_whatever_a_name_stands_for(folder, tmp_path, no_ranks, capsys, place, kind):
    """Nobody waits for ever, no link is followed, and what is elsewhere stays as it was."""
    stand_for(folder / place, kind, tmp_path / "elsewhere")
    before = {path: path.read_bytes() for path in (tmp_path / "elsewhere").rglob("*") if path.is_file()}
    assert command("checkpoint", folder) in (0, 1, 2)
    assert command("checkpoint", folder, "--export", tmp_path / "plain.safetensors") in (0, 1, 2)
    assert command("train", "--resume", folder, "--save", folder) in (2, None)
    assert command("train", "--resume", folder / name_of(4)) in (2, None)
    named = (place, kind) == (name_of(4), "a link")  # by whoever calls, who may follow a link
    assert is_whole(Disk(), folder / name_of(4)) == (named or not place.startswith(name_of(4)))
    assert {path: path.read_bytes() for path in (tmp_path / "elsewhere").rglob("*") if path.is_file()} == before
    capsys.readouterr()


def test_retention_does_not_follow_a_link(ranks, tmp_path):
    """A checkpoint is moved to an archive while the run goes on, and a link left in its place."""
    folder, archive = tmp_path / "run", tmp_path / "archive"

    def on_event(rank, event):
        if event == ("saved", name_of(1), ""):
            (folder / name_of(1)).rename(archive)
            (folder / name_of(1)).symlink_to(archive)

    options = RunOptions(saving=Saving(str(folder), every=1, keep=1, mode="sync"))
    run(ranks(2), CONFIG, Layout(dp=2), options, on_event=on_event)
    assert sorted(path.name for path in folder.iterdir()) == [LATEST, name_of(1), name_of(4)]
    assert is_whole(Disk(), archive) and Manifest.read(Disk(), archive).progress.step == 1
