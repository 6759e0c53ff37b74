"""The commit protocol: at any moment, whatever is killed and whenever the power fails, the last checkpoint is whole.

    DIR/
      latest                    the name of the newest checkpoint, "step-000050"
      step-000050/
        rank-0.safetensors      what rank 0 owns
        rank-1.safetensors      ...
        manifest.json           all arrays and files, with the SHA-256 of each file: the commit marker

1. Every rank writes its file under another name, flushes it, and renames it.
2. Once all have, one rank writes the manifest in the same way. A folder with a manifest is a checkpoint. One without
   holds the remains of a save that was cut off, and is never read.
3. Then, and only then, ``latest`` is replaced, in the same way.
4. Then, and only then, old checkpoints are removed: the manifest first, so that half a checkpoint never looks whole.

Each step ends on the disk before the next begins. PyTorch's distributed checkpoint commits by its ``.metadata`` file in
the same way. Real savers have got each of these steps wrong: ``latest`` was advanced and the old checkpoint deleted
before an asynchronous save had ended (KempnerForge's issue 102), a file was synced before Python had written its buffer
(nvidia-resiliency-ext's issue 359), and ranks wrote into a folder that rank 0 had not made yet (xtuner's issue 1852).
"""

from contextlib import suppress
from pathlib import Path

from minidist.overrides import overridable
from minidist.train.checkpoint.disk import Disk

MANIFEST, LATEST = "manifest.json", "latest"


@overridable
def write_durably(disk: Disk, path: Path, content: bytes) -> None:
    """Write a file so that its name never stands for half of its content, and return once it is on the disk."""
    new = path.with_name(f".new-{path.name}")
    disk.write(new, content)
    disk.flush(new)
    disk.rename(new, path)
    disk.flush_folder(path.parent)


@overridable
def commit(disk: Disk, root: Path, name: str, manifest: bytes) -> None:
    """Turn a folder whose files are all on the disk into a checkpoint, then let ``latest`` point to it."""
    write_durably(disk, root / name / MANIFEST, manifest)
    disk.flush_folder(root)  # so that the folder itself has its name
    write_durably(disk, root / LATEST, name.encode())


@overridable
def discard(disk: Disk, root: Path, name: str) -> None:
    """Remove a checkpoint, or the remains of a save: the manifest first, so that it never outlives a file it names."""
    folder = root / name
    disk.remove(folder / MANIFEST)
    disk.flush_folder(folder)
    for file in disk.names(folder):
        disk.remove(folder / file)
    disk.remove_folder(folder)


def discard_newer(disk: Disk, root: Path, step: int) -> None:
    """Remove the checkpoints of more than ``step`` steps: this run goes on from ``step``.

    Its bits may differ from theirs: a sum in float32, say, depends on the layout. First ``latest`` goes back to
    ``step``, so that a kill in between does not leave it pointing to one of them.
    """
    there = committed(disk, root)
    newer = [name for name in there if step_of(name) > step]
    if newer and name_of(step) in there:
        write_durably(disk, root / LATEST, name_of(step).encode())
    for name in reversed(newer):
        discard(disk, root, name)


def discard_cut_off(disk: Disk, root: Path) -> None:
    """Remove the remains of saves that were never committed."""
    for name in set(saves(disk, root)) - set(committed(disk, root)):
        discard(disk, root, name)


def make_root(disk: Disk, root: Path) -> None:
    """Make the folder of a run's checkpoints, and return once its name and those of the folders above are on the disk.

    Without that, a power cut may take the folder with all checkpoints in it, however well each of them was flushed.
    """
    disk.make_folder(root)
    for folder in root.parents:
        with suppress(PermissionError):  # a folder that cannot even be opened is older than this run
            disk.flush_folder(folder)


def committed(disk: Disk, root: Path) -> list[str]:
    """Return the names of all checkpoints in a folder, oldest first."""
    return [name for name in saves(disk, root) if MANIFEST in disk.names(root / name)]


def saves(disk: Disk, root: Path) -> list[str]:
    """Return the names of all saves in a folder, oldest first: checkpoints, and remains of saves that were cut off.

    A link is not a save of this run, so nothing that it points to is ever removed.
    """
    return sorted((name for name in disk.names(root) if is_name(name) and disk.is_folder(root / name)), key=step_of)


def name_of(step: int) -> str:
    """Return the name of the checkpoint after ``step`` steps."""
    return f"step-{step:06d}"


def step_of(name: str) -> int:
    """Return the number of steps in a checkpoint's name. (As text, step-1000000 would come before step-999999.)"""
    return int(name.removeprefix("step-"))


def is_name(name: str) -> bool:
    """Return whether a name is one that ``name_of`` makes."""
    digits = name.removeprefix("step-")
    return digits.isdecimal() and digits.isascii() and name == name_of(int(digits))


def latest(disk: Disk, root: Path) -> str | None:
    """Return the name of the newest checkpoint; None if there is none.

    If the power failed after the first manifest and before ``latest``, the manifest counts.
    """
    there = committed(disk, root)
    if LATEST in disk.names(root) and (name := disk.read(root / LATEST).decode(errors="replace")) in there:
        return name
    return there[-1] if there else None
