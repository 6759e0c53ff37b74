"""The disk operations that saving needs, one method each, so that a test or a figure can use a disk that loses power.

Writing a file does not put it on the disk, and neither does closing it: the system keeps it in memory and writes it
some seconds later. ``flush`` (fsync) returns once the content is on the disk. The *name* of a file is content too, of
its folder: a new or renamed file may be gone after a power cut until its folder has been flushed. A process that is
killed loses nothing that it has written; a machine without power does. (Pillai et al., "All File Systems Are Not
Created Equal", 2014.)
"""

import os
import stat
from pathlib import Path


class BadCheckpoint(ValueError):
    """A checkpoint cannot be used: the message names the file and what is wrong with it."""


class Disk:
    """The file system of this machine. Below the folder of a run's checkpoints it follows no symbolic link."""

    def make_folder(self, path: Path) -> None:
        """Make a folder and its parents unless they exist. Every rank may call it, without waiting for another."""
        path.mkdir(parents=True, exist_ok=True)

    def write(self, path: Path, content: bytes) -> None:
        """Write a file. Its content, and the name of a new one, may be lost until both are flushed."""
        path.write_bytes(content)

    def flush(self, path: Path) -> None:
        """Return once a file's content is on the disk."""
        with path.open("r+b") as file:  # Windows flushes only a file that is open for writing
            os.fsync(file.fileno())

    def flush_folder(self, path: Path) -> None:
        """Return once the names in a folder are on the disk; at once on Windows, which cannot open a folder."""
        if not hasattr(os, "O_DIRECTORY"):
            return
        folder = os.open(path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def rename(self, old: Path, new: Path) -> None:
        """Give a file another name, in place of the file that had it: at any moment the name has one of the two."""
        old.replace(new)

    def remove(self, path: Path) -> None:
        """Remove a file, if it is there."""
        path.unlink(missing_ok=True)

    def remove_folder(self, path: Path) -> None:
        """Remove an empty folder."""
        path.rmdir()

    def names(self, path: Path) -> list[str]:
        """Return the names in a folder, sorted; none if there is no such folder."""
        return sorted(os.listdir(path)) if path.is_dir() else []

    def is_folder(self, path: Path) -> bool:
        """Return whether a path is a folder itself, and not a link to one."""
        return path.is_dir() and not path.is_symlink()

    def read(self, path: Path) -> bytes:
        """Return the content of a regular file.

        Raises:
            BadCheckpoint: for anything else, such as a pipe, which might never end.
        """
        check_regular(path)
        try:
            return path.read_bytes()
        except OSError as error:
            raise BadCheckpoint(f"{path} cannot be read: {error.strerror}") from None


def check_regular(path: Path) -> None:
    """Raise BadCheckpoint unless a path is a regular file. A link is not followed, and a pipe is not waited for."""
    try:
        mode = path.lstat().st_mode
    except OSError as error:
        raise BadCheckpoint(
            f"{path} is missing" if not os.path.lexists(path) else f"{path}: {error.strerror}"
        ) from None
    if not stat.S_ISREG(mode):
        what = "a symbolic link" if stat.S_ISLNK(mode) else "a folder" if stat.S_ISDIR(mode) else "a pipe or a device"
        raise BadCheckpoint(f"{path} is {what}, and a checkpoint consists of regular files")
