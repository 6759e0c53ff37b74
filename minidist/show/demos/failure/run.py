"""A training run that loses a rank, and goes on from its last checkpoint in another layout, with one rank less."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from minidist.comm.failures import RankFailed
from minidist.comm.runtime.launch import Cluster
from minidist.comm.runtime.sweep import scratch_folder
from minidist.show.demos.shared.runs import WarmRanks
from minidist.train.checkpoint.commit import step_of
from minidist.train.checkpoint.disk import Disk
from minidist.train.checkpoint.manifest import Manifest
from minidist.train.checkpoint.restore import check_files, find_checkpoint
from minidist.train.checkpoint.saver import Saving
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.resilience.faults import Fault
from minidist.train.result import Run, RunOptions
from minidist.train.trainer import run

HEAD = 8  # width of an attention head


@dataclass(frozen=True)
class Part:
    """Part of a run, in one layout: from its start or a checkpoint to its end.

    Args:
        layout: layout of the ranks.
        first: number of steps taken before this part.
        losses: losses of the steps that each rank ended in this part, ``[rank][step - first]``.
        saved: step count of each committed checkpoint.
    """

    layout: Layout
    first: int
    losses: Sequence[Sequence[float]]
    saved: Sequence[int]

    @property
    def ended(self) -> int:
        """Number of steps taken by the rank that has taken the most, from the start of the run."""
        return max(map(self.ended_by, range(len(self.losses))))

    def ended_by(self, rank: int) -> int:
        """Return the number of steps taken by a rank, from the start of the run."""
        return self.first + len(self.losses[rank])


@dataclass(frozen=True)
class Interrupted:
    """A run that was killed and went on.

    Args:
        before, after: the parts before and after.
        fault: the injected fault.
        error: the error that ended the first part.
        files, nbytes: number of files and bytes of the checkpoint that the second part read.
        resumed: the second part.
        reference: fingerprint of the run that was never interrupted, in one process.
    """

    before: Part
    after: Part
    fault: Fault
    error: RankFailed
    files: int
    nbytes: int
    resumed: Run
    reference: str

    @property
    def steps(self) -> int:
        return self.after.ended

    @property
    def fingerprint(self) -> str:
        return self.resumed.fingerprint

    @property
    def bytes_read(self) -> list[int]:
        """Bytes of the checkpoint that each rank of the second part read."""
        return [rank.bytes_read for rank in self.resumed.ranks]

    @property
    def lost(self) -> range:
        """Steps, counted from 0, that had been taken but were in no checkpoint."""
        return range(self.after.first, self.before.ended)


class Watch:
    """Collector of what the ranks of a run report: pass it to ``trainer.run`` as ``on_event``."""

    def __init__(self, ranks: int) -> None:
        self.losses: list[list[float]] = [[] for _ in range(ranks)]
        self.saved: list[int] = []

    def __call__(self, rank: int, event: tuple) -> None:
        if event[0] == "step":
            self.losses[rank].append(event[2])
        elif event[0] == "saved" and not event[2]:
            self.saved.append(step_of(event[1]))


def config_of(ranks: int, every: int, seed: int) -> TrainConfig:
    """Return the config of a model that suits ``ranks`` data-parallel and ``ranks - 1`` tensor-parallel ranks."""
    heads = max(2, ranks - 1)
    return TrainConfig(
        layers=1,
        heads=heads,
        width=HEAD * heads,
        context=16,
        global_batch=2 * ranks,
        micro_batch=1,
        steps=3 * every,
        lr=1e-2,
        warmup=2,
        seed=seed,
    )


def layouts_of(ranks: int) -> tuple[Layout, Layout]:
    """Return the layouts before and after the rank dies."""
    return Layout(dp=ranks), Layout(tp=ranks - 1)


def interrupted(
    warm: WarmRanks, config: TrainConfig, ranks: int, every: int, bug: Callable | None = None
) -> list[Interrupted]:
    """Train; kill the last rank just before a checkpoint is due; and go on with the others.

    Args:
        bug: a rank function that resumes from the same checkpoint once more, with a bug.

    Returns:
        The right run and, if there is a bug, the wrong one.

    Raises:
        RuntimeError: if no rank dies, or if a step that is taken again has another loss.
    """
    first, second = layouts_of(ranks)
    fault = Fault(rank=ranks - 1, step=2 * every - 1, kind="kill")
    with scratch_folder() as folder:
        saving = Saving(folder, every, mode="sync")  # so that the checkpoint before the fault is complete
        watch = Watch(ranks)
        options = RunOptions(progress=True, saving=saving, faults=(fault,))
        error = _killed(config, first, options, watch)
        before = Part(first, 0, watch.losses, watch.saved)

        checkpoint = find_checkpoint(folder)
        manifest = Manifest.read(Disk(), checkpoint)
        check_files(checkpoint, manifest)
        found = []
        for place, function in enumerate([None, bug] if bug else [None]):
            copy = Path(folder, f"again-{place}")  # later checkpoints do not mix with the earlier ones
            shutil.copytree(checkpoint, copy / checkpoint.name)
            watch = Watch(second.world_size)
            saving = Saving(str(copy), every, mode="sync")
            options = RunOptions(progress=True, saving=saving, resume=str(copy / checkpoint.name), trace=True)
            with warm(second.world_size) as cluster:
                resumed = run(cluster, config, second, options, on_event=watch, rank_function=function)
            after = Part(second, manifest.progress.step, watch.losses, watch.saved)
            nbytes = sum(file.bytes for file in manifest.files.values())
            reference = warm.reference(config).fingerprint
            found.append(Interrupted(before, after, fault, error, len(manifest.files), nbytes, resumed, reference))
    _check_same_losses(found[0])
    return found


def _killed(config: TrainConfig, layout: Layout, options: RunOptions, watch: Watch) -> RankFailed:
    """Run until a rank dies, and return the error. The ranks are not the warm ones: one of them dies."""
    with Cluster(layout.world_size) as cluster:
        try:
            run(cluster, config, layout, options, on_event=watch)
        except RankFailed as error:
            return error
    raise RuntimeError(f"the fault {options.faults[0]} did not end the run: this is a bug in minidist")


def _check_same_losses(found: Interrupted) -> None:
    for step in found.lost:
        once, again = found.before.losses[found.fault.rank][step], found.after.losses[0][step - found.after.first]
        if once != again:
            raise RuntimeError(f"step {step} has loss {once!r}, and {again!r} when taken again: a bug in minidist")
