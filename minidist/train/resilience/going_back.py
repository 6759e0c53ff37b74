"""Where an interrupted run goes on: from the newest whole state, on the disk or in the memory of surviving ranks."""

from dataclasses import replace
from pathlib import Path

from minidist.comm.runtime.launch import Cluster
from minidist.train.checkpoint.commit import MANIFEST, committed, discard_newer, step_of
from minidist.train.checkpoint.disk import Disk
from minidist.train.checkpoint.manifest import Manifest
from minidist.train.checkpoint.recovery import hand_over, survey
from minidist.train.checkpoint.restore import is_whole
from minidist.train.layout import Layout
from minidist.train.resilience.interruption import Interruption
from minidist.train.result import RunOptions


def go_back(
    cluster: Cluster,
    layout: Layout,
    options: RunOptions,
    origin: str | None,
    not_after: int | None,
    interruption: Interruption,
    patience: float,
) -> RunOptions:
    """Find the newest state to go on from, and give the cluster the size of the layout.

    Args:
        cluster: of the ranks that survived, if any have.
        layout: to go on in.
        options: of the run before.
        origin: the checkpoint that the run itself began with; None if it began with nothing.
        not_after: steps after which the numbers are not to be relied on; None for none.
        interruption: told where the run goes on.
        patience: as for ``Cluster.run``.

    Returns:
        The options to go on with.
    """
    staying, held = len(cluster.survivors), None
    if staying:
        held, interruption.lost = survey(cluster, not_after, patience)
    folder = newest_intact(options.saving.folder, held or 0, not_after) if options.saving is not None else None
    origin = origin if origin and Path(origin, MANIFEST).is_file() else None  # --keep may have removed it since
    if held is not None and folder is None:
        if staying > layout.world_size:
            cluster.run(hand_over, layout.world_size, patience=patience)
        interruption.resumed, interruption.source = held, "the memory of peers"
    else:
        held, folder = None, folder or origin
        interruption.resumed = Manifest.read(Disk(), Path(folder)).progress.step if folder else 0
        interruption.source = folder or "the beginning"
    if options.saving is not None:  # at once, since the run may be killed before it begins again
        discard_newer(Disk(), Path(options.saving.folder), interruption.resumed)
    cluster.regroup(layout.world_size)
    return replace(options, resume=folder, recover=held)


def newest_intact(folder: str, after: int, not_after: int | None) -> str | None:
    """The newest checkpoint whose files are as they were written; None without any.

    Args:
        after: with more steps than so many.
        not_after: and no more than so many; None for no limit.
    """
    disk, root = Disk(), Path(folder)
    for name in reversed(committed(disk, root)):
        due = after < step_of(name) and (not_after is None or step_of(name) <= not_after)
        if due and is_whole(disk, root / name):
            return str(root / name)
    return None
