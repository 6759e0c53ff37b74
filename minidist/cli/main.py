"""The command line: training, verification, demonstrations, plans, and the course.

A command's module is imported when the command is called: ``minidist check`` starts without the demonstrations. In an
MPI job every process calls the command, process 0 runs it, and the others are its ranks.
"""

import argparse
import codecs
import json
import os
import sys
import tomllib
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib import import_module

from minidist import __version__
from minidist.launched import Launched, launched

MODULES = {  # a module whose ``add_commands`` adds commands -> the names of the commands
    "minidist.cli.train.command": ("train",),
    "minidist.cli.verify": ("verify",),
    "minidist.cli.checkpoint": ("checkpoint",),
    "minidist.cli.data": ("data",),
    "minidist.cli.demo": ("demo",),
    "minidist.cli.failures": ("failures",),
    "minidist.cli.hardware": ("hardware",),
    "minidist.cli.plan": ("plan", "explore"),
    "minidist.cli.scaling": ("scaling",),
    "minidist.cli.tokenizer": ("tokenizer",),
    "minidist.course.challenges.command": ("challenge",),
    "minidist.course.commands": ("check", "reset", "grade", "mutants", "stubs", "release"),
}

PLAIN = str.maketrans(  # replacements in an encoding that lacks a character; one for one, so that tables stay aligned
    "▁▂▃▄▅▆▇█▀■▼▸◂─━═╌│┃║╱├┤┬┴┼┏┓┗┛┡┩┳┻╇╈┌┐└┘→←↑↓✓✗×·−–…µγΣ√²ᵀ⌈⌉≥",
    "_.-:=+*###v><----|||/+++++++++++++++++++><^vvxx.--.ugS/2T[]>",
) | dict.fromkeys(range(0x2801, 0x2900), ord("."))  # braille, of which curves consist
OUT_OF_MEMORY = "out of memory: choose a smaller model, a smaller micro-batch or fewer ranks"
FIRST = """minidist trains a transformer on several ranks of this computer, with the same bits in every layout.
Begin with

  minidist demo ring             watch a ring all-reduce, and break it
  minidist verify                train in many layouts and compare the bits
  minidist train --dp 2 --tp 2   train on four ranks
  minidist check                 the exercises: what to do next
  minidist explore               a page of sliders: what a large run costs

minidist --help lists all commands, minidist COMMAND --help the flags of one."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit status.

    0 success; 1 fingerprints differ, or a task, a grader or one of several demonstrations fails; 2 invalid input or
    failure.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    if os.environ.get("COLUMNS") == "0":
        del os.environ["COLUMNS"]  # rich would print nothing
    found = None
    try:
        check_working_folder()
        found = launched_with_others()
        with heard_once(found):
            if not arguments:
                print(FIRST)
                return 0
            options = build_parser(arguments[0]).parse_args(with_config_file(arguments))
        return options.command(options) if found is None else run_in_job(options, found)
    except (BrokenPipeError, SystemExit) as end:  # the reader of the output has closed it, as `| head` does
        if isinstance(end, SystemExit) and not isinstance(end.__context__, BrokenPipeError):
            raise
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  Python flushes it at exit
        return 141  # rich ends with 1, which means that a fingerprint differs or a task fails
    except MemoryError as error:
        problem = str(error) or OUT_OF_MEMORY
    except (ValueError, RuntimeError, OSError) as error:
        problem = _explain(error)
    with heard_once(found):
        _print_error(problem)
    return 2


def with_config_file(arguments: list[str]) -> list[str]:
    """Put the settings of ``--config FILE`` before the other flags, which override them.

    The file has ``name = value``, in TOML or JSON, in tables of any name or in none.

    Raises:
        ValueError: if the file cannot be read, or is neither TOML nor a JSON object.
    """
    finder = _Parser(add_help=False, allow_abbrev=False)
    finder.add_argument("--config")
    path = finder.parse_known_args(arguments)[0].config
    if path is None:
        return arguments
    try:
        with open(path, "rb") as file:
            content = json.load(file) if path.endswith(".json") else tomllib.load(file)
        if not isinstance(content, dict):
            raise ValueError("expected a JSON object")
    except (OSError, ValueError) as error:
        raise ValueError(f"--config {path}: {error}") from None
    if "fingerprint" in content:  # a file that --json wrote, which has results as well
        content = {key: content.get(key) for key in ("layout", "config", "init_from")}
    from minidist.train.config import TrainConfig
    from minidist.train.layout import Layout

    numbers = TrainConfig.__dataclass_fields__.keys() | Layout.__dataclass_fields__.keys()  # no setting is a bool
    flags = []
    for key, value in content.items():
        if key == "layout" and isinstance(value, str):
            value = {name: text for name, _, text in (item.partition("=") for item in value.split(","))}
        for name, setting in value.items() if isinstance(value, dict) else [(key, value)]:
            flag = "--" + name.replace("_", "-")
            for one in setting if isinstance(setting, list) else [setting]:
                one = int(one) if isinstance(one, bool) and name.replace("-", "_") in numbers else one
                flags += [] if one is None or one is False else [flag] if one is True else [f"{flag}={one}"]
    return [arguments[0], *flags, *arguments[1:]]


def print_in_any_encoding() -> None:
    """Print characters that an encoding lacks as similar ones of ASCII, or as "?", so that they end no command."""

    def plain(error) -> tuple[str, int]:  # a UnicodeEncodeError
        lacking = error.object[error.start : error.end].translate(PLAIN)
        return lacking.encode("ascii", "replace").decode(), error.end

    codecs.register_error("plain", plain)
    for stream in (sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):  # a replaced stream may lack it
            reconfigure(errors="plain")


def _explain(error: Exception) -> str:
    """Return one line for an error that the settings cause, the full traceback for a bug in the program."""
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


def check_working_folder() -> None:
    """Raise ValueError if the current folder has been removed: half of what follows would fail."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise ValueError("the current folder has been removed: change to another one") from None


class _Parser(argparse.ArgumentParser):
    """Argument parser that quotes arguments in its errors without control characters."""

    def error(self, message: str):
        super().error("".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in message))


def build_parser(command: str = "") -> argparse.ArgumentParser:
    """Build the parser of this command, or of all commands if none has that name."""
    parser = _Parser(
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
    from minidist.cli.output import printable  # imports rich, which not every command needs

    print(f"minidist: {printable(text)}", file=sys.stderr)


def launched_with_others() -> Launched | None:
    """Return this process's rank and size as its launcher says; None unless it has started others too."""
    found = launched()
    return found if found is not None and found.size > 1 else None


@contextmanager
def heard_once(found: Launched | None) -> Iterator[None]:
    """Context manager: inside, only process 0 of a job prints, because all processes print the same."""
    if found is None or found.rank == 0:
        yield
        return
    with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield


def run_in_job(options: Namespace, found: Launched) -> int:
    """Run a command that trains on the ranks of the job, any other in process 0 alone; return the exit status."""
    if not getattr(options, "on_ranks", False):
        return options.command(options) if found.rank == 0 else 0
    from minidist.comm.runtime.job import Job

    with heard_once(found):
        job = Job(found)
        from minidist.comm.runtime.job_cluster import leading, serve  # they need MPI, which Job checks for first

        for line in job.comm.gather(job.where()) or ():  # process 0 prints where all ranks are
            print(line, file=sys.stderr)
    if job.rank:
        return serve(job)
    with leading(job):
        return options.command(options)
