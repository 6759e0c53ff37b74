"""A disk in memory that loses power, and what may be left of it: a protocol is tried with a cut at every operation.

A disk promises little (disk.py). So this one keeps two states: what a program sees, and what has been flushed. When the
power fails, anything between the two may be left, and ``left`` tries

    names       that are new, renamed or removed: all, none, each of them alone, and all but one of them
    contents    of files that were written: the new one whole, its first half, nothing, and the old one

A process that is killed loses nothing: all names and contents are left. A write may be cut off in its middle; every
other operation happens or does not.

    for moment in range(operations):  # of a run in which nothing fails
        disk = CrashingDisk(power_fails_at=moment)
        with suppress(PowerFailure):
            save(disk)
        for survival, left in disk.left():
            assert ...  # a disk again: what does the next run find there?

This is simplified: a real file system has its own order in which names survive, and may keep any blocks of a file.
ALICE (Pillai et al., "All File Systems Are Not Created Equal", 2014) makes such states from a trace of a program's
system calls; it found 60 vulnerabilities in 11 systems, databases and version control among them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from minidist.train.checkpoint.disk import Disk


class PowerFailure(Exception):
    """Raised when the power fails or the process is killed: no later operation happens."""


@dataclass(eq=False)
class File:
    """A file: the content that programs read, and the content that is on the disk."""

    content: bytes = b""
    flushed: bytes = b""


Names = dict[str, "File | Folder"]
Change = dict[str, "File | Folder | None"]  # name -> its item after one operation; None if it is gone


@dataclass(eq=False)
class Folder:
    """A folder: its names on the disk, and the changes since then, oldest first."""

    flushed: Names = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)

    def names(self, survives: Callable[[Change], bool] = lambda change: True) -> Names:
        """Return the names after the changes that survive."""
        names: dict = dict(self.flushed)
        for change in filter(survives, self.changes):
            names |= change
        return {name: item for name, item in names.items() if item is not None}


CONTENTS: dict[str, Callable[[File], bytes]] = {
    "whole": lambda file: file.content,
    "half": lambda file: file.content[: len(file.content) // 2],
    "empty": lambda file: b"",
    "old": lambda file: file.flushed,
}


class CrashingDisk(Disk):
    """Disk in memory whose power fails.

    Args:
        power_fails_at: number of the operation that fails, counted from 0; None for never. Reads do not count.

    Attributes:
        operations: operations that have begun, even if they failed, such as ("rename", path, new path).
    """

    def __init__(self, power_fails_at: int | None = None) -> None:
        self.power_fails_at = power_fails_at
        self.operations: list[tuple] = []
        self.top = Folder()

    def make_folder(self, path: Path) -> None:
        self._begin("make_folder", path)
        for folder in (*reversed(path.parents), path):
            if self._find(folder) is None:
                self._folder(folder.parent).changes.append({folder.name: Folder()})

    def write(self, path: Path, content: bytes) -> None:
        folder = self._folder(path.parent)
        self._check_power()
        if self._find(path) is None:
            folder.changes.append({path.name: File()})
        file = self._file(path)
        file.content = content[: len(content) // 2]
        self._begin("write", path)
        file.content = content

    def flush(self, path: Path) -> None:
        file = self._file(path)
        self._begin("flush", path)
        file.flushed = file.content

    def flush_folder(self, path: Path) -> None:
        folder = self._folder(path)
        self._begin("flush_folder", path)
        folder.flushed, folder.changes = folder.names(), []

    def rename(self, old: Path, new: Path) -> None:
        file = self._file(old)
        source, target = self._folder(old.parent), self._folder(new.parent)
        self._begin("rename", old, new)
        if source is target:
            source.changes.append({old.name: None, new.name: file})
        else:
            target.changes.append({new.name: file})
            source.changes.append({old.name: None})

    def remove(self, path: Path) -> None:
        self._begin("remove", path)
        if self._find(path) is not None:
            self._file(path)
            self._folder(path.parent).changes.append({path.name: None})

    def remove_folder(self, path: Path) -> None:
        if self._folder(path).names():
            raise OSError(f"the folder {path} is not empty")
        self._begin("remove_folder", path)
        self._folder(path.parent).changes.append({path.name: None})

    def names(self, path: Path) -> list[str]:
        self._check_power()
        folder = self._find(path)
        return sorted(folder.names()) if isinstance(folder, Folder) else []

    def is_folder(self, path: Path) -> bool:
        self._check_power()
        return isinstance(self._find(path), Folder)

    def read(self, path: Path) -> bytes:
        self._check_power()
        return self._file(path).content

    def left(self) -> Iterator[tuple[str, "CrashingDisk"]]:
        """Yield the states that a power cut now may leave: what survived, in words, and a disk in that state.

        The first state is also what is left when only the process dies.
        """
        changes = [change for folder in _folders(self.top) for change in folder.changes]
        choices = {"all": changes, "none": []}
        for number, change in enumerate(changes) if len(changes) > 1 else ():
            choices |= {f"{_words(change)} alone": [change]}
            choices |= {f"all but {_words(change)}": changes[:number] + changes[number + 1 :]}
        for names, kept in choices.items():
            survivors = set(map(id, kept))
            for contents, content in CONTENTS.items():
                disk = CrashingDisk()
                disk.top = _copy(self.top, lambda change, survivors=survivors: id(change) in survivors, content)
                yield f"unflushed names: {names}; unflushed contents: {contents}", disk

    def _begin(self, *operation) -> None:
        """Record an operation that is about to happen.

        Raises:
            PowerFailure: if the power fails in this operation, or has failed before.
        """
        self._check_power()
        self.operations.append(operation)
        self._check_power()

    def _check_power(self) -> None:
        if self.power_fails_at is not None and len(self.operations) > self.power_fails_at:
            raise PowerFailure(f"in operation {self.power_fails_at}: {self.operations[-1]}")

    def _find(self, path: Path) -> File | Folder | None:
        item: File | Folder | None = self.top
        for name in path.relative_to(path.anchor).parts:
            item = item.names().get(name) if isinstance(item, Folder) else None
        return item

    def _file(self, path: Path) -> File:
        if not isinstance(file := self._find(path), File):
            raise FileNotFoundError(f"there is no file {path}")
        return file

    def _folder(self, path: Path) -> Folder:
        if not isinstance(folder := self._find(path), Folder):
            raise FileNotFoundError(f"there is no folder {path}")
        return folder


def _folders(folder: Folder) -> Iterator[Folder]:
    """Yield a folder and all folders that may be below it after some of the changes."""
    yield folder
    below = [item for names in (folder.flushed, *folder.changes) for item in names.values()]
    for item in {id(item): item for item in below if isinstance(item, Folder)}.values():
        yield from _folders(item)


def _copy(folder: Folder, survives: Callable[[Change], bool], content: Callable[[File], bytes]) -> Folder:
    """Return a copy of what survives of a folder, all of it flushed."""
    names: Names = {}
    for name, item in folder.names(survives).items():
        if isinstance(item, Folder):
            names[name] = _copy(item, survives, content)
        else:
            kept = content(item) if item.content != item.flushed else item.flushed
            names[name] = File(kept, kept)
    return Folder(names)


def _words(change: Change) -> str:
    return " and ".join(f"{name} {'gone' if item is None else 'there'}" for name, item in change.items())
