"""Judges one answer in a process of its own: ``python -m minidist.course.challenges.judge CHAPTER FILE RESULT GIB``.

The answer runs in rank processes (course/sandbox); this process counts what came back. Its result is a file that run.py
reads: no answer returns its own score.
"""

import json
import math
import sys
from dataclasses import asdict
from pathlib import Path

from minidist.comm.failures import Deadlock, RankFailed
from minidist.course.answers import Source, read_source
from minidist.course.authoring.explanations import explain
from minidist.course.challenges.catalogue import challenge_of
from minidist.course.challenges.challenge import Challenge, Result
from minidist.course.readable import readable
from minidist.course.sandbox.in_rank import Contract
from minidist.course.sandbox.limits import set_limits
from minidist.course.sandbox.student import Student
from minidist.course.sandbox.warm_ranks import WarmRanks

# What ranks import before they run an answer: imports do not count as its time.
RANK_MODULES = (
    "minidist.course.challenges.catalogue",
    "minidist.train.trainer",
    "minidist.course.sandbox.warm_start",
)
WRONG = (AssertionError, RankFailed, Deadlock, TimeoutError, ValueError, TypeError, KeyError, IndexError)


def judge(challenge: Challenge, source: Source, ranks: WarmRanks) -> Result:
    """The score of an answer, or what is wrong with it."""
    student = Student(source, Contract(f"challenge {challenge.chapter}"), ranks)
    try:
        score = float(challenge.score(student))
        assert math.isfinite(score) and score > 0, f"this answer costs {score:g} {challenge.unit}, which is impossible"
    except WRONG as error:
        message, where = explain(error, source.name)
        return Result(None, readable(f"{message}\n{where}".strip()))
    return Result(score, "", tuple(map(readable, student.remarks)))


def main(chapter: str, file: str, result: str, memory: str) -> None:
    set_limits(float(memory) if memory else None)
    source = read_source(Path(file))
    with WarmRanks(RANK_MODULES) as ranks:
        found = judge(challenge_of(chapter), source, ranks)
    Path(result).write_text(json.dumps(asdict(found)), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
