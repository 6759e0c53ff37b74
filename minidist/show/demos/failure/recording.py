"""The disk operations of a checkpoint being saved, recorded in a real run."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from unittest.mock import patch

from minidist.comm.group import ProcessGroup
from minidist.comm.runtime.sweep import scratch_folder
from minidist.show.demos.shared.runs import WarmRanks
from minidist.train import trainer
from minidist.train.checkpoint.commit import LATEST, MANIFEST, name_of
from minidist.train.checkpoint.disk import Disk
from minidist.train.checkpoint.saver import Saver, Saving
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RankResult, Run, RunOptions
from minidist.train.trainer import run, train_rank

RANKS, FOLDER, OLD = "ranks", "folder", "old"  # what an operation is about, besides MANIFEST and LATEST


@dataclass(frozen=True, slots=True)
class Operation:
    """Call of a method of ``Disk``.

    Args:
        time: time at which the call began, in ns.
        method: name of the method.
        arguments: paths; for "write" a path and the content.
    """

    time: int
    method: str
    arguments: tuple

    @property
    def path(self) -> Path:
        return self.arguments[-1] if self.method == "rename" else self.arguments[0]


class RecordingDisk(Disk):
    """The file system of this machine, with a list of the operations that changed it, in order."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []

    def _do(self, method: str, *arguments) -> None:
        self.operations.append(Operation(time.perf_counter_ns(), method, arguments))
        getattr(super(), method)(*arguments)

    def make_folder(self, path: Path) -> None:
        self._do("make_folder", path)

    def write(self, path: Path, content: bytes) -> None:
        self._do("write", path, content)

    def flush(self, path: Path) -> None:
        self._do("flush", path)

    def flush_folder(self, path: Path) -> None:
        self._do("flush_folder", path)

    def rename(self, old: Path, new: Path) -> None:
        self._do("rename", old, new)

    def remove(self, path: Path) -> None:
        self._do("remove", path)

    def remove_folder(self, path: Path) -> None:
        self._do("remove_folder", path)


def train_recorded(
    world: ProcessGroup, config: TrainConfig, layout: Layout, options: RunOptions, saver: type[Saver] = Saver
) -> RankResult:
    """Run ``train_rank`` with checkpoints saved by ``saver``; the result's log is the rank's disk operations."""
    disk = RecordingDisk()
    with patch.object(trainer, "Saver", partial(saver, disk=disk)):
        result = train_rank(world, config, layout, options)
    return replace(result, log=disk.operations)


@dataclass(frozen=True)
class Group:
    """Operations that are shown as one.

    Args:
        method: method that they call, besides making or removing a folder.
        about: what they are about: RANKS, MANIFEST, LATEST, FOLDER (the folder with all checkpoints) or OLD.
        operations: the operations in their order.
    """

    method: str
    about: str
    operations: Sequence[Operation]


@dataclass(frozen=True)
class Recording:
    """Recording of a save.

    Args:
        root: the folder with all checkpoints.
        old, new: steps of the checkpoint that was there, and of the one that is saved.
        before: operations before the save.
        groups: operations of the save, in groups.
        fingerprint: fingerprint of the run.
    """

    root: Path
    old: int
    new: int
    before: Sequence[Operation]
    groups: Sequence[Group]
    fingerprint: str

    def contents(self, step: int) -> dict[str, bytes]:
        """Return what the files of a checkpoint have to be: name -> content."""
        folder = self.root / name_of(step)
        operations = [*self.before, *(one for group in self.groups for one in group.operations)]
        written = {one.path: one.arguments[1] for one in operations if one.method == "write"}
        final = {one.arguments[1]: written[one.arguments[0]] for one in operations if one.method == "rename"}
        return {path.name: content for path, content in final.items() if path.parent == folder}


def record(
    warm: WarmRanks, config: TrainConfig, layout: Layout, every: int, rank_function: Callable = train_recorded
) -> tuple[Run, Recording]:
    """Train up to the second checkpoint, which replaces the first; return the run, and how that one was saved."""
    with scratch_folder() as folder:
        options = RunOptions(saving=Saving(folder, every, keep=1), step_digests=True)
        with warm(layout.world_size) as cluster:
            found = run(cluster, config, layout, options, rank_function=rank_function)
    logs = [rank.log for rank in found.ranks]
    return found, recording_of(logs, Path(folder), every, 2 * every, found.fingerprint)


def recording_of(logs: Sequence[Sequence[Operation]], root: Path, old: int, new: int, fingerprint: str) -> Recording:
    """Merge what the ranks recorded into one sequence.

    Ranks work at the same time, each in its own order, and rank 0 commits between what they do before and after. The
    sequence keeps them in step, which is one of the orders that may happen.

    Raises:
        RuntimeError: if another rank used the disk while rank 0 committed.
    """
    folder = root / name_of(new)
    begins = [next(i for i, one in enumerate(log) if folder in (one.path, one.path.parent)) for log in logs]
    before = sorted((one for log, begin in zip(logs, begins, strict=True) for one in log[:begin]), key=_time)
    saves = [log[begin:] for log, begin in zip(logs, begins, strict=True)]

    first = next(i for i, one in enumerate(saves[0]) if one.path.name.endswith(MANIFEST))
    last = max(i for i, one in enumerate(saves[0]) if one.path.parent != folder and one.path != folder)
    start, end = saves[0][first].time, saves[0][last].time
    if any(start < one.time < end for log in saves[1:] for one in log):
        raise RuntimeError("a rank used the disk while rank 0 committed: this is a bug in minidist")
    early = [[one for one in log if one.time < start] for log in saves]
    late = [[one for one in log if one.time > end] for log in saves]
    committing = saves[0][first : last + 1]
    groups = [*_in_step(early), *_of_commit(committing, root, new), *_in_step(late)]
    return Recording(root, old, new, before, groups, fingerprint)


def _time(one: Operation) -> int:
    return one.time


def _in_step(logs: Sequence[Sequence[Operation]]) -> list[Group]:
    """Group every rank's first operation, then every rank's second, and so on; making the folder joins what follows."""
    found, waiting = [], []
    for operations in zip_longest(*logs):
        done = [one for one in operations if one is not None]
        if done[0].method == "make_folder":
            waiting += done
        else:
            found.append(Group(done[0].method, RANKS, [*waiting, *done]))
            waiting = []
    return found


def _of_commit(operations: Sequence[Operation], root: Path, new: int) -> list[Group]:
    """Return a group for each operation, but one for all removals after the old checkpoint's folder is flushed."""
    found: list[Group] = []
    for one in operations:
        inside = [part for part in one.path.relative_to(root).parts if part.startswith("step-")]
        if inside and inside[0] != name_of(new):
            about = OLD
        elif one.path == root:
            about = LATEST if found[-1].about == LATEST else FOLDER
        else:
            about = LATEST if one.path.name.endswith(LATEST) else MANIFEST
        flushed = any(group.about == OLD and group.method == "flush_folder" for group in found)
        if about == OLD and flushed and found[-1].method == "remove":
            found[-1] = Group("remove", OLD, [*found[-1].operations, one])
        else:
            found.append(Group(one.method, about, [one]))
    return found
