"""What is said of an error in a rank's function: one line, and the traceback of the user's code."""

import os
import traceback

from minidist.comm.failures import Mismatch, is_plumbing


def summary(error: BaseException) -> str:
    lines = list(
        traceback.TracebackException.from_exception(error).format_exception_only()
    )  # survives a failing __str__
    if isinstance(error, SyntaxError) and error.filename:  # the other lines show the location, not the error
        lines = [lines[-1].rstrip() + f" ({os.path.basename(error.filename)}, line {error.lineno})"]
    kind, colon, text = "".join(lines).strip().partition(": ")
    if isinstance(error, MemoryError) and not text:  # Python gives it none
        colon, text = ": ", "out of memory"
    return f"{kind.rpartition('.')[2]}{colon}{text}"


def own_traceback(error: BaseException, caller: str) -> str:
    """The traceback of the user's code: without the frames of ``caller``, the file that called it, and, if two ranks
    disagree, without the library's frames below it, which are not at fault."""
    whole = traceback.TracebackException.from_exception(error)
    frames = [frame for frame in whole.stack if frame.filename != caller]
    while isinstance(error, Mismatch) and len(frames) > 1 and is_plumbing(frames[-1].filename):
        frames.pop()
    whole.stack = traceback.StackSummary.from_list(frames)
    return "".join(whole.format())
