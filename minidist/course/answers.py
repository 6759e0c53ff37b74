"""Finds and reads answers: folders of ``chNN_name.py`` files, such as the learner's, the solutions or a submission."""

import re
from dataclasses import dataclass
from pathlib import Path

import minidist
from minidist.files import replacing

LIBRARY = Path(minidist.__file__).resolve().parent
ROOT = LIBRARY.parent if (LIBRARY.parent / "solutions").is_dir() else LIBRARY / "clone"  # a wheel's copy of a clone
CHAPTER_FILE = re.compile(r"ch(\d\d)_\w+\.py")


@dataclass(frozen=True)
class Source:
    """A file of answers, read once: this text is judged, whatever happens to the file later."""

    name: str  # the module's, such as "ch03_collectives"
    path: str
    text: str


def course_folder(name: str, root: Path = ROOT) -> Path:
    """Return a folder of the course: "exercises", "solutions", "chapters" or "tests/exercises".

    Raises:
        ValueError: if it is missing, as exercises/ is from a wheel.
    """
    folder = root / name
    if not folder.is_dir():
        raise ValueError(
            f"the course's folder {name}/ is missing from {root}: minidist release DIR writes the course to a new "
            "folder; go there to work on it"
        )
    return folder


def clone_here() -> Path:
    """Return the clone of the course around the current folder; elsewhere, the one that minidist is installed from."""
    here = Path.cwd()
    parts = "minidist/__init__.py", "exercises", "solutions"
    return next((one for one in (here, *here.parents) if all((one / part).exists() for part in parts)), ROOT)


def shown_path(path: Path) -> str:
    """Return the path as messages name it: relative if it is inside the current folder, else absolute."""
    path, here = path.resolve(), Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def implementation_folder(impl: str) -> Path:
    """Return the folder that ``--impl`` names: "exercises" (of the current clone), "solutions", or a path.

    Raises:
        ValueError: if it does not exist.
    """
    if impl in ("exercises", "solutions"):
        return course_folder(impl, clone_here() if impl == "exercises" else ROOT)
    if not Path(impl).is_dir():
        raise ValueError(
            f"--impl {impl}: there is no such folder; use exercises, solutions or a folder of chNN_*.py files"
        )
    return Path(impl)


def read_answers(folder: Path) -> dict[str, Source]:
    """Return the answers in a folder, by module name. Files that are not UTF-8 are kept; see ``read_source``."""
    files = sorted(file for file in folder.glob("ch*.py") if CHAPTER_FILE.fullmatch(file.name) and file.is_file())
    return {file.stem: read_source(file) for file in files}


def read_source(file: Path) -> Source:
    """Read a file of answers in UTF-8, with or without a byte order mark.

    Invalid bytes become U+FFFD. A file in UTF-16 becomes code that raises a SyntaxError when it is loaded.
    """
    text = file.read_text(encoding="utf-8-sig", errors="replace")
    if file.read_bytes()[:2] in (b"\xff\xfe", b"\xfe\xff"):
        text = f"raise SyntaxError('{file.name} is saved as UTF-16: save it as UTF-8')"
    return Source(file.stem, str(file), text)


def write_atomically(file: Path, text: str) -> None:
    """Write a file in one go: at any moment it holds either the old text or the new."""
    with replacing(file) as new:
        new.write_text(text, encoding="utf-8", errors="backslashreplace")


def solutions() -> dict[str, Source]:
    """Return the solutions by module name, in the order of the chapters."""
    return read_answers(course_folder("solutions"))


def chapter_names() -> list[str]:
    """Return the module names of all chapters that have exercises, in order."""
    return list(solutions())


def chapter_of(target: str) -> str:
    """Return the module name of the chapter "3" or "ch03_collectives", or of the chapter that has the task "3.4".

    Raises:
        ValueError: if the chapter has no exercises.
    """
    number = target.partition(".")[0]
    for name in chapter_names():
        if number == name or (number.isdecimal() and int(number) == int(name[2:4])):
            return name
    chapters = ", ".join(str(int(name[2:4])) for name in chapter_names())
    raise ValueError(f"there is no chapter {number!r} with exercises; choose from {chapters}")
