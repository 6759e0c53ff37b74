"""The disk that loses power, and the library's Saver on it: a cut at every operation, and all that may be left."""

import hashlib
import itertools
import os
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from minidist.show.demos.failure.crashing_disk import CrashingDisk, PowerFailure
from minidist.train.checkpoint.commit import (
    LATEST,
    commit,
    committed,
    discard_newer,
    latest,
    make_root,
    name_of,
    step_of,
)
from minidist.train.checkpoint.disk import BadCheckpoint, Disk
from minidist.train.checkpoint.manifest import Manifest, Progress
from minidist.train.checkpoint.peers import PeerCopies, Peers, forget, generations_of, survey
from minidist.train.checkpoint.saver import Part, Saver, Saving

FOLDER, FILE = Path("folder"), Path("folder/file")


def disk_with(content: bytes | None) -> CrashingDisk:
    """A disk with a folder, and a file that is on it for good."""
    disk = CrashingDisk()
    do(disk, "make_folder folder", "flush_folder .")
    if content is not None:
        disk.write(FILE, content)
        do(disk, "flush folder/file", "flush_folder folder")
    return disk


def do(disk: CrashingDisk, *operations: str) -> None:
    """Each as "operation PATH ..."; what is written is ``new!``."""
    for operation in operations:
        name, *paths = operation.split()
        getattr(disk, name)(*map(Path, paths), *([b"new!"] if name == "write" else []))


# The disk

ANY = {b"", b"ne", b"new!"}  # of what was written, and not flushed
BELOW = ["make_folder a/b", "write a/b/c", "flush a/b/c", "flush_folder a/b", "flush_folder a"]
CASES = [  # what the disk has had for long, operations, a file, what may be left of it
    ("what was not flushed may be lost", None, ["write folder/file"], FILE, {None, *ANY}),
    ("all is", None, ["write folder/file", "flush folder/file", "flush_folder folder"], FILE, {b"new!"}),
    ("a name without its content", None, ["write folder/file", "flush_folder folder"], FILE, ANY),
    ("written again, it is no longer what it was", b"old", ["write folder/file"], FILE, {b"old", *ANY}),
    ("renamed, but not its content", b"old", ["write folder/x", "rename folder/x folder/file"], FILE, {b"old", *ANY}),
    ("a removed folder may come back", b"old", ["remove folder/file", "remove_folder folder"], FILE, {None, b"old"}),
    ("without a, nothing in it is found", None, BELOW, "a/b/c", {None, b"new!"}),
    ("a folder is a name too", None, [*BELOW, "flush_folder ."], "a/b/c", {b"new!"}),
]


def test_what_is_left_when_the_power_fails():
    for claim, content, operations, path, expected in CASES:
        disk, path = disk_with(content), Path(path)
        do(disk, *operations)
        left = {one.read(path) if path.name in one.names(path.parent) else None for _, one in disk.left()}
        assert left == expected, claim
    disk = disk_with(b"old")
    do(disk, "write folder/b", "remove folder/file")
    found = {" ".join(left.names(FOLDER)) for _, left in disk.left()}
    assert disk.names(FOLDER) == ["b"] and found == {"file", "b file", "", "b"}  # in any order
    first = next(iter(disk.left()))[1]
    assert first.names(FOLDER) == ["b"]  # what a killed process leaves


def test_the_power_stays_off():
    disk = CrashingDisk(power_fails_at=1)
    do(disk, "make_folder folder")
    for operation in ("write folder/file", "flush folder/file", "names folder", "read folder/file"):
        with pytest.raises(PowerFailure, match=r"in operation 1: \('write'"):
            do(disk, operation)
    assert next(iter(disk.left()))[1].read(FILE) == b"ne"  # a write may be cut off in its middle


@pytest.mark.skipif(not hasattr(os, "O_DIRECTORY"), reason="a system that opens no folder as a file")
def test_the_real_one_flushes_files_and_folders_and_keeps_none_open(tmp_path, monkeypatch):
    flushed, path = {}, tmp_path / "file"
    monkeypatch.setattr(os, "fsync", lambda place: flushed.update({place: os.fstat(place).st_ino}))
    for flush, one in ((Disk().flush, path), (Disk().flush_folder, tmp_path)):
        path.touch()
        flush(one)
        ((place, inode),) = flushed.items()
        assert inode == one.stat().st_ino
        with pytest.raises(OSError):
            os.fstat(place)
        flushed.clear()


# The Saver

ROOT, KEEP = Path("runs/one"), 1


class Numbers:
    """Snapshots of an array that is another one after each step."""

    step = 0

    @property
    def progress(self) -> Progress:
        return Progress(self.step, (1.0,) * self.step, self.step)

    def take(self) -> dict[str, Part]:
        return {"weight": Part(np.arange(6.0) + self.step, ((0, 6),), (2, 3))}


def saver_on(world, disk: CrashingDisk, first: int, promised: list[int], mode: str = "sync") -> Saver:
    """Return a saver that adds to ``promised`` each step whose checkpoint it says is saved."""
    return Saver(
        world, Saving(str(ROOT), 1, KEEP, mode), Numbers(), lambda it: Manifest("dp=1", {}, "", {}, it), first,
        lambda name, error: None if error else promised.append(step_of(name)), disk,
    )  # fmt: skip


def newest(disk: CrashingDisk) -> int:
    return step_of(latest(disk, ROOT) or name_of(0))


def save(world, disk: CrashingDisk, promised: list[int], count: int = KEEP + 1, mode: str = "sync") -> None:
    """Do what a run does: go on from the last checkpoint, or from the beginning, and save each step."""
    first = newest(disk)
    one = saver_on(world, disk, first, promised, mode)
    for step in range(first + 1, first + count + 1):
        one.snapshots.step = step
        one.end_step(step - 1, 1.0, last=step == first + count)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def is_wrong(disk: CrashingDisk, promised: list[int]) -> str:
    """Return what is not as promised on a disk that is left; "" if all is well."""
    there = committed(disk, ROOT)
    for name in there:
        try:
            files = Manifest.read(disk, ROOT / name).files
            wrong = [file for file, one in files.items() if sha256(disk.read(ROOT / name / file)) != one.sha256]
        except (BadCheckpoint, FileNotFoundError) as error:
            return str(error)
        if wrong:
            return f"{name}: {wrong} are others"
    for step in promised[-KEEP:]:
        if name_of(step) not in there and sum(step_of(name) > step for name in there) < KEEP:
            return f"step {step} was promised"
    if newest(disk) < max(promised, default=0):
        return "latest is older than what was promised"
    if LATEST in disk.names(ROOT) and disk.read(ROOT / LATEST).decode() not in there:
        return "latest points to no checkpoint"
    return ""


def contents(disk: CrashingDisk, path: Path = Path(".")) -> tuple:
    """All that a program finds in a folder."""
    paths = [path / name for name in disk.names(path)]
    return tuple((one, contents(disk, one) if disk.is_folder(one) else disk.read(one)) for one in paths)


def cut_at_every_moment(world, begin=lambda: CrashingDisk(), act=save) -> tuple[int, list, list[str]]:
    """Let the power fail in each operation of ``act``, on a disk of its own.

    Returns how many operations there are, all disks that may be left with what was promised, and what is wrong.
    """
    states, wrong = {}, []
    for moment in itertools.count():
        disk, promised = begin(), []
        disk.power_fails_at, disk.operations = moment, []
        with suppress(PowerFailure):
            act(world, disk, promised)
        for survival, left in disk.left():
            states[contents(left), tuple(promised)] = left, promised
            if problem := is_wrong(left, promised):
                wrong.append(f"operation {moment}, {disk.operations[-1:]}, {survival}: {problem}")
        if len(disk.operations) <= moment:
            return moment, list(states.values()), wrong


def test_the_last_checkpoint_is_whole_whenever_the_power_fails(ranks):
    """The next run goes on with what is left, whatever that is."""

    def main(world):
        count, states, wrong = cut_at_every_moment(world)
        for left, promised in states:
            save(world, left, promised := [*promised], 1)
            if (problem := is_wrong(left, promised)) or len(committed(left, ROOT)) > KEEP:
                wrong.append(f"after the next run: {problem or committed(left, ROOT)}")
        return count, len(states), wrong

    ((count, states, wrong),) = ranks(1).run(main)
    assert count > 30 and states > count and wrong == []


def test_training_waits_for_a_disk_that_cannot_keep_up(ranks):
    def main(world):
        disk, promised = CrashingDisk(), []
        disk.make_folder = lambda path: (time.sleep(0.1), CrashingDisk.make_folder(disk, path))
        save(world, disk, promised, 3, "async")
        return promised

    assert ranks(1).run(main) == [[1, 2, 3]]


def test_the_newest_that_a_check_found_right_stays_and_no_older_one(ranks):
    """Beside the newest one on a disk, and the newest two in memory."""

    def main(world):
        one, kept = saver_on(world, CrashingDisk(), 0, []), []
        peers = Peers(world, PeerCopies(1), one.snapshots, "dp=1")
        for step, verified in enumerate((0, 2, 2, 2, 5), 1):
            one.snapshots.step, one.verified, peers.verified = step, verified, verified
            for keeper in (one, peers):
                keeper.end_step(step - 1, 1.0, last=False)
            saved = [step_of(name) for name in committed(one.disk, ROOT)]
            kept.append((saved, [generation.progress.step for generation in generations_of(world)]))
        forget(world)
        peers.begin_run(SimpleNamespace(losses=[1.0]))  # a run that goes on: what it goes on from has lost copies
        return [*kept, [generation.progress.step for generation in generations_of(world)]]

    disk, memory = [[1], [2], [2, 3], [2, 4], [5]], [[1], [1, 2], [2, 3], [2, 3, 4], [4, 5]]
    assert ranks(1).run(main) == [[*zip(disk, memory, strict=True), [5]]]
    assert [survey(ranks(1), step, 60) for step in (4, 5, None)] == [(None, ""), (5, ""), (5, "")]
    ranks(1).run(forget)


@pytest.mark.long
def test_a_run_may_fail_while_it_removes_what_another_left(ranks):
    """The power fails twice."""

    def main(world):
        wrong = []
        for left, promised in cut_at_every_moment(world)[1]:
            copy_of = lambda left=left: next(iter(left.left()))[1]  # noqa: E731
            clean = lambda world, disk, _: saver_on(world, disk, newest(disk), [])  # noqa: E731
            for again, _ in cut_at_every_moment(world, copy_of, clean)[1]:
                wrong += filter(None, [is_wrong(again, promised)])
        return wrong

    assert ranks(1).run(main) == [[]]


def test_whoever_goes_back_is_never_left_at_what_it_passes_over():
    """Whenever the power fails: else the next run would go on from there."""

    def begin():
        disk = CrashingDisk()
        make_root(disk, ROOT)
        for step in (10, 20, 30):
            disk.make_folder(ROOT / name_of(step))
            manifest = Manifest("dp=1", {}, "", {}, Progress(step, (1.0,) * step, step))
            commit(disk, ROOT, name_of(step), manifest.encoded())
        return disk

    back = lambda _, disk, promised: discard_newer(disk, ROOT, 10)  # noqa: E731
    count, states, wrong = cut_at_every_moment(None, begin, back)
    assert {latest(left, ROOT) for left, _ in states} == {name_of(10), name_of(30)} and wrong == []
    last = states[-1][0]
    assert count == 10 and committed(last, ROOT) == [name_of(10)] and latest(last, ROOT) == name_of(10)
