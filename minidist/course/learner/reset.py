"""``minidist reset``: begin a task, or a chapter, anew. What was there is kept in a copy."""

from pathlib import Path

from minidist.course.answers import chapter_of, course_folder, read_answers, write_whole
from minidist.course.authoring.stubs import owners_of, put_back, stub_of

BACKUPS = ".backups"


def plan_reset(wish: str, folder: Path) -> tuple[Path, str, str]:
    """What a reset would do: the file, its new text, and in words what would be lost.

    Args:
        wish: a task ("3.4") or chapter ("3").
        folder: the learner's answers.

    Raises:
        ValueError: for what is not there, or a task in a file that cannot be read as Python.
    """
    name = chapter_of(wish)
    solution = read_answers(course_folder("solutions"))[name].text
    stub, owners = stub_of(solution, name), owners_of(solution)
    file = folder / f"{name}.py"
    if "." not in wish or not file.exists():
        return file, stub, f"all that you wrote in {file.name}"
    if wish not in owners:
        raise ValueError(f"there is no task {wish}; chapter {wish.partition('.')[0]} has {', '.join(owners)}")
    try:
        text = put_back(file.read_text(encoding="utf-8"), stub, owners[wish])
    except SyntaxError as error:
        chapter = wish.partition(".")[0]
        raise ValueError(
            f"{file.name}, line {error.lineno}: {error.msg}. Mend that first, or begin the whole chapter anew: "
            f"minidist reset {chapter}"
        ) from None
    return file, text, f"what you wrote in {', '.join(owners[wish])} of {file.name}"


def write_reset(file: Path, text: str) -> Path | None:
    """Write the new text; returns the copy of the old one, None where there was none."""
    copy = None
    if file.exists():
        folder = file.parent / BACKUPS
        folder.mkdir(exist_ok=True)
        numbers = [int(old.stem.rpartition("-")[2]) for old in folder.glob(f"{file.stem}-*.py")]
        copy = folder / f"{file.stem}-{max(numbers, default=0) + 1}.py"
        copy.write_bytes(file.read_bytes())
    write_whole(file, text)
    return copy
