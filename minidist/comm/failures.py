"""Errors of runs and ranks, and the words in which they describe what happened."""

import copyreg
import os
import signal
import sys
import sysconfig
import traceback

_HERE = os.path.dirname(os.path.abspath(__file__))


class Failure(RuntimeError):
    """An error that ended a run. It can be copied and pickled, so a pool's worker can send it to the pool's owner.

    (By default, Python calls a copied exception's constructor with the message alone.)
    """

    def __reduce__(self) -> tuple:
        new = copyreg.__newobj__  # pyright: ignore[reportAttributeAccessIssue]  # typeshed lacks it
        return new, (type(self), *self.args), self.__dict__


class RankFailed(Failure):
    """A rank raised an exception, exited or was killed, which ended the run.

    Attributes:
        rank: the rank that failed first.
        summary: the error in one line, such as "ValueError: no such shard".
        traceback_text: that rank's own traceback; "" if it left none, as after a signal.
        exitcode: the exit status of its process, negative for a signal; None if it raised an exception.
        ranks: that rank, and the ranks whose processes ended before they could hear that the run had failed.
    """

    def __init__(
        self,
        message: str,
        rank: int,
        summary: str,
        traceback_text: str = "",
        exitcode: int | None = None,
        ranks: tuple[int, ...] = (),
    ) -> None:
        super().__init__(message)
        self.rank, self.summary, self.traceback_text, self.exitcode = rank, summary, traceback_text, exitcode
        self.ranks = ranks or (rank,)


class Deadlock(Failure):
    """Ranks wait for each other, or for a rank that has finished, so none of them can ever continue.

    Attributes:
        waiting: rank in the deadlock -> the call in which it waits, for which rank, and where.
    """

    def __init__(self, message: str, waiting: dict[int, str]) -> None:
        super().__init__(message)
        self.waiting = waiting


class Hang(Failure):
    """No rank has reported anything for longer than the run's patience, and yet they are not deadlocked.

    A rank that computes forever looks like one that is slow, so this is a judgement, like that of NCCL's watchdog.

    Attributes:
        ranks: ranks that did not wait for others; the others may have waited for them.
        doing: rank that had not finished -> what it was doing.
    """

    def __init__(self, message: str, ranks: tuple[int, ...], doing: dict[int, str]) -> None:
        super().__init__(message)
        self.ranks, self.doing = ranks, doing


class Mismatch(RuntimeError):
    """Two ranks disagree about a message or a collective: its name, order, dtype or shape."""


class Aborted(BaseException):
    """Raised in a waiting rank after the parent has ended the run. No ``except Exception`` of a rank function catches
    it, because it is a BaseException."""


def caller() -> str:
    """Return the innermost line of the user's code, as 'at train.py:12 in main'; '' on a thread that runs none."""
    frame = users_frame(sys._getframe(1))
    return "" if frame is None else f"at {describe_frame(frame)}"


def users_frame(frame):
    """Return the first frame of the user's code from ``frame`` outwards; None if there is none."""
    while frame is not None and is_plumbing(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def describe_frame(frame) -> str:
    name = os.path.basename(frame.f_code.co_filename)
    if "ipykernel" in frame.f_code.co_filename:  # its file name is a number that means nothing to the author
        name = "notebook cell"
    return f"{name}:{frame.f_lineno} in {frame.f_code.co_name}"


_LIBRARIES = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib"))
_GROUND_FLOOR = os.path.dirname(_HERE)  # the trace and the overrides are called from everywhere
_plumbing = [_HERE + os.sep, *_LIBRARIES]


def add_plumbing(folder: str) -> None:
    """Make locations in error messages skip one more folder, of a package that runs a user's code."""
    if folder + os.sep not in _plumbing:
        _plumbing.append(folder + os.sep)


def is_plumbing(filename: str) -> bool:
    """Return whether a file belongs to this package, to Python or to an installed package, and so is not the user's."""
    made_up = filename.startswith(("<string>", "<frozen"))  # code that has no file
    return made_up or os.path.dirname(filename) == _GROUND_FLOOR or filename.startswith(tuple(_plumbing))


_LIKELY_CAUSES = {
    "SIGKILL": "kill -9, or the system ran out of memory and chose this process",
    "SIGSEGV": "a compiled library accessed memory outside its own",
    "SIGBUS": "shared memory that the system could not provide: is /dev/shm full?",
    "SIGABRT": "a compiled library gave up: look for its message above",
    "SIGTERM": "another process asked it to end",
    "SIGFPE": "an integer division by zero in compiled code",
}


def describe_exit(exitcode: int) -> str:
    """Return 'was killed by SIGKILL (likely: ...)' or 'exited with status 3 during the run'."""
    if exitcode >= 0:
        return f"exited with status {exitcode} during the run"
    try:
        name = signal.Signals(-exitcode).name
    except ValueError:
        return f"was killed by signal {-exitcode}"
    cause = _LIKELY_CAUSES.get(name)
    return f"was killed by {name}" + (f" (likely: {cause})" if cause else "")


def summary(error: BaseException) -> str:
    """Return an error's kind and message without its notes, which the traceback shows."""
    own = traceback.TracebackException.from_exception(error)  # survives a failing __str__
    own.__notes__ = None
    lines = list(own.format_exception_only())
    if isinstance(error, SyntaxError) and error.filename:  # the other lines show the location, not the error
        lines = [lines[-1].rstrip() + f" ({os.path.basename(error.filename)}, line {error.lineno})"]
    kind, colon, text = "".join(lines).strip().partition(": ")
    if isinstance(error, MemoryError) and not text:  # Python gives it none
        colon, text = ": ", "out of memory"
    return f"{kind.rpartition('.')[2]}{colon}{text}"


def own_traceback(error: BaseException, called_in: str) -> str:
    """Return the traceback of the user's code: without the frames of ``called_in``, the file that called it, and for a
    Mismatch without the library's frames at its end, which are not at fault."""
    whole = traceback.TracebackException.from_exception(error)
    frames = [frame for frame in whole.stack if frame.filename != called_in]
    while isinstance(error, Mismatch) and len(frames) > 1 and is_plumbing(frames[-1].filename):
        frames.pop()
    whole.stack = traceback.StackSummary.from_list(frames)
    return "".join(whole.format())
