"""The course's commands: check, reset, grade, mutants, stubs."""

import argparse
import sys
from pathlib import Path

from rich.console import Console

from minidist.course.answers import implementation_folder
from minidist.course.authoring.mutants import catch_all
from minidist.course.authoring.stubs import write_stubs
from minidist.course.learner.check import check, hint, watch
from minidist.course.learner.reset import plan_reset, write_reset


def add_commands(commands) -> None:
    """Add them to the subparsers of the command line."""
    command = commands.add_parser(
        "check",
        help="judge your exercises, and say what to do next",
        description="Judge the exercises that have changed, and show the chapter that you are in.",
    )
    command.set_defaults(command=_check)
    command.add_argument("wish", nargs="?", metavar="TASK", help="a chapter (3) or task (3.4), judged anew and in full")
    command.add_argument("--all", action="store_true", help="judge and show every chapter")
    command.add_argument("--hint", metavar="TASK", help="print the hint for a task or chapter, and judge nothing")
    command.add_argument("--watch", action="store_true", help="judge again whenever you save a file")
    _add_impl(command, "judge these answers: exercises, solutions or a folder")

    command = commands.add_parser(
        "reset",
        help="begin an exercise anew",
        description="Put the stub of a task or chapter back. What you wrote is kept in exercises/.backups/.",
    )
    command.set_defaults(command=_reset)
    command.add_argument("wish", metavar="TASK", help="a chapter (3) or task (3.4)")
    command.add_argument("--yes", action="store_true", help="do not ask")
    _add_impl(command, "the folder of answers")

    command = commands.add_parser(
        "grade",
        help="for lecturers: grade a folder of submissions",
        description="Grade every folder and zip file in SUBMISSIONS, each in processes of its own with limits. "
        "Read docs/grading.md first: it says what this protects from, and what it does not.",
    )
    command.set_defaults(command=_grade)
    command.add_argument(
        "submissions", metavar="SUBMISSIONS", help="a folder with a folder or zip file for each student"
    )
    command.add_argument("--out", default="grades", metavar="FOLDER", help="where grades go (default: grades)")
    command.add_argument(
        "--timeout", type=float, default=600, metavar="S", help="seconds for one submission (default: 600)"
    )
    command.add_argument("--jobs", type=int, default=1, metavar="N", help="submissions graded at once (default: 1)")
    command.add_argument("--memory", type=float, default=4.0, metavar="GIB", help="for one process (default: 4)")
    command.add_argument("--processes", type=int, default=64, metavar="N", help="at once (default: 64)")
    command.add_argument(
        "--task", action="append", default=[], metavar="TASK", help="only this chapter (3) or task (3.4)"
    )

    command = commands.add_parser(
        "mutants",
        help="for authors: show that the graders catch every planted bug",
        description="Judge solutions with one bug planted in each. Exit status 1 where one is not caught.",
    )
    command.set_defaults(command=_mutants)
    command.add_argument("wish", nargs="?", metavar="TASK", help="only this chapter (3) or task (3.4)")

    command = commands.add_parser(
        "stubs",
        help="for authors: make exercises/ from solutions/",
        description="Make every exercise anew from its solution. Without --force no file that exists is changed.",
    )
    command.set_defaults(command=_stubs)
    command.add_argument("--force", action="store_true", help="overwrite exercises that differ")


def _add_impl(command: argparse.ArgumentParser, text: str) -> None:
    command.add_argument("--impl", default="exercises", metavar="FOLDER", help=f"{text} (default: exercises)")


def _check(options) -> int:
    console = Console(highlight=False, markup=False)
    if options.hint:
        hint(console, options.hint)
        return 0
    if options.watch:
        watch(console, options.impl, options.wish, options.all)
        return 0
    return 0 if check(console, options.impl, options.wish, options.all) else 1


def _reset(options) -> int:
    file, text, lost = plan_reset(options.wish, implementation_folder(options.impl))
    if not options.yes and file.exists():
        if not sys.stdin.isatty():
            raise ValueError(f"this would replace {lost}; say so with --yes")
        if input(f"Replace {lost}? A copy is kept. [y/N] ").strip().lower() not in ("y", "yes"):
            print("nothing was changed")
            return 0
    copy = write_reset(file, text)
    print(f"{file.name} is ready" + (f"; what was there is in {copy.relative_to(file.parent)}" if copy else ""))
    return 0


def _grade(options) -> int:
    try:  # what no other command needs
        from minidist.course.grading.grade import grade
        from minidist.course.grading.supervise import Limits
    except ImportError as error:
        raise ValueError(f"grading needs {error.name}, on Linux or macOS: pip install -e '.[course]'") from None
    limits = Limits(options.timeout, options.memory, options.processes)
    console = Console(highlight=False, markup=False)
    grade(console, Path(options.submissions), Path(options.out), limits, options.jobs, options.task)
    return 0


def _mutants(options) -> int:
    return 0 if catch_all(Console(highlight=False, markup=False), options.wish) else 1


def _stubs(options) -> int:
    changed = write_stubs(options.force)
    print("\n".join(f"made {Path('exercises') / name}" for name in changed) or "all exercises are up to date")
    return 0
