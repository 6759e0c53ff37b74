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
        _say_error(_described(error))
    except Deadlock as error:
        _say_error(f"Deadlock: {error}")
    except BrokenPipeError:  # who reads our output has gone, as in `| head`
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  Python flushes it on its way out
        return 141
    except MemoryError as error:
        _say_error(str(error) or OUT_OF_MEMORY)
    except (ValueError, RuntimeError, OSError) as error:
        _say_error(str(error) or type(error).__name__)
    except KeyboardInterrupt:
        _say_error("interrupted; all ranks have ended")
        return 130
    return 2


def _described(error: RankFailed) -> str:
    """What the settings have caused, in a line; a fault of the program with its traceback."""
    kind, _, text = error.summary.partition(": ")
    if kind == "FloatingPointError":
        return text
    if kind in ("MemoryError", "_ArrayMemoryError"):  # Python's own says nothing, NumPy's says of which array
        return f"rank {error.rank}: {text or OUT_OF_MEMORY}"
    return f"RankFailed: {error}"


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
