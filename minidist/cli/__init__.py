"""The command line: ``minidist train``, ``minidist verify``, ``minidist demo`` and the course's commands."""

import argparse
import os
import signal
import sys

from minidist import __version__
from minidist.cli.demo import add_demo
from minidist.cli.train import add_train
from minidist.cli.verify import add_verify
from minidist.comm import Deadlock, RankFailed
from minidist.course.commands import add_commands

OUT_OF_MEMORY = "out of memory: choose a smaller model, a smaller micro-batch or fewer ranks"


def program() -> int:
    """The command ``minidist``. SIGTERM and SIGHUP end it, and its ranks, the same way as Ctrl-C."""
    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.default_int_handler)
    return main()


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status: 0 success, 1 fingerprints differ, 2 invalid input or failure."""
    options = build_parser().parse_args(arguments)
    try:
        return options.command(options)
    except RankFailed as error:
        _print_error(_explain(error))
    except Deadlock as error:
        _print_error(f"Deadlock: {error}")
    except BrokenPipeError:  # whoever reads the output has closed it, as `| head` does
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  Python flushes it at exit
        return 141
    except MemoryError as error:
        _print_error(str(error) or OUT_OF_MEMORY)
    except (ValueError, RuntimeError, OSError) as error:
        _print_error(str(error) or type(error).__name__)
    except KeyboardInterrupt:
        _print_error("interrupted; all ranks have ended")
        return 130
    return 2


def _explain(error: RankFailed) -> str:
    """One line for an error that the settings cause; the full traceback for a bug in the program."""
    kind, _, text = error.summary.partition(": ")
    if kind == "FloatingPointError":
        return text
    if kind in ("MemoryError", "_ArrayMemoryError"):  # Python's own message is empty, NumPy's names the array
        return f"rank {error.rank}: {text or OUT_OF_MEMORY}"
    return f"RankFailed: {error}"


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="minidist",
        description="Train a transformer on several ranks of one laptop, with the same bits in every layout.",
    )
    parser.add_argument("--version", action="version", version=f"minidist {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    add_train(commands)
    add_verify(commands)
    add_demo(commands)
    add_commands(commands)
    return parser


def _print_error(text: str) -> None:
    print(f"minidist: {text}", file=sys.stderr)
