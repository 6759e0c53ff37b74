"""The folder of a run's checkpoints: one run at a time saves in it, and its checkpoints are of that run alone."""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISREG

from minidist.train.checkpoint.commit import committed, is_name, latest, step_of
from minidist.train.checkpoint.disk import Disk
from minidist.train.checkpoint.restore import is_whole

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

OURS = re.compile(r"(\.new-)?(rank-\d+\.safetensors|(tokenizer|manifest)\.json)")  # files in a checkpoint's folder


@contextmanager
def own_folder(folder: str | None, resume: str | None) -> Iterator[str]:
    """Context manager: claim a folder for a run's checkpoints. Inside, no other run can; the process' end ends it too.

    Args:
        folder, resume: see ``check_folder``; folder is None for a run that saves nothing.

    Yields:
        A message for people if the file system cannot claim the folder; otherwise "".

    Raises:
        ValueError: if another run has claimed it, or this one cannot save there.
    """
    if folder is None:
        yield ""
        return
    check_writable(folder)
    if fcntl is None:
        check_folder(folder, resume)
        yield ""
        return
    place, problem = os.open(folder, os.O_RDONLY), ""
    try:
        fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(place)
        raise ValueError(
            f"another run is saving in {folder} at this moment: wait until it ends, or choose another folder"
        ) from None
    except OSError as error:  # some network file systems have no locks
        problem = f"{folder} cannot be claimed ({error.strerror}): let no other run save there"
    try:
        check_folder(folder, resume)
        yield problem
    finally:
        os.close(place)


def check_writable(folder: str) -> None:
    """Make a folder unless it exists, and try to write in it. Raise ValueError if that is not possible."""
    root, disk = Path(folder), Disk()
    try:
        disk.make_folder(root)
        probe = root / ".new-probe"
        disk.write(probe, b"minidist")
        disk.flush(probe)
        disk.remove(probe)
    except OSError as error:
        raise ValueError(f"--save: cannot write in {folder!r}: {error.strerror}") from None


def strangers(disk: Disk, root: Path) -> Path | None:
    """Return a path that no run has saved, though it has a checkpoint's name or is in a folder of such a name.

    None if there is none. A run may remove only the remains of saves that were cut off.
    """
    for folder in (root / name for name in disk.names(root) if is_name(name)):
        if not disk.is_folder(folder):
            return folder
        for name in disk.names(folder):
            if not OURS.fullmatch(name) or not S_ISREG((folder / name).lstat().st_mode):
                return folder / name
    return None


def check_folder(folder: str, resume: str | None) -> None:
    """Check that a run's checkpoints can be saved in a folder, before training rather than after an hour of it.

    Args:
        folder: folder of the checkpoints; made if it does not exist.
        resume: the checkpoint that the run resumes from; None for a new run.

    Raises:
        ValueError: if the folder has checkpoints that the run does not go on from, or something that no run has saved,
            or cannot be written.
    """
    check_writable(folder)
    root, disk = Path(folder), Disk()
    there, strange = committed(disk, root), strangers(disk, root)
    if strange:
        raise ValueError(
            f"--save: {strange} is where a checkpoint may go, but no run has saved it: move it, or choose another "
            "folder"
        )
    if there and (resume is None or Path(resume).resolve().parent != root.resolve()):
        raise ValueError(
            f"--save: {folder} already has checkpoints ({_from_to(there)}), which this run would mix with its own: add "
            f"--resume {folder} to go on from them, or choose another folder"
        )
    if not there or resume is None or (begins_with := Path(resume).resolve().name) == latest(disk, root):
        return  # a checkpoint newer than latest was left by a kill before latest was replaced
    newer = [name for name in there if step_of(name) > step_of(begins_with) and is_whole(disk, root / name)]
    if newer:
        raise ValueError(
            f"--save: {folder} has newer checkpoints than {begins_with} ({_from_to(newer)}), which this run would "
            "replace: save in another folder, or remove them first"
        )


def _from_to(names: Sequence[str]) -> str:
    return names[0] + (f" to {names[-1]}" if names[1:] else "")
