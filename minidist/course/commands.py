"""The course's commands: check, reset, grade, mutants, stubs, release."""

import argparse
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from rich.console import Console

from minidist.course.answers import implementation_folder, shown_path
from minidist.course.authoring.mutants import catch_mutants
from minidist.course.grading.grade_class import grade_class
from minidist.course.grading.workplace import Limits
from minidist.course.learner.check import check, hint
from minidist.course.learner.watch import watch
from minidist.course.stubs import plan_reset, release, write_reset, write_stubs


def add_commands(commands) -> None:
    """Add the commands to the subparsers of the command line."""

    def add(run: Callable[[argparse.Namespace], int], help: str, description: str) -> argparse.ArgumentParser:
        command = commands.add_parser(run.__name__[1:], help=help, description=description)
        command.set_defaults(command=run)
        return command

    command = add(
        _check,
        "check your exercises and see what to do next",
        "Judge the tasks that have changed and show the chapter whose file you saved last.",
    )
    command.add_argument(
        "target",
        nargs="?",
        metavar="TASK",
        help="show this chapter (3), or judge this task (3.4) although it has not changed, with all details",
    )
    command.add_argument("--all", action="store_true", help="judge every task again and show every chapter")
    command.add_argument(
        "--hint",
        nargs="+",
        metavar=("TASK", "N"),
        help="print the first hint for a task (3.4) or a chapter (3) without judging it, or its first N hints: the "
        "last one nearly gives the code",
    )
    command.add_argument("--watch", action="store_true", help="judge again whenever you save a file")
    _add_impl(command, "answers to judge: exercises, solutions or a folder")

    command = add(
        _reset,
        "start an exercise over",
        "Restore the stub of a task or chapter. A copy of your work goes to exercises/.backups/.",
    )
    command.add_argument("target", metavar="TASK", help="chapter (3) or task (3.4)")
    command.add_argument("--yes", action="store_true", help="reset without asking")
    _add_impl(command, "folder of answers")

    command = add(
        _grade,
        "for lecturers: grade a folder of submissions",
        "Grade every folder and zip file in SUBMISSIONS, each in processes of its own with limits. "
        "Read docs/grading.md first: it says what this protects against and what it does not.",
    )
    command.add_argument(
        "submissions", metavar="SUBMISSIONS", help="folder that holds a folder or zip file for each student"
    )
    command.add_argument("--out", default="grades", metavar="FOLDER", help="folder for the grades (default: grades)")
    command.add_argument(
        "--timeout", type=float, default=600, metavar="S", help="time limit per submission, seconds (default: 600)"
    )
    command.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="submissions to grade at the same time (default: 1)"
    )
    command.add_argument(
        "--memory", type=float, default=4.0, metavar="GIB", help="memory limit per process, GiB (default: 4)"
    )
    command.add_argument(
        "--processes", type=int, default=64, metavar="N", help="limit on concurrent processes (default: 64)"
    )
    command.add_argument(
        "--task", action="append", default=[], metavar="TASK", help="grade only this chapter (3) or task (3.4)"
    )

    command = add(
        _mutants,
        "for authors: show that the graders catch every mutant",
        "Judge mutants: solutions with one bug each. Exit status 1 if one is not caught.",
    )
    command.add_argument("target", nargs="?", metavar="TASK", help="judge only this chapter (3) or task (3.4)")

    command = add(
        _stubs,
        "for authors: generate exercises/ from solutions/",
        "Generate every exercise from its solution. Without --force, existing files stay as they are.",
    )
    command.add_argument("--force", action="store_true", help="overwrite exercises that differ")

    command = add(
        _release,
        "write the course to a new folder, to work on or to hand out",
        "Write chapters, exercises, solutions, graders and library to a new folder, where everything works as in a "
        "clone. Lecturers can leave the solutions out.",
    )
    command.add_argument("folder", metavar="DIR", type=Path, help="the new folder")
    command.add_argument("--without-solutions", action="store_true", help="with stubs in place of the solutions")


def _add_impl(command: argparse.ArgumentParser, text: str) -> None:
    command.add_argument("--impl", default="exercises", metavar="FOLDER", help=f"{text} (default: exercises)")


def _check(options) -> int:
    console = Console(highlight=False, markup=False)
    if options.hint:
        hint(console, *_hint(options.hint))
        return 0
    if options.watch:
        watch(console, options.impl, options.target, options.all)
        return 0
    return 0 if check(console, options.impl, options.target, options.all) else 1


def _hint(values: list[str]) -> tuple[str, int]:
    """Parse the values of ``--hint``: return the task and the number of hints."""
    target, *level = values
    if len(level) > 1 or not all(text.isdecimal() for text in level):
        raise ValueError(f"--hint {' '.join(values)}: expected a task and a number, such as --hint 3.4 2")
    return target, int(level[0]) if level else 1


def _reset(options) -> int:
    file, text, names = plan_reset(options.target, implementation_folder(options.impl))
    path = shown_path(file)
    if file.exists() and file.read_text(encoding="utf-8", errors="replace") == text:
        print(f"{names or 'everything'} in {path} is untouched: nothing to reset")
        return 0
    lost = f"what you wrote in {names} of {path}" if names else f"everything you wrote in {path}"
    if not options.yes and file.exists():
        if sys.stdin is None or not sys.stdin.isatty():  # None if it is closed
            raise ValueError(f"this would replace {lost}; confirm with --yes")
        answer = ""
        with suppress(EOFError):  # Ctrl-D
            answer = input(f"Replace {lost}? A copy is kept. [y/N] ")
        if answer.strip().lower() not in ("y", "yes"):
            print("nothing changed")
            return 0
    copy = write_reset(file, text)
    print(f"wrote {path}" + (f"; your work is saved in {shown_path(copy)}" if copy else ""))
    return 0


def _grade(options) -> int:
    from minidist.course.challenges.grade_challenges import grade_challenges  # no other command needs the challenges

    limits = Limits(options.timeout, options.memory, options.processes)
    console = Console(highlight=False, markup=False)
    submissions, out = Path(options.submissions), Path(options.out)
    grade_class(console, submissions, out, limits, options.jobs, options.task)
    grade_challenges(console, submissions, out, limits, options.jobs, options.task)
    return 0


def _mutants(options) -> int:
    return 0 if catch_mutants(Console(highlight=False, markup=False), options.target) else 1


def _stubs(options) -> int:
    changed = write_stubs(options.force)
    folder = shown_path(implementation_folder("exercises"))
    print("\n".join(f"wrote {folder}/{name}" for name in changed) or f"all exercises in {folder}/ are up to date")
    return 0


def _release(options) -> int:
    release(options.folder, not options.without_solutions)
    print(f"wrote the course to {options.folder}; there, pip install -e '.[course]', then minidist check")
    return 0
