"""Makes exercises from solutions.

In a solution, two marker comments enclose what the learner should write; the first one names the task:

    # >>> 3.4
    ...
    # <<<

The exercise is the same file with ``raise NotImplementedError`` in that place. A debugging task gives the learner a
program with a bug instead. The buggy lines follow a third marker and are commented out:

    # >>> 3.8
    ...the correct lines...
    # === given to the learner
    # ...the lines with the bug...
    # <<<
"""

import ast
import re
import shutil
from functools import lru_cache, partial
from io import StringIO
from itertools import count
from pathlib import Path

from minidist.course.answers import (
    CHAPTER_FILE,
    LIBRARY,
    chapter_of,
    clone_here,
    course_folder,
    shown_path,
    solutions,
    write_atomically,
)
from minidist.course.dependencies import names_defined

BEGIN = re.compile(r"( *)# >>> (\d+\.\d+)\n")
GIVEN = "# === given to the learner\n"
END = "# <<<\n"
BACKUPS = ".backups"
ANSWER = re.compile(r"^( *)# >>> (\d+\.\d+)\n.*?^ *# <<<\n", re.DOTALL | re.MULTILINE)
HANDED_OUT = (  # files and folders of the course
    "README.md", "AGENTS.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "pyproject.toml",
    "minidist", "chapters", "docs", "solutions", "tests/exercises",
)  # fmt: skip


def stub_of(solution: str, name: str = "the solution") -> str:
    """Return the exercise that belongs to the text of a solution.

    Raises:
        ValueError: if the markers do not come in pairs; the error names the line.
    """
    lines, kept = solution.splitlines(keepends=True), []
    inside = None  # the indentation and the number of the task whose lines are being skipped
    given: list[str] | None = None
    for number, line in enumerate(lines, 1):
        begin = BEGIN.fullmatch(line)
        if (begin and inside) or (line.lstrip() in (END, GIVEN) and not inside):
            raise ValueError(f"{name}, line {number}: this marker does not match the one before it")
        if begin:
            inside, given = begin.groups(), None
        elif not inside:
            kept.append(line)
        elif line.lstrip() == GIVEN:
            given = []
        elif line.lstrip() == END:
            indent, task = inside
            kept += given if given is not None else [f'{indent}raise NotImplementedError("task {task}")\n']
            inside = None
        elif given is not None:
            given.append(re.sub(r"^( *)# ?", r"\1", line))
    if inside:
        raise ValueError(f"{name}: the marker of task {inside[1]} has no end")
    return "".join(kept)


def without_answers(solution: str) -> str:
    """Return a solution as students get it: its markers enclose the stub. ``stub_of`` makes the same stub from it."""

    def hidden(answer: re.Match) -> str:
        indent, task = answer.groups()
        _, marker, given = answer[0].partition(GIVEN)  # given: the rest, END included
        return f"{indent}# >>> {task}\n{stub_of(answer[0])}{indent}{marker}{given or END}"

    return ANSWER.sub(hidden, solution)


def release(folder: Path, solutions: bool) -> None:
    """Write the course to a new folder, with exercises that nobody has touched.

    Args:
        folder: the new folder; ``minidist check`` finds the exercises from any place inside.
        solutions: False replaces solutions by stubs and leaves out the mutants. The graders stay, since students run
            them, and so does the library, although it has most answers in another form.

    Raises:
        ValueError: if the folder exists, is inside the course itself, or cannot be written, as on a full disk.
    """
    if folder.exists():
        raise ValueError(f"{folder} exists already: name a new folder")
    root = clone_here()
    if any(folder.resolve().is_relative_to(root / name) for name in HANDED_OUT):
        raise ValueError(
            f"{folder} is inside the course, which would then contain itself: name a folder outside of {root}"
        )
    try:
        _write_course(root, folder, solutions)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)  # so that its name is free again
        why = error.args[0][0][2] if isinstance(error, shutil.Error) else str(error)  # the first of many
        raise ValueError(f"the course cannot be written to {folder}: {why.partition('] ')[2] or why}") from None


def _write_course(root: Path, folder: Path, solutions: bool) -> None:
    unwanted = shutil.ignore_patterns("__pycache__", ".*", "clone", *([] if solutions else ["mutants"]))
    for name in HANDED_OUT:
        source = root / name if (root / name).exists() else LIBRARY  # a wheel does not hold it twice
        copy = shutil.copy if source.is_file() else partial(shutil.copytree, ignore=unwanted)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        copy(source, folder / name)
    (folder / "exercises").mkdir()
    for file in sorted((folder / "solutions").glob("ch*.py")):
        solution = file.read_text(encoding="utf-8")
        (folder / "exercises" / file.name).write_text(stub_of(solution, file.name), encoding="utf-8")
        if not solutions:
            file.write_text(without_answers(solution), encoding="utf-8")


def definitions_by_task(solution: str) -> dict[str, list[str]]:
    """Return the names of the top-level functions and classes that contain each task's markers.

    Raises:
        ValueError: if a marker is outside any function; the error names the line.
    """
    definitions = _definitions(solution)
    names_of: dict[str, list[str]] = {}
    for number, line in enumerate(solution.splitlines(keepends=True), 1):
        if begin := BEGIN.fullmatch(line):
            names = [name for name, (first, last) in definitions.items() if first <= number <= last]
            if not names:
                raise ValueError(f"line {number}: the marker of task {begin[2]} is outside any function")
            known = names_of.setdefault(begin[2], [])
            known += [name for name in names if name not in known]
    return names_of


def _definitions(text: str) -> dict[str, tuple[int, int]]:
    """Return the first and last line of each top-level function and class, including its decorators."""
    return {
        node.name: (min([node.lineno, *(d.lineno for d in node.decorator_list)]), node.end_lineno or node.lineno)
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }


def untouched(text: str, stub: str, names: list[str]) -> bool:
    """Return whether all these functions and classes are still as in the stub, apart from comments and blank lines."""
    mine, given = _code_by_name(text), _code_by_name(stub)
    return all(mine.get(name) == given.get(name) for name in names)


@lru_cache(maxsize=2)  # for the answers and the stub: every test asks again
def _code_by_name(text: str) -> dict[str, list[str]]:
    """Return all top-level code that defines each name; {} if the text is not Python."""
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError):
        return {}
    code: dict[str, list[str]] = {}
    for node in body:
        for name in names_defined(node):
            code.setdefault(name, []).append(ast.dump(node))
    return code


def replace_definitions(text: str, source: str, names: list[str]) -> str:
    """Return the learner's text with these functions and classes taken from ``source``; everything else stays.

    Raises:
        SyntaxError: if the learner's text is not Python.
    """
    for name in names:
        lines = StringIO(text).readlines()  # str.splitlines also breaks where Python does not, as at a form feed
        first, last = _definitions(source)[name]
        pristine = StringIO(source).readlines()[first - 1 : last]
        if name in (mine := _definitions(text)):
            lines[mine[name][0] - 1 : mine[name][1]] = pristine
        else:
            lines += ["\n\n", *pristine]
        text = "".join(lines)
    return text


def write_stubs(force: bool = False) -> list[str]:
    """Generate every exercise from its solution; return the names of the files that changed.

    Raises:
        ValueError: if an existing file would change and ``force`` is not set: it may hold a learner's work.
    """
    solutions, exercises = (course_folder(name, clone_here()) for name in ("solutions", "exercises"))
    generated = {
        file.name: stub_of(file.read_text(encoding="utf-8"), file.name)
        for file in sorted(solutions.glob("ch*.py"))
        if CHAPTER_FILE.fullmatch(file.name)
    }
    changed = {name: text for name, text in generated.items() if _read(exercises / name) != text}
    edited = [name for name in changed if (exercises / name).exists()]
    if edited and not force:
        raise ValueError(
            f"{', '.join(edited)} in {shown_path(exercises)}/ would be overwritten. Use minidist reset to start a task "
            "over, or --force to generate all stubs again and lose what was written there"
        )
    for name, text in changed.items():
        (exercises / name).write_text(text, encoding="utf-8")
    return list(changed)


def _read(file: Path) -> str | None:
    return file.read_text(encoding="utf-8") if file.exists() else None


def plan_reset(target: str, folder: Path) -> tuple[Path, str, str]:
    """Return what a reset would write: the file, its new text, and the names to replace ("" for the whole file).

    Args:
        target: a task ("3.4") or chapter ("3").
        folder: the learner's answers.

    Raises:
        ValueError: if the target does not exist, or is a task in a file that is not Python in UTF-8.
    """
    name = chapter_of(target)
    solution = solutions()[name].text
    stub, definitions = stub_of(solution, name), definitions_by_task(solution)
    file = folder / f"{name}.py"
    if "." in target and target not in definitions:
        raise ValueError(f"there is no task {target}; chapter {target.partition('.')[0]} has {', '.join(definitions)}")
    if "." not in target or not file.exists():
        return file, stub, ""
    try:
        text = replace_definitions(file.read_text(encoding="utf-8-sig"), stub, definitions[target])
    except (SyntaxError, UnicodeDecodeError) as error:
        found = f", line {error.lineno}: {error.msg}" if isinstance(error, SyntaxError) else " is not saved as UTF-8"
        raise ValueError(
            f"{file.name}{found}. Fix that first, or start the whole chapter over: "
            f"minidist reset {target.partition('.')[0]}"
        ) from None
    return file, text, ", ".join(definitions[target])


def write_reset(file: Path, text: str) -> Path | None:
    """Write the new text; return the path of a copy of the old one, or None if there was no file."""
    copy = None
    if file.exists():
        folder = file.parent / BACKUPS
        folder.mkdir(exist_ok=True)
        copy = next(new for n in count(1) if not (new := folder / f"{file.stem}-{n}.py").exists())
        copy.write_bytes(file.read_bytes())
    write_atomically(file, text)
    return copy
