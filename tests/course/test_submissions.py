"""What a class hands in: whatever is in a folder or a zip file, its answers are found, nothing else, and quickly."""

import os
import random
import zipfile
from pathlib import Path

import pytest

from minidist.course.answers import chapter_names
from minidist.course.grading.grade_submission import REMARKS, Grade
from minidist.course.grading.submissions import FILE_BYTES, find_submissions, take_answers
from minidist.course.stubs import release
from minidist.course.tasks import CHARACTERS

SECRET = "the solutions"
NOT_THEIRS = {"solutions", "tests", "__MACOSX", ".backups"}
NAMES = chapter_names()
FOLDERS = (
    "", "exercises", "a/b", "a/exercises", "Exercises", "__MACOSX", "solutions", ".backups", "tests/exercises",
    "x" * 60, "ch03_collectives.py", "\x1b[31m", "..",
)  # fmt: skip


def entries_of(rng) -> dict[str, tuple[str, str]]:
    """Path -> (kind, content): files with a chapter's name, in some writing, or something like it."""
    found = {}
    for _ in range(rng.choice((0, 1, 5, 30))):
        name = rng.choice(NAMES)
        name = rng.choice(
            [f"{name}.py", f"{name.upper()}.PY", f"{name}.Py", f"{name.title()}.py", f"{name}.txt", f"{name}.py.bak",
             f"{name[:4]}.py", "ch77_other.py", f"{name} (1).py", "notes.md", f"{name}"]
        )  # fmt: skip
        kind = rng.choice(("file", "file", "file", "link", "pipe", "large"))
        found[f"{rng.choice(FOLDERS)}/{name}".strip("/")] = kind, f"answer {rng.random()}"
    return found


def in_folder(folder: Path, entries, secret: Path) -> dict[str, str]:
    """Lay the entries out in a folder; returns the regular files that are there."""
    folder.mkdir()
    for path, (kind, content) in entries.items():
        target = folder / path.replace("..", "dots")
        if any(parent.is_file() for parent in target.parents) or os.path.lexists(target):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        if kind == "link":
            target.symlink_to(secret)
        elif kind == "pipe":
            os.mkfifo(target)
        else:
            target.write_text(content + "#" * (FILE_BYTES if kind == "large" else 0))
    if len(entries) > 20:
        (folder / "linked").symlink_to(secret.parent)
    return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file() and not p.is_symlink()}


def in_zip(file: Path, entries, secret: Path) -> dict[str, str]:
    """Write them to a zip file, every other one with a path as some Windows tools write it."""
    found = {}
    with zipfile.ZipFile(file, "w") as archive:
        for number, (path, (kind, content)) in enumerate(entries.items()):
            info = zipfile.ZipInfo(path.replace("/", "\\") if number % 2 else path)
            if kind == "link":
                info.external_attr = 0o120777 << 16
                archive.writestr(info, str(secret))
            else:
                found[path] = content + "#" * (FILE_BYTES if kind == "large" else 0)
                archive.writestr(info, found[path])
    return found


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("lay_out", [in_folder, in_zip])
def test_whatever_is_handed_in(tmp_path, seed, lay_out):
    """A regular file is taken for each chapter, the student's own, and preferably from the folder exercises."""
    secret = tmp_path / "theirs" / f"{NAMES[3]}.py"
    secret.parent.mkdir()
    secret.write_text(SECRET)
    submission, into = tmp_path / "ann.zip", tmp_path / "into"
    into.mkdir()
    regular = lay_out(submission, entries_of(random.Random(seed)), secret)
    remarks = take_answers(submission, into)
    expected = {}  # name -> path -> content of what may be taken
    for path, content in regular.items():
        *folders, name = path.split("/")
        if name.lower() in {f"{known}.py" for known in NAMES} and not NOT_THEIRS & set(folders):
            expected.setdefault(name.lower(), {})[path] = content
    taken = {path.name: path.read_text() for path in into.iterdir()}
    assert taken.keys() <= expected.keys() and SECRET not in taken.values()
    for name, contents in expected.items():
        best = [text for path, text in contents.items() if Path(path).parent.name == "exercises"] or contents.values()
        if name in taken:
            assert taken[name] in best and len(taken[name]) <= FILE_BYTES
        else:
            assert any(name in remark and "more than the limit of 262,144" in remark for remark in remarks)
        assert len(contents) == 1 or any(f"found {len(contents)} files {name}; graded" in remark for remark in remarks)
    assert all(remark.isprintable() for remark in Grade("ann", [], remarks).remarks)


def test_a_whole_copy_of_the_course_has_no_remark(tmp_path):
    """Repositories of GitHub Classroom are such copies: files of the library begin with chNN too."""
    into = tmp_path / "into"
    into.mkdir()
    release(tmp_path / "ann", True)
    assert take_answers(tmp_path / "ann", into) == []
    assert sorted(path.stem for path in into.iterdir()) == NAMES


def test_a_file_with_nearly_the_name_of_a_chapter_is_told_the_name(tmp_path):
    expected = {  # beside a file whose name is right
        "ch3_collectives.py": "ch03_collectives.py", "Chapter 04.py": "ch04_data_parallel.py",
        "ch03_collectives (1).py": "ch03_collectives.py", "ch77.py": "the number of a chapter",
    }  # fmt: skip
    for name in ("ch00_walls.py", "chess.py", "chapter.py", *expected):
        (tmp_path / name).touch()
    remarks = {f"skipped {name}: expected {right}" for name, right in expected.items()}
    into = tmp_path / "into"
    into.mkdir()
    assert set(take_answers(tmp_path, into)) == remarks and os.listdir(into) == ["ch00_walls.py"]


def test_a_link_is_no_submission(tmp_path):
    """Otherwise whoever knows where the solutions are has full points. Names may have dots in them."""
    ann, dee = tmp_path / "J. Ann", tmp_path / "J. Dee.zip"
    ann.mkdir()
    dee.touch()
    (tmp_path / "bob").symlink_to(ann)
    (tmp_path / "carl.zip").symlink_to(ann)
    assert find_submissions(tmp_path) == ([("J. Ann", ann), ("J. Dee", dee)], ["bob", "carl.zip"])


def test_the_name_of_a_submission_can_be_the_name_of_a_folder(tmp_path):
    """Three bytes stand for each character that does not print: else grading would end here, for the whole class."""
    (tmp_path / ("a" + "\a" * 200)).mkdir()
    (((student, _),), _) = find_submissions(tmp_path)
    (tmp_path / student).mkdir()


def test_thousands_of_files_are_one_remark_and_one_without_a_name_is_none(tmp_path):
    file = tmp_path / "ann.zip"
    with zipfile.ZipFile(file, "w") as archive:
        for number in range(3_000):
            archive.writestr(f"ch{number % 100:02}_{number}.py", "")
        archive.writestr("nameless", "")
    file.write_bytes(file.read_bytes().replace(b"nameless", b"\0ameless"))
    grade = Grade("ann", [], take_answers(file, tmp_path))
    assert len(grade.remarks) == REMARKS + 1 and grade.remarks[-1].endswith("more")
    (long,) = Grade("ann", [], ["x" * 3 * CHARACTERS]).remarks
    assert long == "x" * CHARACTERS + " [...]"
