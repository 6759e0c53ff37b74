"""Judges one answer in a process of its own: ``python -m minidist.course.challenges.judge CHAPTER FILE RESULT``.

``run_judge`` starts that process in a workplace, which ends all that it starts. The answer runs in rank processes
(course/sandbox), and the judge counts what came back. Its result is a file: no answer returns its own score.
"""

import json
import math
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

from minidist.comm.failures import Deadlock, RankFailed
from minidist.course.answers import Source, read_source
from minidist.course.challenges.challenge import Challenge, Result
from minidist.course.challenges.scoring import challenge_of
from minidist.course.grading.workplace import NO_LIMITS, Limits, Workplace
from minidist.course.sandbox.in_rank import Contract
from minidist.course.sandbox.student import Student, WarmRanks
from minidist.course.tasks import readable

# Modules that ranks import before they run an answer: imports do not count as its time.
RANK_MODULES = (
    "minidist.course.challenges.scoring",
    "minidist.train.trainer",
    "minidist.course.sandbox.warm_start",
)
SECONDS = 60.0  # for one answer: a single call may take ten seconds, and most take milliseconds
WRONG = (AssertionError, RankFailed, Deadlock, TimeoutError, ValueError, TypeError, KeyError, IndexError)


def judge(challenge: Challenge, source: Source, ranks: WarmRanks) -> Result:
    """Judge an answer: return its score, or what is wrong with it."""
    from minidist.course.authoring.judging import explain  # imports pytest, which only a judge needs

    student = Student(source, Contract(f"challenge {challenge.chapter}"), ranks)
    try:
        score = float(challenge.score(student))
        assert math.isfinite(score) and score > 0, f"this answer costs {score:g} {challenge.unit}, which is impossible"
    except WRONG as error:
        message, where = explain(error, source.name)
        return Result(None, readable(f"{message}\n{where}".strip()))
    return Result(score, "", tuple(map(readable, student.remarks)))


def run_judge(
    workplace: Workplace,
    challenge: Challenge,
    source: Source,
    limits: Limits = NO_LIMITS,
    meanwhile: Callable[[], None] = lambda: None,
) -> Result:
    """Judge an answer in a process of its own, whatever the answer does.

    Args:
        source: the answer; a copy of it is judged.
        meanwhile: called repeatedly while the judge runs; an exception that it raises ends everything.
    """
    ours, theirs = workplace.new_folder(), workplace.new_folder()
    copy = theirs / f"{challenge.module}.py"
    copy.write_text(source.text, encoding="utf-8", errors="backslashreplace")
    result, output = ours / "result", ours / "output"
    command = [sys.executable, "-m", "minidist.course.challenges.judge", str(challenge.chapter), str(copy), str(result)]
    environment = {"TMPDIR": str(ours), "PYTHONDONTWRITEBYTECODE": "1"}
    limits = replace(limits, seconds=min(SECONDS, limits.seconds))
    outcome = workplace.run(command, environment, ours, output, limits, meanwhile)
    if outcome.status == 0 and result.exists():  # a judge that was killed has not written its result
        fields = json.loads(result.read_text(encoding="utf-8"))
        return Result(fields["score"], fields["message"], tuple(fields["remarks"]))
    if outcome.exceeded == "time":
        return Result(None, f"not judged within {limits.seconds:g} s")
    if outcome.exceeded == "processes":
        return Result(None, f"it exceeded the limit of {limits.processes} processes")
    printed = output.read_text(encoding="utf-8", errors="replace").strip()[-1000:]
    return Result(None, f"it ended the judging process\n{printed}".strip())


def main(chapter: str, file: str, result: str) -> None:
    source = read_source(Path(file))
    with (ranks := WarmRanks(RANK_MODULES)):
        found = judge(challenge_of(chapter), source, ranks)
    Path(result).write_text(json.dumps(asdict(found)), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
