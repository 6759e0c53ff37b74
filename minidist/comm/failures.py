"""What can go wrong between ranks, and how it is told."""

import os
import signal
import sys
import sysconfig

_HERE = os.path.dirname(os.path.abspath(__file__))


class RankFailed(RuntimeError):
    """A rank raised an exception, exited or was killed, and the run was ended because of it.

    Attributes:
        rank: the rank that failed first.
        summary: the error in one line, such as "ValueError: no such shard".
        traceback_text: that rank's own traceback ("" where it left none, as after a signal).
        exitcode: the exit status of its process, negative for a signal; None where it raised an exception.
    """

    def __init__(
        self, message: str, rank: int, summary: str, traceback_text: str = "", exitcode: int | None = None
    ) -> None:
        super().__init__(message)
        self.rank, self.summary, self.traceback_text, self.exitcode = rank, summary, traceback_text, exitcode


class Deadlock(RuntimeError):
    """Ranks wait for each other, or for a rank that has finished, and none of them can ever go on.

    Attributes:
        waiting: for each rank of the deadlock, the call that it waits in, for whom, and where.
    """

    def __init__(self, message: str, waiting: dict[int, str]) -> None:
        super().__init__(message)
        self.waiting = waiting


class Mismatch(RuntimeError):
    """Two ranks disagree about a message or a collective: its name, order, dtype or shape."""


class Aborted(BaseException):
    """Raised inside a rank that waits when the parent has ended the run. Not an ``Exception``, so that a rank
    function's own ``except Exception`` lets it pass."""


def caller() -> str:
    """Where the innermost code outside this package is: 'at train.py:12 in main', or '' on a thread of its own."""
    frame = sys._getframe(1)
    while frame is not None and is_plumbing(frame.f_code.co_filename):
        frame = frame.f_back
    return "" if frame is None else f"at {describe_frame(frame)}"


def describe_frame(frame) -> str:
    name = os.path.basename(frame.f_code.co_filename)
    if "ipykernel" in frame.f_code.co_filename:  # a number that says nothing to the person who wrote the cell
        name = "notebook cell"
    return f"{name}:{frame.f_lineno} in {frame.f_code.co_name}"


_LIBRARIES = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib"))
_GROUND_FLOOR = os.path.dirname(_HERE)  # the log and the overrides are called from everywhere: nobody looks for them
_plumbing = [_HERE + os.sep, *_LIBRARIES]


def add_plumbing(folder: str) -> None:
    """Have locations in error messages skip the files of one more folder: of a package that runs a user's code."""
    if folder + os.sep not in _plumbing:
        _plumbing.append(folder + os.sep)


def is_plumbing(filename: str) -> bool:
    """Whether a file is none of the user's own: of this package, of Python, or of an installed package."""
    made_up = filename.startswith(("<string>", "<frozen"))  # code without a file
    return made_up or os.path.dirname(filename) == _GROUND_FLOOR or filename.startswith(tuple(_plumbing))


_LIKELY_CAUSES = {
    "SIGKILL": "kill -9, or the system ran out of memory and chose this process",
    "SIGSEGV": "a compiled library touched memory that is not its own",
    "SIGBUS": "shared memory that the system could not provide: is /dev/shm full?",
    "SIGABRT": "a compiled library gave up: look for its message above",
    "SIGTERM": "something asked the process to end",
    "SIGFPE": "an integer division by zero in compiled code",
}


def describe_exit(exitcode: int) -> str:
    """'was killed by SIGKILL (likely: ...)' or 'exited with status 3'."""
    if exitcode >= 0:
        return f"left with exit status {exitcode} in the middle of the run"
    try:
        name = signal.Signals(-exitcode).name
    except ValueError:
        return f"was killed by signal {-exitcode}"
    cause = _LIKELY_CAUSES.get(name)
    return f"was killed by {name}" + (f" (likely: {cause})" if cause else "")
