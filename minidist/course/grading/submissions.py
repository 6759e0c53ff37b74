"""Finds the submissions that a lecturer has collected, and the answers in each: a folder or zip file per student."""

import re
import stat
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from minidist.course.answers import CHAPTER_FILE, chapter_names

FILE_BYTES = 1 << 20  # no exercise is larger
NEARLY = re.compile(r"ch\d\d.*\.py", re.IGNORECASE)  # probably meant to be a file of answers
NOT_THEIRS = {"solutions", "tests", "__MACOSX", ".backups", ".git"}  # folders without answers of the student's own


def find_submissions(folder: Path) -> tuple[list[tuple[str, Path]], list[str]]:
    """(student, path) of each folder and zip file in a folder, and the names of all other files there.

    Raises:
        ValueError: if there are none, or two for one student.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder of submissions")
    found, others = [], []
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith("."):
            continue
        if entry.is_dir() or entry.suffix.lower() == ".zip":
            found.append((_student(entry), entry))
        else:
            others.append(entry.name)
    names = [name for name, _ in found]
    if not found:
        raise ValueError(f"{folder} has no submissions: expected a folder or zip file for each student")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{folder} has two submissions of {', '.join(twice)}: a folder and a zip file")
    return found, others


def _student(entry: Path) -> str:
    """The student's name, as valid text whatever bytes the file system holds."""
    name = entry.stem if entry.is_file() else entry.name
    return name.encode("utf-8", "replace").decode()


def take_answers(submission: Path, into: Path) -> list[str]:
    """Copy the files of answers from a folder or zip file, at any depth; returns remarks.

    Of several files with one name, the one in ``exercises/`` is taken, or else the one at the lowest depth.
    """
    remarks: list[str] = []
    try:
        files = list(_in_folder(submission) if submission.is_dir() else _in_zip(submission))
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        return [f"the zip file cannot be read: {error}"]
    known, candidates = chapter_names(), {}
    for place, size, read in files:
        if NOT_THEIRS & set(place.parts[:-1]):
            continue
        if CHAPTER_FILE.fullmatch(place.name) and place.stem in known:
            candidates.setdefault(place.name, []).append((place, size, read))
        elif NEARLY.fullmatch(place.name):
            remarks.append(f"skipped {place.name}: expected a name from {', '.join(f'{name}.py' for name in known)}")
    for name, some in candidates.items():
        some.sort(key=lambda one: (one[0].parts[-2:-1] != ("exercises",), len(one[0].parts), str(one[0])))
        place, size, read = some[0]
        if len(some) > 1:
            remarks.append(f"found {len(some)} files {name}; graded {place}")
        if size > FILE_BYTES:
            remarks.append(f"skipped {name}: {size:,} bytes is more than the limit of {FILE_BYTES:,}")
            continue
        try:
            (into / name).write_bytes(read())
        except Exception as error:  # a damaged or encrypted archive, an unreadable file
            remarks.append(f"cannot read {name}: {type(error).__name__}: {error}")
    if not candidates:
        remarks.append("found no file named chNN_name.py")
    return remarks


File = tuple[PurePosixPath, int, Callable[[], bytes]]  # path, size in bytes, and a function that reads it


def _in_folder(folder: Path) -> Iterator[File]:
    for path in sorted(folder.rglob("*.py")):
        if path.is_file() and not path.is_symlink():
            yield PurePosixPath(path.relative_to(folder).as_posix()), path.stat().st_size, path.read_bytes


def _in_zip(path: Path) -> Iterator[File]:
    archive = zipfile.ZipFile(path)
    for info in archive.infolist():
        if not info.is_dir() and not stat.S_ISLNK(info.external_attr >> 16):
            place = PurePosixPath(info.filename.replace("\\", "/"))  # some Windows tools write backslashes
            yield place, info.file_size, lambda info=info: archive.read(info)
