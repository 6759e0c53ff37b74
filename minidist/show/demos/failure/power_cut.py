"""A recorded save on a disk that loses power: what every cut may leave, and whether training can be resumed from it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from minidist.comm.runtime.sweep import scratch_folder
from minidist.show.demos.failure.crashing_disk import CrashingDisk
from minidist.show.demos.failure.recording import Operation, Recording
from minidist.train.checkpoint.commit import is_name
from minidist.train.checkpoint.disk import Disk
from minidist.train.checkpoint.manifest import BadCheckpoint, Manifest
from minidist.train.checkpoint.restore import check_files, find_checkpoint

Files = Mapping[str, bytes]  # path below the folder with all checkpoints -> content


@dataclass(frozen=True)
class Left:
    """State of the disk after a power cut.

    Args:
        files: all files that are left.
        step: step of the checkpoint that training resumes from; None if it cannot.
        error: why it cannot, in minidist's words.
    """

    files: Files
    step: int | None
    error: str = ""


@dataclass(frozen=True)
class Moment:
    """State of the disk between two operations.

    Args:
        read: files as programs read them.
        left: states that a power cut now may leave, without duplicates.
    """

    read: Files
    left: Sequence[Left]

    @property
    def resumes(self) -> set[int | None]:
        """Steps from which training may resume after a power cut, and None if it may be refused."""
        return {one.step for one in self.left}


def moments_of(recording: Recording) -> list[Moment]:
    """Return the state of the disk before the save and after each group of operations."""
    disk, known = CrashingDisk(), {}
    _replay(disk, recording.before)
    for folder in recording.root.parents:  # these folders were there long before
        disk.flush_folder(folder)
    found = [_moment(disk, recording.root, known)]
    for group in recording.groups:
        _replay(disk, group.operations)
        found.append(_moment(disk, recording.root, known))
    return found


def _replay(disk: CrashingDisk, operations: Sequence[Operation]) -> None:
    for one in operations:
        getattr(disk, one.method)(*one.arguments)


def _moment(disk: CrashingDisk, root: Path, known: dict[frozenset, Left]) -> Moment:
    left = {}
    for _, survivor in disk.left():
        files = _files(survivor, root)
        key = frozenset(files.items())
        if key not in known:
            known[key] = resumed_from(files)
        left[key] = known[key]
    return Moment(_files(disk, root), list(left.values()))


def _files(disk: Disk, root: Path) -> Files:
    found = {}
    for name in disk.names(root):
        for path in [f"{name}/{file}" for file in disk.names(root / name)] if is_name(name) else [name]:
            found[path] = disk.read(root / path)
    return found


def resumed_from(files: Files) -> Left:
    """Put files on this machine's disk, and look for a checkpoint as ``minidist train --resume`` does."""
    with scratch_folder() as folder:
        for name, content in files.items():
            path = Path(folder, name)
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
        try:
            checkpoint = find_checkpoint(folder)
            manifest = Manifest.read(Disk(), checkpoint)
            check_files(checkpoint, manifest)
        except BadCheckpoint as error:
            return Left(files, None, str(error).replace(f"{folder}/", "").replace(folder, "the folder"))
    return Left(files, manifest.progress.step)
