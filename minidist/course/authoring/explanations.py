"""Explains an error the way a learner needs it: what is wrong, and where in the learner's own file."""

import re

import pytest

from minidist.comm.failures import Deadlock, RankFailed
from minidist.course.sandbox.violations import VIOLATIONS


class ToDo(Exception):
    """The learner has not started the task."""


def explain(error: BaseException, name: str) -> tuple[str, str]:
    """What is wrong, and the lines of the file of answers of that name that led there."""
    if isinstance(error, RankFailed):
        places = re.findall(rf'["/\\]{name}\.py", line (\d+), in (\S+)', error.traceback_text)
        where = f" (rank {error.rank}, {name}.py:{places[-1][0]} in {places[-1][1]})" if places else ""
        summary = error.summary.removeprefix("AssertionError: ") or "the process ended"
        return f"{summary}{where}", own_frames(error.traceback_text, name)
    if isinstance(error, Deadlock):
        return f"deadlock: {error}", ""
    message = str(error).partition("\nassert ")[0]  # the grader's own words, without pytest's analysis
    return message or type(error).__name__, ""


def own_frames(traceback_text: str, name: str) -> str:
    """The part of a traceback that is in the file of answers of that name: each place with its line of code."""
    kept, keeping = [], False
    for line in traceback_text.splitlines():
        if line.startswith("  File "):
            keeping = f'{name}.py"' in line and f"test_{name}" not in line
        elif not line.startswith("    "):
            keeping = False
        if keeping and not set(line) <= set(" ^~"):
            kept.append(line.strip() if line.startswith("  File ") else line)
    return "\n".join(kept)


def is_to_do(error: BaseException) -> bool:
    """Whether the error means that a stub was reached, in the grading process or in a rank."""
    return isinstance(error, ToDo) or (
        isinstance(error, RankFailed) and error.summary.startswith("NotImplementedError")
    )


def is_violation(error: BaseException) -> bool:
    """Whether the error is more than a wrong result: the answer hangs, ends its process, or violates a rule."""
    if isinstance(error, RankFailed):
        return error.exitcode is not None or error.summary.startswith(tuple(kind.__name__ for kind in VIOLATIONS))
    return isinstance(error, TimeoutError | pytest.fail.Exception)
