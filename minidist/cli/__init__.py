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


def program() -> int:
    """The command ``minidist``: asked to end, or left by its terminal, it ends as at Ctrl-C, its ranks with it."""
    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.default_int_handler)
    return main()


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status: 0 well, 1 a fingerprint differs, 2 unusable input or a failure."""
    options = build_parser().parse_args(arguments)
    try:
        return options.command(options)
    except RankFailed as error:
        # what the settings have caused is told in a line; a fault of the program with its traceback
        kind, _, text = error.summary.partition(": ")
        _say_error(
            text if kind in ("FloatingPointError", "MemoryError", "_ArrayMemoryError") else f"RankFailed: {error}"
        )
    except Deadlock as error:
        _say_error(f"Deadlock: {error}")
    except BrokenPipeError:  # who reads our output has gone, as in `| head`
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  Python flushes it on its way out
        return 141
    except (ValueError, RuntimeError, MemoryError, OSError) as error:
        _say_error(str(error))
    except KeyboardInterrupt:
        _say_error("interrupted; all ranks have ended")
        return 130
    return 2


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="minidist",
        description="Train a transformer on several ranks of one laptop, every layout on the same bits.",
    )
    parser.add_argument("--version", action="version", version=f"minidist {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    add_train(commands)
    add_verify(commands)
    add_demo(commands)
    add_commands(commands)
    return parser


def _say_error(text: str) -> None:
    print(f"minidist: {text}", file=sys.stderr)
