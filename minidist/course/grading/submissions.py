"""Finds the submissions that a lecturer has collected, and the answers in each: a folder or zip file per student."""

import re
import stat
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path, PurePosixPath

from minidist.course.answers import chapter_names
from minidist.course.tasks import readable_line

NAME_BYTES = 255  # the longest name of a file
FILE_BYTES = 1 << 18  # nine times the largest solution; the judge's time grows with the file
NEARLY = re.compile(r"ch(?:apter)?[ _-]*(\d{1,9}).*\.py", re.IGNORECASE)  # probably meant to be a file of answers
NOT_THEIRS = {"solutions", "tests", "scoring", "__MACOSX", ".backups", ".git"}  # folders without a student's answers


def find_submissions(folder: Path) -> tuple[list[tuple[str, Path]], list[str]]:
    """Return (student, path) of each folder and zip file in a folder, and the names of other entries, such as links.

    Raises:
        ValueError: if there are no submissions, or two of one student.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder of submissions")
    found, others = [], []
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith("."):
            continue
        if not entry.is_symlink() and (entry.is_dir() or entry.suffix.lower() == ".zip"):
            found.append((_student(entry), entry))
        else:
            others.append(readable_line(entry.name))
    names = [name for name, _ in found]
    if not found:
        raise ValueError(f"{folder} has no submissions: expected a folder or zip file for each student")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(
            f"{folder} has two submissions of {', '.join(twice)}, such as a folder and a zip file: keep one"
        )
    return found, others


def _student(entry: Path) -> str:
    """Return a submission's name, made readable and cut to 255 bytes, since a folder will have this name."""
    name = readable_line(entry.stem if entry.is_file() else entry.name)
    return name.encode()[:NAME_BYTES].decode(errors="ignore")


def take_answers(submission: Path, into: Path) -> list[str]:
    """Copy the files of answers from a folder or zip file, at any depth; return remarks.

    Of several files with one name, the one in ``exercises/`` is taken, or else the one at the lowest depth.
    """
    known = chapter_names()
    try:
        found, others = find_files(submission, known)
    except ValueError as error:
        return [str(error)]
    file_of = {int(chapter[2:4]): f"{chapter}.py" for chapter in known}
    remarks = [
        f"skipped {name}: expected {file_of.get(int(nearly[1]), 'the number of a chapter')}"
        for name in others
        if (nearly := NEARLY.fullmatch(name))
    ]
    remarks += copy_files(found, into, "exercises")
    if not found:
        remarks.append("found no file named chNN_name.py")
    return remarks


File = tuple[PurePosixPath, int, Callable[[], bytes]]  # path, size in bytes, and a function that reads it


def find_files(submission: Path, known: Collection[str]) -> tuple[dict[str, list[File]], list[str]]:
    """Return the student's own files with known names, such as "ch03_collectives", and the names of all others.

    Raises:
        ValueError: if a zip file cannot be read.
    """
    found: dict[str, list[File]] = {}
    others: list[str] = []
    try:
        files = list(_in_folder(submission) if submission.is_dir() else _in_zip(submission))
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise ValueError(f"the zip file cannot be read: {error}") from None
    for file in files:
        place = file[0]
        if NOT_THEIRS & set(place.parts[:-1]):
            continue
        name = place.name.lower()  # Windows ignores capitals in names, but keeps them
        if name.endswith(".py") and name.removesuffix(".py") in known:
            found.setdefault(name, []).append(file)
        else:
            others.append(place.name)
    return found, others


def copy_files(found: Mapping[str, list[File]], into: Path, home: str) -> list[str]:
    """Copy one file of each name, the one in a folder called ``home`` or at the lowest depth; return remarks."""
    remarks = []
    for name, some in found.items():
        some.sort(key=lambda one: (one[0].parts[-2:-1] != (home,), len(one[0].parts), str(one[0])))
        place, size, read = some[0]
        if len(some) > 1:
            remarks.append(f"found {len(some)} files {name}; graded {place}")
        if size > FILE_BYTES:
            remarks.append(f"skipped {name}: {size:,} bytes is more than the limit of {FILE_BYTES:,} for one file")
            continue
        try:
            (into / name).write_bytes(read())
        except Exception as error:  # a damaged or encrypted archive, an unreadable file
            remarks.append(f"cannot read {name}: {type(error).__name__}: {error}")
    return remarks


def _in_folder(folder: Path) -> Iterator[File]:
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() == ".py" and path.is_file() and not path.is_symlink():
            yield PurePosixPath(path.relative_to(folder).as_posix()), path.stat().st_size, path.read_bytes


def _in_zip(path: Path) -> Iterator[File]:
    archive = zipfile.ZipFile(path)
    for info in archive.infolist():
        if info.filename and not info.is_dir() and not stat.S_ISLNK(info.external_attr >> 16):
            place = PurePosixPath(info.filename.replace("\\", "/"))  # some Windows tools write backslashes
            yield place, info.file_size, lambda info=info: archive.read(info)
