"""What saving asks of a disk, one call each: so that a test, or a picture, can put one in its place that loses power.

Writing a file does not put it on the disk, and neither does closing it: the system keeps it in memory and writes it
some seconds later. ``flush`` (fsync) returns once the content is on the disk. The *name* of a file is content too, of
its folder: a new or renamed file may be gone after a power cut until its folder has been flushed. A process that is
killed loses nothing that it has written; a machine without power does. (Pillai et al., "All File Systems Are Not
Created Equal", 2014.)
"""

import os
from pathlib import Path


class Disk:
    """The file system of this machine."""

    def make_folder(self, path: Path) -> None:
        """Make a folder, and those above it, unless it is there. Every rank may call it: none need wait for another."""
        path.mkdir(parents=True, exist_ok=True)

    def write(self, path: Path, content: bytes) -> None:
        """Write a file. Its content, and the name of a new one, may be lost until both are flushed."""
        path.write_bytes(content)

    def flush(self, path: Path) -> None:
        """Return once a file's content is on the disk."""
        with path.open("rb") as file:
            os.fsync(file.fileno())

    def flush_folder(self, path: Path) -> None:
        """Return once the names in a folder are on the disk."""
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
        """What is in a folder, sorted; nothing if there is none."""
        return sorted(os.listdir(path)) if path.is_dir() else []

    def read(self, path: Path) -> bytes:
        return path.read_bytes()
