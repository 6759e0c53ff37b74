"""``minidist reset``: starts a task or a chapter over and keeps a copy of what was there."""

from pathlib import Path

from minidist.course.answers import chapter_of, course_folder, read_answers, write_atomically
from minidist.course.source.stubs import definitions_by_task, replace_definitions, stub_of

BACKUPS = ".backups"


def plan_reset(target: str, folder: Path) -> tuple[Path, str, str]:
    """What a reset would do: the file, its new text, and a description of what it would replace.

    Args:
        target: a task ("3.4") or chapter ("3").
        folder: the learner's answers.

    Raises:
        ValueError: if the target does not exist, or is a task in a file that is not Python.
    """
    name = chapter_of(target)
    solution = read_answers(course_folder("solutions"))[name].text
    stub, definitions = stub_of(solution, name), definitions_by_task(solution)
    file = folder / f"{name}.py"
    if "." not in target or not file.exists():
        return file, stub, f"everything you wrote in {file.name}"
    if target not in definitions:
        raise ValueError(f"there is no task {target}; chapter {target.partition('.')[0]} has {', '.join(definitions)}")
    try:
        text = replace_definitions(file.read_text(encoding="utf-8"), stub, definitions[target])
    except SyntaxError as error:
        raise ValueError(
            f"{file.name}, line {error.lineno}: {error.msg}. Fix that line first, or start the whole chapter over: "
            f"minidist reset {target.partition('.')[0]}"
        ) from None
    return file, text, f"what you wrote in {', '.join(definitions[target])} of {file.name}"


def write_reset(file: Path, text: str) -> Path | None:
    """Write the new text; returns the copy of the old one, or None if there was no file."""
    copy = None
    if file.exists():
        folder = file.parent / BACKUPS
        folder.mkdir(exist_ok=True)
        numbers = [int(old.stem.rpartition("-")[2]) for old in folder.glob(f"{file.stem}-*.py")]
        copy = folder / f"{file.stem}-{max(numbers, default=0) + 1}.py"
        copy.write_bytes(file.read_bytes())
    write_atomically(file, text)
    return copy
