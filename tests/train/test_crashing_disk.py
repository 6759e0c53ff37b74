"""The disk that loses power, and the library's protocol on it: a cut at every operation, and all that may be left."""

import itertools
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from minidist.train.checkpoint.commit import (
    LATEST,
    commit,
    committed,
    discard,
    discard_newer,
    latest,
    make_root,
    name_of,
    step_of,
    write_durably,
)
from minidist.train.checkpoint.crashing_disk import CONTENTS, CrashingDisk, PowerFailure
from minidist.train.checkpoint.manifest import Manifest, Progress
from minidist.train.checkpoint.saver import Saver, Saving
from minidist.train.checkpoint.snapshot import Part

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


def files_left(disk: CrashingDisk, path: str | Path = FILE) -> set[bytes | None]:
    """What may be left of a file; None for no file."""
    path = Path(path)
    return {left.read(path) if path.name in left.names(path.parent) else None for _, left in disk.left()}


# The disk

ANY = {b"", b"ne", b"new!"}  # of what was written, and not flushed
CASES = [  # what the disk has had for long, operations, a file, what may be left of it
    ("what was not flushed may be lost", None, ["write folder/file"], FILE, {None, *ANY}),
    ("its name is not on the disk", None, ["write folder/file", "flush folder/file"], FILE, {None, b"new!"}),
    ("all is", None, ["write folder/file", "flush folder/file", "flush_folder folder"], FILE, {b"new!"}),
    ("a name without its content", None, ["write folder/file", "flush_folder folder"], FILE, ANY),
    ("written again, it is no longer what it was", b"old", ["write folder/file"], FILE, {b"old", *ANY}),
    ("renamed, but not its content", b"old", ["write folder/x", "rename folder/x folder/file"], FILE, {b"old", *ANY}),
    ("from where", b"old", ["write folder/x", "rename folder/x folder/file"], "folder/x", {None, *ANY}),
    ("a removed folder may come back", b"old", ["remove folder/file", "remove_folder folder"], FILE, {None, b"old"}),
    (
        "without a, nothing in it is found", None,
        ["make_folder a/b", "write a/b/c", "flush a/b/c", "flush_folder a/b", "flush_folder a"],
        "a/b/c", {None, b"new!"},
    ),
    (
        "a folder is a name too", None,
        ["make_folder a/b", "write a/b/c", "flush a/b/c", "flush_folder a/b", "flush_folder a", "flush_folder ."],
        "a/b/c", {b"new!"},
    ),
]  # fmt: skip


def test_what_is_left_when_the_power_fails():
    for claim, content, operations, path, expected in CASES:
        disk = disk_with(content)
        with suppress(PowerFailure):
            do(disk, *operations)
        assert files_left(disk, path) == expected, claim
    disk = disk_with(b"old")
    do(disk, "write folder/x", "rename folder/x folder/file")
    assert disk.names(FOLDER) == ["file"] and disk.read(FILE) == b"new!"  # for whoever looks, at once


def test_names_that_survive():
    """(Of each folder the names, joined.)"""
    for operations, folders, expected in (
        (["write folder/b", "remove folder/file"], ["folder"], {("file",), ("b file",), ("",), ("b",)}),  # in any order
        (["make_folder a/b"], [".", "a"], {("folder", ""), ("a folder", ""), ("a folder", "b")}),
        (  # by half, perhaps
            ["rename folder/file elsewhere"], ["folder", "."],
            {("file", "folder"), ("file", "elsewhere folder"), ("", "folder"), ("", "elsewhere folder")},
        ),
    ):  # fmt: skip
        disk = disk_with(b"old")
        do(disk, *operations)
        found = {tuple(" ".join(left.names(Path(folder))) for folder in folders) for _, left in disk.left()}
        assert found == expected, operations


def test_the_first_of_what_is_left_is_what_a_killed_process_leaves_and_each_is_a_disk_of_its_own():
    disk = disk_with(b"old")
    do(disk, "write folder/file", "write folder/x")
    states = list(disk.left())
    survival, first = states[0]
    assert survival == "unflushed names: all; unflushed contents: whole" and len(states) >= len(CONTENTS)
    assert first.read(FILE) == b"new!" and first.names(FOLDER) == ["file", "x"]
    first.write(FILE, b"other")
    do(first, "remove folder/file")
    assert disk.read(FILE) == b"new!" and "file" in states[1][1].names(FOLDER)


def test_the_power_fails_in_the_operation_that_is_ordered_and_stays_off():
    disk = CrashingDisk(power_fails_at=1)
    do(disk, "make_folder folder")
    with pytest.raises(PowerFailure, match=r"in operation 1: \('write'"):
        do(disk, "write folder/file")
    for operation in ("flush folder/file", "write folder/file", "rename folder/file folder/x", "names folder",
                      "read folder/file"):  # fmt: skip
        with pytest.raises(PowerFailure):
            do(disk, operation)
    assert len(disk.operations) == 2
    assert next(iter(disk.left()))[1].read(FILE) == b"ne"  # a write may be cut off in its middle


def test_what_no_disk_does_and_absolute_paths():
    disk = disk_with(b"old")
    for operation in ("write nowhere/x", "flush folder/x", "read folder/x", "rename folder/x folder/file",
                      "flush_folder folder/file", "remove_folder folder"):  # fmt: skip
        with pytest.raises(OSError, match=r"folder|no file"):
            do(disk, operation)
    do(disk, "remove folder/x")  # not there: nothing to do
    assert disk.names(FOLDER / "x") == [] and disk.names(FOLDER) == ["file"]
    disk = CrashingDisk()
    do(disk, "make_folder /a/b", "write /a/b/c")
    assert disk.names(Path("/a")) == ["b"] and disk.read(Path("/a/b/c")) == b"new!" and disk.names(Path("/")) == ["a"]


# The library's protocol

ROOT, RANKS, STEPS, KEEP = Path("runs/one"), 3, (999_999, 1_000_000, 1_000_001), 2


def contents(step: int) -> dict[str, bytes]:
    """The files of a checkpoint."""
    return {f"rank-{rank}": f"what rank {rank} has after step {step}".encode() for rank in range(RANKS)}


def manifest_of(step: int) -> bytes:
    return f"the manifest of step {step}, which names {RANKS} files".encode()


def clean(disk: CrashingDisk) -> None:
    """What a run begins with."""
    make_root(disk, ROOT)
    for name in set(disk.names(ROOT)) - {LATEST, *committed(disk, ROOT)}:
        if name.startswith("step-"):
            discard(disk, ROOT, name)


def save(disk: CrashingDisk, step: int, end=lambda disk, name, step: commit(disk, ROOT, name, manifest_of(step))):
    name = name_of(step)
    disk.make_folder(ROOT / name)
    for file, content in contents(step).items():
        write_durably(disk, ROOT / name / file, content)
    end(disk, name, step)


def protocol(disk: CrashingDisk, promised: list[int], steps=STEPS) -> None:
    """Three saves; ``promised`` receives each step of which ``commit`` has returned."""
    clean(disk)
    for step in steps:
        save(disk, step)
        promised.append(step)
        for name in committed(disk, ROOT)[:-KEEP]:
            discard(disk, ROOT, name)


def check(disk: CrashingDisk, promised: list[int], where: str) -> None:
    """All that is promised of what is left."""
    there = committed(disk, ROOT)
    for name in there:
        step = step_of(name)
        assert disk.read(ROOT / name / "manifest.json") == manifest_of(step), where
        assert {file: disk.read(ROOT / name / file) for file in contents(step)} == contents(step), where
    check_promised(there, promised, where)
    if promised:
        assert step_of(latest(disk, ROOT)) >= promised[-1], where
    else:
        assert latest(disk, ROOT) in (*there, None), where
    if LATEST in disk.names(ROOT):
        assert disk.read(ROOT / LATEST).decode() in there, f"{where}: latest points to no checkpoint"


def check_promised(there: list[str], promised: list[int], where: str) -> None:
    """A checkpoint that was promised is there until so many newer ones are that it is no longer kept."""
    for step in promised[-KEEP:]:
        newer = [name for name in there if step_of(name) > step]
        assert name_of(step) in there or len(newer) >= KEEP, f"{where}: step {step} was promised"


def operations_of(function) -> int:
    disk = CrashingDisk()
    function(disk)
    return len(disk.operations)


def test_the_last_checkpoint_is_whole_whenever_the_power_fails():
    """And the next run goes on with what is left, whatever that is."""
    count = operations_of(lambda disk: protocol(disk, []))
    assert count > 60
    states = 0
    for moment in range(count + 1):
        disk, promised = CrashingDisk(moment), []
        with suppress(PowerFailure):
            protocol(disk, promised)
        for survival, left in disk.left():
            where = f"operation {moment}, {disk.operations[-1][:2]}, {survival}"
            check(left, promised, where)
            again = list(promised)
            protocol(left, again, STEPS[-1:] if STEPS[-1] not in promised else (STEPS[-1] + 1,))
            check(left, again, f"{where}, and then the next run")
            assert len(committed(left, ROOT)) <= KEEP
            states += 1
    assert states > 4 * count


@pytest.mark.long
def test_a_run_may_fail_while_it_removes_what_another_left():
    """The power fails twice."""
    count = operations_of(lambda disk: protocol(disk, []))
    for moment in range(count):
        disk, promised = CrashingDisk(moment), []
        with suppress(PowerFailure):
            protocol(disk, promised)
        for survival, left in disk.left():
            second = CrashingDisk(0)
            while True:
                second.top, second.operations = next(iter(left.left()))[1].top, []
                try:
                    clean(second)
                    break
                except PowerFailure:
                    for survival_again, last in second.left():
                        check(last, promised, f"{moment}, {survival}; {second.power_fails_at}, {survival_again}")
                second.power_fails_at += 1


BROKEN = {
    "the manifest is not flushed": lambda disk, name, step: (
        disk.write(ROOT / name / "manifest.json", manifest_of(step)),
        write_durably(disk, ROOT / LATEST, name.encode()),
    ),
    "latest comes first": lambda disk, name, step: (
        write_durably(disk, ROOT / LATEST, name.encode()),
        write_durably(disk, ROOT / name / "manifest.json", manifest_of(step)),
    ),
    "the folder has no name": lambda disk, name, step: (
        write_durably(disk, ROOT / name / "manifest.json", manifest_of(step)),
        disk.write(ROOT / ".new-latest", name.encode()),
        do(disk, "flush runs/one/.new-latest", "rename runs/one/.new-latest runs/one/latest"),
    ),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_protocol_is_found(broken):
    def save_badly(disk, promised):
        clean(disk)
        for step in STEPS:
            save(disk, step, BROKEN[broken])
            promised.append(step)

    with pytest.raises(AssertionError):
        for moment in range(operations_of(lambda disk: save_badly(disk, [])) + 1):
            disk, promised = CrashingDisk(moment), []
            with suppress(PowerFailure):
                save_badly(disk, promised)
            for survival, left in disk.left():
                check(left, promised, survival)


# The Saver


class Numbers:
    """Snapshots of an array that is another one after each step."""

    def __init__(self) -> None:
        self.step = 0

    def take(self) -> dict[str, Part]:
        self.step += 1
        return {"weight": Part(np.arange(6.0) + self.step, ((0, 6),), (2, 3))}


def save_with_power_failing(world, moment: int | None) -> tuple[int, list[str]]:
    """A Saver's run of four steps: how many operations there were, and what is wrong with what is left."""
    disk, promised = CrashingDisk(moment), []
    manifest = lambda progress: Manifest("dp=1", {}, "", {}, progress)  # noqa: E731
    saved = lambda name, error: promised.append(step_of(name)) if not error else None  # noqa: E731
    with suppress(PowerFailure):
        saver = Saver(world, Saving(str(ROOT), 1, KEEP, "sync"), Numbers(), manifest, 0, saved, disk)
        for step in range(1, 5):
            saver.after_step(Progress(step, (1.0,) * step, step), last=step == 4)
    wrong = []
    for survival, left in disk.left():
        there = committed(left, ROOT)
        try:
            check_promised(there, promised, "")
            assert latest(left, ROOT) in there[-2:] or not there
            for name in there:
                found = Manifest.read(left, ROOT / name)
                for file, entry in found.files.items():
                    assert len(left.read(ROOT / name / file)) == entry.bytes, f"{name}: {file}"
        except (AssertionError, ValueError) as error:
            wrong.append(f"operation {moment}, {survival}: {error}")
    return len(disk.operations), wrong


def with_steps(*steps: int) -> CrashingDisk:
    """A disk with checkpoints of these steps."""
    disk = CrashingDisk()
    clean(disk)
    for step in steps:
        save(disk, step)
    return disk


def test_whoever_goes_back_is_never_left_at_what_it_passes_over():
    """Whenever the power fails: else the next run would go on from there."""
    begun = len(with_steps(10, 20, 30).operations)
    for moment in itertools.count(begun):
        disk = with_steps(10, 20, 30)
        disk.power_fails_at = moment
        with suppress(PowerFailure):
            discard_newer(disk, ROOT, 10)
        assert {latest(left, ROOT) for _, left in disk.left()} <= {name_of(10), name_of(30)}
        if len(disk.operations) <= moment:
            break
    assert moment - begun > 10 and committed(disk, ROOT) == [name_of(10)] and latest(disk, ROOT) == name_of(10)


def save_after_going_back(world) -> tuple[list[str], str | None]:
    """A run went back from step 30 to step 10, and saves step 15: what is there then, and what latest says."""
    disk = with_steps(10, 11, 30)
    saver = Saver(
        world, Saving(str(ROOT), 5, KEEP, "sync"), Numbers(), lambda p: Manifest("dp=1", {}, "", {}, p), 10, disk=disk
    )
    saver.after_step(Progress(15, (1.0,) * 15, 15), last=False)
    return committed(disk, ROOT), latest(disk, ROOT)


def test_a_run_that_went_back_keeps_what_it_saves_and_nothing_newer(ranks):
    there, newest = ranks(1).run(save_after_going_back)[0]
    assert there == [name_of(10), name_of(15)] and newest == name_of(15)


def test_the_savers_last_checkpoint_is_whole_whenever_the_power_fails(ranks):
    def save_at_every_moment(world):
        count, wrong = save_with_power_failing(world, None)
        return count, wrong + [one for moment in range(count) for one in save_with_power_failing(world, moment)[1]]

    ((count, wrong),) = ranks(1).run(save_at_every_moment)
    assert count > 50 and wrong == []
