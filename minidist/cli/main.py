"""The command line: training, verification, demonstrations, plans, and the course.

A command's module is imported when the command is called: ``minidist check`` starts without the demonstrations.
"""

import argparse
import os
import sys
from importlib import import_module

from minidist import __version__
from minidist.cli.job import heard_once, launched_with_others, run_in_job

MODULES = {  # a module whose ``add_commands`` adds commands -> the names of the commands
    "minidist.cli.train.command": ("train",),
    "minidist.cli.verify": ("verify",),
    "minidist.cli.checkpoint": ("checkpoint",),
    "minidist.cli.demo.command": ("demo",),
    "minidist.cli.failures": ("failures",),
    "minidist.cli.hardware": ("hardware",),
    "minidist.cli.plan.command": ("plan",),
    "minidist.cli.scaling": ("scaling",),
    "minidist.cli.explore": ("explore",),
    "minidist.course.challenges.command": ("challenge",),
    "minidist.course.commands": ("check", "reset", "grade", "mutants", "stubs"),
}

OUT_OF_MEMORY = "out of memory: choose a smaller model, a smaller micro-batch or fewer ranks"


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status.

    0 success, 1 fingerprints differ or one of several demonstrations failed, 2 invalid input or failure.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    found = None
    try:
        found = launched_with_others()
        with heard_once(found):
            options = build_parser(arguments[0] if arguments else "").parse_args(arguments)
        return options.command(options) if found is None else run_in_job(options, found)
    except BrokenPipeError:  # whoever reads the output has closed it, as `| head` does
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  Python flushes it at exit
        return 141
    except MemoryError as error:
        problem = str(error) or OUT_OF_MEMORY
    except (ValueError, RuntimeError, OSError) as error:
        problem = _explain(error)
    with heard_once(found):
        _print_error(problem)
    return 2


def _explain(error: Exception) -> str:
    """One line for an error that the settings cause; the full traceback for a bug in the program."""
    from minidist.comm import Deadlock, Hang, RankFailed  # no error comes from there before it is imported

    if isinstance(error, Deadlock | Hang):
        return f"{type(error).__name__}: {error}"
    if not isinstance(error, RankFailed):
        return str(error) or type(error).__name__
    kind, _, text = error.summary.partition(": ")
    if kind in ("FloatingPointError", "CorruptedNumbers"):
        return text
    if kind == "_ArrayMemoryError":  # NumPy's, which names the array
        return f"rank {error.rank}: {text}"
    if kind == "MemoryError":
        return f"rank {error.rank}: {OUT_OF_MEMORY}"
    return f"RankFailed: {error}"


def build_parser(command: str = "") -> argparse.ArgumentParser:
    """The parser of this command, or of all commands where there is none of that name."""
    parser = argparse.ArgumentParser(
        prog="minidist",
        description="Train a transformer on several ranks of one laptop, with the same bits in every layout.",
    )
    parser.add_argument("--version", action="version", version=f"minidist {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    named = [module for module, names in MODULES.items() if command in names]
    for module in named or MODULES:
        import_module(module).add_commands(commands)
    return parser


def _print_error(text: str) -> None:
    from minidist.cli.output import printable  # with rich, which not every command needs

    print(f"minidist: {printable(text)}", file=sys.stderr)
