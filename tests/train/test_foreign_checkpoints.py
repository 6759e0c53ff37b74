"""Checkpoints that somebody else wrote, or damaged: every command uses them as they were meant, or says what is wrong.

Damage is drawn from three kinds: values in the manifest (with a right SHA-256, as by somebody who knows the format),
the content of a file (likewise), and what a name stands for (a link, a pipe, a folder, nothing).
"""

import copy
import hashlib
import json
import os
import random
import threading
from functools import partial

import numpy as np
import pytest
from acting import train_acting
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


def content_of(folder):
    return json.loads((folder / MANIFEST).read_text())["manifest"]


def write_manifest(folder, content):
    sha256 = hashlib.sha256(json.dumps(content).encode()).hexdigest()
    (folder / MANIFEST).write_text(json.dumps({"format": 1, "sha256": sha256, "manifest": content}))


@pytest.mark.parametrize("count", [50, long(None)], ids=["some", "all"])
def test_whatever_stands_in_a_manifest(folder, no_ranks, capsys, count):
    """A list of checkpoints says NO, or it is as it was; a run says what is wrong, before any rank starts."""
    checkpoint = folder / name_of(4)
    original, content = Manifest.read(Disk(), checkpoint), content_of(checkpoint)
    refused = accepted = 0
    cases = cases_of(content)
    for number, (path, what) in enumerate(random.Random(0).sample(cases, count or len(cases))):
        case, some = (path, what), changed(content, path, what)
        if repr(some) == repr(content):
            continue
        write_manifest(checkpoint, some)
        status = cli(["checkpoint", str(checkpoint)])
        shown = capsys.readouterr()
        assert "\x1b[31m" not in shown.out + shown.err, case
        if status == 0:
            accepted += 1
            found = Manifest.read(Disk(), checkpoint)
            same = (found.arrays, found.files, found.progress) == (original.arrays, original.files, original.progress)
            assert same or path[0] == "progress", case
        else:
            refused += 1
            assert status == 1 and "NO" in shown.out, (case, shown)
        if number % 5 < 2:
            status = command("train", "--resume", checkpoint, "--save", folder)
            shown = capsys.readouterr()
            assert status == 2 or (status is None and path[0] in (*FREE, "progress")), (case, shown)
            assert status is None or shown.err.startswith("minidist: "), case
            assert command("checkpoint", checkpoint, "--export", folder / "plain.safetensors") in (0, 1, 2), case
    assert refused > 5 * accepted > 0


def test_whatever_a_manifest_or_a_file_is(folder, capsys):
    texts = ["", "null", "[]", "7", '"x"', "{}", '{"format": 1}', "[" * 100_000, '{"a":' * 100_000, "\x00", "9" * 5000]
    checkpoint = folder / name_of(4)
    content = content_of(checkpoint)
    for text in texts:
        (checkpoint / MANIFEST).write_text(text)
        assert cli(["checkpoint", str(folder)]) == 1
        assert "is not a manifest, or was cut off" in capsys.readouterr().out.replace("\n", ""), text[:20]
    large = "of a model that is too large for this machine"
    for setting, size, says in (("layers", 10**4, "10000 layers"), ("width", 10**12, large), ("width", 2**62, large)):
        write_manifest(checkpoint, content | {"config": content["config"] | {setting: size}})
        assert cli(["checkpoint", str(folder)]) == 1
        assert says in capsys.readouterr().out.replace("\n", ""), (setting, size)
    file = checkpoint / "rank-0.safetensors"
    file.write_bytes(b"x" * 100)
    content["files"][file.name] = {"bytes": 100, "sha256": hashlib.sha256(b"x" * 100).hexdigest()}
    write_manifest(checkpoint, content)
    assert cli(["checkpoint", str(folder)]) == 1
    assert "is not a safetensors file" in capsys.readouterr().out.replace("\n", "")


def test_whatever_stands_in_a_file(folder, no_ranks, capsys):
    """The manifest goes with it."""
    checkpoint, plain = folder / name_of(4), folder / "plain.safetensors"
    file, content = checkpoint / "rank-0.safetensors", content_of(checkpoint)
    arrays = load_file(file)
    name = min(arrays)
    one, others = arrays[name], {other: array for other, array in arrays.items() if other != name}
    for what, some in {
        "nothing": {}, "an array is missing": others, "another name": others | {"strange": one},
        "one more": arrays | {"strange": np.zeros(3, np.float32)}, "shorter": arrays | {name: one[:-1].copy()},
        "longer": arrays | {name: np.zeros(one.size + 1, np.float32)},
        "another dtype": arrays | {name: one.astype(np.float16)}, "integers": arrays | {name: one.view(np.int32)},
        "two axes": arrays | {name: one.reshape(1, -1)}, "as it was": arrays,
    }.items():  # fmt: skip
        save_file(some, file)
        written = file.read_bytes()
        content["files"][file.name] = {"bytes": len(written), "sha256": hashlib.sha256(written).hexdigest()}
        write_manifest(checkpoint, content)
        if what == "as it was":
            assert is_whole(Disk(), checkpoint)
            continue
        assert command("checkpoint", folder) == 1, what
        assert "rank-0.safetensors: its manifest says" in capsys.readouterr().out.replace("\n", ""), what
        assert command("checkpoint", folder, "--export", plain) == 2, what
        assert command("train", "--resume", folder) == 2 and not plain.exists(), what


KINDS = {  # what a name may stand for; what it stood for is elsewhere
    "a link": lambda path, elsewhere: path.symlink_to(elsewhere / path.name),
    "a link to nothing": lambda path, elsewhere: path.symlink_to(elsewhere / "nothing"),
    "a pipe": lambda path, _: os.mkfifo(path),
    "a folder": lambda path, _: (path.mkdir(), (path / "mine").write_text("precious")),
    "nothing": lambda *_: None,
}
PLACES = (f"{name_of(4)}/{MANIFEST}", f"{name_of(4)}/rank-0.safetensors", name_of(4), name_of(2), LATEST)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", [PLACES[0], PLACES[2], long(PLACES[1]), long(PLACES[3]), PLACES[4]])
def test_whatever_a_name_stands_for(folder, tmp_path, no_ranks, capsys, place, kind):
    """Nobody waits for ever, no link is followed, and what is elsewhere stays as it was."""

    def files_elsewhere() -> dict:
        return {path: path.read_bytes() for path in elsewhere.rglob("*") if path.is_file()}

    path, elsewhere = folder / place, tmp_path / "elsewhere"
    elsewhere.mkdir()
    path.rename(elsewhere / path.name)
    KINDS[kind](path, elsewhere)
    before = files_elsewhere()
    assert command("checkpoint", folder) in (0, 1, 2)
    assert command("checkpoint", folder, "--export", tmp_path / "plain.safetensors") in (0, 1, 2)
    assert command("train", "--resume", folder, "--save", folder) in (2, None)
    assert command("train", "--resume", folder / name_of(4)) in (2, None)
    named = (place, kind) == (name_of(4), "a link")  # by whoever calls, who may follow a link
    assert is_whole(Disk(), folder / name_of(4)) == (named or not place.startswith(name_of(4)))
    assert files_elsewhere() == before
    capsys.readouterr()


def test_retention_does_not_follow_a_link(ranks, tmp_path):
    """A checkpoint is moved to an archive while the run goes on, and a link left in its place; into another, a folder
    is put, which stays: it costs no step.
    """
    folder, archive = tmp_path / "run", tmp_path / "archive"

    def move(step):
        if step == 0:
            (folder / name_of(1)).rename(archive)
            (folder / name_of(1)).symlink_to(archive)
        if step == 1:
            (folder / name_of(2) / "mine").mkdir()

    options = RunOptions(saving=Saving(str(folder), every=1, keep=1, mode="sync"))
    run(ranks(1), CONFIG, Layout(), options, rank_function=partial(train_acting, end=move))
    assert sorted(path.name for path in folder.iterdir()) == [LATEST, name_of(1), name_of(2), name_of(4)]
    assert is_whole(Disk(), archive) and Manifest.read(Disk(), archive).progress.step == 1
