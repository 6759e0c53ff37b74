"""Saving a checkpoint while training goes on.

At the end of a step each rank copies what it saves: the *snapshot*, the only part that training waits for. It has what
the optimizer works with: float32 weights (the master weights of a 16-bit precision), and the two moments of each. A
thread turns it into a file, hashes it and brings it to the disk, during the next steps. When all ranks' files are
there, rank 0 commits.

Rank 0 must not commit before all have ended, and no rank may stop to wait. So after each step with a save in flight,
an all-reduce of one number says whether any rank is still writing; after the first step in which none is, rank 0
commits (Megatron-LM's ``maybe_finalize_async_save``). If a save is still in flight when the next is due, training
waits: the disk cannot keep up.

A save that fails, on a full disk say, costs that checkpoint and nothing else: all ranks learn of it, its files are
removed, and training goes on with the last checkpoint intact.

CheckFreq (Mohan et al., FAST 2021) has the two phases, snapshot and persist; DeepSpeed, Megatron-LM and PyTorch
(``dcp.async_save``) have them too. A real snapshot goes to pinned host memory while the GPU computes.
"""

import hashlib
import threading
import time
from collections import ChainMap
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from safetensors.numpy import save as encode_safetensors

from minidist import backend
from minidist.comm.group import ProcessGroup
from minidist.comm.point_to_point import barrier
from minidist.overrides import overridable
from minidist.parallel.tools.messages import all_gather_object, first_text, global_max
from minidist.parallel.tools.regions import Region, Run
from minidist.train.checkpoint.commit import (
    commit,
    committed,
    discard,
    discard_cut_off,
    discard_newer,
    make_root,
    name_of,
    saves,
    step_of,
    write_durably,
)
from minidist.train.checkpoint.disk import Disk
from minidist.train.checkpoint.manifest import ArrayEntry, FileEntry, Manifest, Progress, Slice, joined
from minidist.train.hooks import StepHook
from minidist.train.share import Share

MODES = ("async", "sync")
WRITING = "writing"  # in world.kept: the thread that writes


Held = dict[str, tuple[Run, ...]]  # parameter name -> the runs of it that a rank has, and counts as its own


@dataclass(frozen=True)
class Part:
    """A part of a full array that this rank saves."""

    values: np.ndarray  # flat, in host memory; nobody else changes it
    runs: tuple[Run, ...]  # where they are in the full array
    shape: tuple[int, ...]  # of the full array


def described(parts: dict[str, Part], file: str) -> dict[str, ArrayEntry]:
    """Return the arrays that parts belong to, each with the one slice that ``file`` has of it."""
    return {
        name: ArrayEntry(part.shape, str(part.values.dtype), (Slice(file, part.runs),))  # pyright: ignore[reportArgumentType]  one of the two
        for name, part in parts.items()
    }


@overridable
def writers(held: list[Held]) -> list[set[str]]:
    """Return the names of the parameters that each rank saves: of ranks that hold the same part, one writes it.

    Args:
        held: each rank's parts.

    Returns:
        A set of names for each rank. All ranks get the same sets, because they depend only on ``held``.
    """
    alike: dict[tuple, list[int]] = {}  # a part -> the ranks that have it
    for rank, parts in enumerate(held):
        for name, runs in parts.items():
            alike.setdefault((name, tuple(map(tuple, runs))), []).append(rank)
    load, chosen = [0] * len(held), [set() for _ in held]
    for (name, runs), ranks in alike.items():
        rank = min(ranks, key=lambda rank: (load[rank], rank))
        chosen[rank].add(name)
        load[rank] += sum(stop - start for start, stop in runs)
    return chosen


class Snapshots:
    """Source of the snapshots of a rank's share of a run. All ranks construct it together."""

    def __init__(self, share: Share) -> None:
        self.share, model, world = share, share.model, share.world
        self.regions: dict[str, Region] = model.regions()
        mine = {p.name: self.regions[p.name].runs for p in model.trained if model.owns(p)}
        names = writers(all_gather_object(mine, world))[world.rank]
        self.saved = [parameter for parameter in model.trained if parameter.name in names]

    @property
    def progress(self) -> Progress:
        """The run's progress so far."""
        return Progress.of(self.share.losses, self.share.optimizer, self.share.scaler)

    def take(self) -> dict[str, Part]:
        """Return a copy of what this rank saves, by the names of the fingerprint."""
        parts = {}
        for parameter in self.saved:
            name = parameter.name
            runs, shape = self.regions[name].runs, self.share.model.shapes[name]
            parts[name] = Part(_copy(parameter.data), runs, shape)
            for kind, arrays in self.share.optimizer.kinds.items():
                parts[f"{kind}{name}"] = Part(_copy(arrays[name]), runs, shape)
        # all ranks have the extra state: rank 0 saves it
        for name, array in self.share.gpt.extra_state().items() if self.share.world.rank == 0 else ():
            parts[name] = Part(_copy(array), Region.full(array.shape).runs, array.shape)
        return parts


def _copy(array) -> np.ndarray:
    return backend.to_host(array).reshape(-1).copy()


@dataclass(frozen=True)
class Saving:
    """Options: where, when and how a run saves checkpoints.

    Raises:
        ValueError: for ``every`` below 1, ``keep`` below 0, or an unknown ``mode``.
    """

    folder: str  # of the checkpoints; made if it does not exist
    every: int = 10  # steps between two checkpoints. The last step is saved too
    keep: int = 2  # number of checkpoints to keep, the newest ones; 0 for all
    mode: str = "async"  # write while training goes on; "sync" pauses it until the checkpoint is committed

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"--save-every must be at least 1 step, got {self.every}")
        if self.keep < 0:
            raise ValueError(f"--keep must be 0 (all checkpoints) or more, got {self.keep}")
        if self.mode not in MODES:
            raise ValueError(f"--save-mode must be one of {', '.join(MODES)}, got {self.mode}")


class Write:
    """One rank's save in flight: a thread writes its file, and the files ``beside`` it, to the disk."""

    def __init__(self, disk: Disk, path: Path, parts: dict[str, Part], beside: dict[str, bytes]) -> None:
        self.disk, self.path, self.parts, self.beside = disk, path, parts, beside
        self.entries: dict[str, FileEntry] = {}  # of the files that are on the disk
        self.error = ""  # why the save failed; "" if it has not
        self.thread = threading.Thread(target=self._run, daemon=True, name=f"save {path.name}")
        self.thread.start()

    def _run(self) -> None:
        try:
            tensors = encode_safetensors({name: part.values for name, part in self.parts.items()})
            self.disk.make_folder(self.path.parent)
            for name, content in {self.path.name: tensors, **self.beside}.items():
                write_durably(self.disk, self.path.with_name(name), content)
                self.entries[name] = FileEntry(len(content), hashlib.sha256(content).hexdigest())
        except Exception as error:  # of the disk: full, read-only, gone
            self.error = f"{self.path}: {getattr(error, 'strerror', None) or error}"


class Saver(StepHook):
    """Hook that saves a run's checkpoints on one rank. All ranks call it together, at the end of every step.

    Args:
        world: all ranks.
        saving: the options: where, when and how.
        snapshots: ``Snapshots`` of this rank's share of the run.
        manifest: function from progress to this run's manifest, without arrays and files.
        first: number of steps that the run goes on from. Newer checkpoints in the folder are removed.
        on_saved: called on rank 0 with the name of each checkpoint, and "" once it is committed or why it failed.
        beside: content of files that rank 0 adds to each checkpoint, by their names.

    Attributes:
        verified: number of steps after which the numbers were last checked; None if nothing checks them. The newest
            checkpoint up to there is kept too.
    """

    def __init__(
        self, world: ProcessGroup, saving: Saving, snapshots: Snapshots, manifest: Callable[[Progress], Manifest],
        first: int, on_saved: Callable[[str, str], None], disk: Disk | None = None,
        beside: dict[str, bytes] | None = None,
    ) -> None:  # fmt: skip
        self.world, self.saving, self.snapshots, self.manifest = world, saving, snapshots, manifest
        self.on_saved, self.disk = on_saved, disk or Disk()
        self.beside = beside or {} if world.rank == 0 else {}
        self.root = Path(saving.folder)
        self.write: Write | None = None
        self.pauses: list[float] = []  # seconds that each save kept this rank from training
        self.errors: list[str] = []  # why saves failed
        self.verified: int | None = None
        if WRITING in world.kept:  # of a run that this rank outlived: it may still write in this folder
            world.kept.pop(WRITING).join()
        barrier(world)
        if world.rank == 0:
            with suppress(OSError):  # a disk that is full or gone costs checkpoints: each save reports it
                make_root(self.disk, self.root)
            discard_newer(self.disk, self.root, first)
            discard_cut_off(self.disk, self.root)
        barrier(world)  # before anybody writes

    def end_step(self, step: int, loss: float, last: bool) -> None:
        """Begin a save if one is due, and end one in flight if all ranks' files are there."""
        began, progress = time.perf_counter(), self.snapshots.progress
        if self.write is not None:
            self.end_save(self.write, wait=False)
        if progress.step % self.saving.every and not last:
            return
        if self.write is not None:
            self.end_save(self.write, wait=True)
        path = self.root / name_of(progress.step) / f"rank-{self.world.rank}.safetensors"
        self.progress, self.write = progress, Write(self.disk, path, self.snapshots.take(), self.beside)
        self.world.kept[WRITING] = self.write.thread
        if self.saving.mode == "sync" or last:
            self.end_save(self.write, wait=True)
        self.pauses.append(time.perf_counter() - began)

    def end_run(self) -> dict:
        return {"pauses": self.pauses, "save_errors": self.errors}

    def end_save(self, write: Write, wait: bool) -> None:
        """If the save in flight has ended on all ranks, commit it, or give it up if it failed. ``wait``: let it end."""
        if wait:
            write.thread.join()
        if global_max(write.thread.is_alive(), self.world):
            return
        self.write = None
        told = (write.error, write.entries, described(write.parts, write.path.name))
        errors, files, arrays = zip(*all_gather_object(told, self.world), strict=True)
        error, name = next(filter(None, errors), ""), write.path.parent.name
        if self.world.rank == 0:
            error = error or self.commit(name, joined(arrays), dict(ChainMap(*files)))
            if error:
                self.give_up(name)
            else:
                self.remove_old()
            self.on_saved(name, error)
        error = first_text(error, self.world)
        if error:
            self.errors.append(error)

    def commit(self, name: str, arrays: dict[str, ArrayEntry], files: dict[str, FileEntry]) -> str:
        """Commit the ranks' files as a checkpoint. Return what went wrong; "" if nothing did."""
        manifest = replace(self.manifest(self.progress), checked=self.verified, arrays=arrays, files=files)
        try:
            commit(self.disk, self.root, name, manifest.encoded())
        except OSError as error:
            return f"{self.root / name}: {error.strerror}"
        return ""

    def remove_old(self) -> None:
        """Remove all but the newest checkpoints, and the newest one that a check has found right."""
        there = committed(self.disk, self.root)
        right = [name for name in there if self.verified is not None and step_of(name) <= self.verified][-1:]
        old = there[: -self.saving.keep] if self.saving.keep else []
        for name in (name for name in old if name not in right):
            with suppress(OSError):  # an old checkpoint that stays does no harm
                discard(self.disk, self.root, name)

    def give_up(self, name: str) -> None:
        """Remove the files of a failed save, which may be what fills the disk."""
        with suppress(OSError):  # it is the disk that failed; without a manifest nobody reads it
            if name in saves(self.disk, self.root):
                discard(self.disk, self.root, name)
