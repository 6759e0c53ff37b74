"""Starts the judge of one answer in a workplace, which ends all its processes, and reads its result."""

import json
import sys
from collections.abc import Callable

from minidist.course.answers import Source
from minidist.course.challenges.challenge import Challenge, Result
from minidist.course.grading.limits import Limits
from minidist.course.grading.workplace import Workplace

SECONDS = 60.0  # for one answer: a single call may take ten seconds, and most take milliseconds


def run_judge(
    workplace: Workplace,
    challenge: Challenge,
    source: Source,
    limits: Limits | None = None,
    meanwhile: Callable[[], None] = lambda: None,
) -> Result:
    """Judge one answer, whatever it does.

    Args:
        workplace: where the judge runs.
        source: the answer; a copy of it is judged.
        limits: limits of a submission; None for a learner's own answer.
        meanwhile: called every now and then; its exceptions end everything.
    """
    ours, theirs = workplace.new_folder(), workplace.new_folder()
    copy = theirs / f"{challenge.module}.py"
    copy.write_text(source.text, encoding="utf-8", errors="backslashreplace")
    result, output = ours / "result", ours / "output"
    command = [sys.executable, "-m", "minidist.course.challenges.judge", str(challenge.chapter), str(copy), str(result)]
    command.append(str(limits.memory) if limits else "")
    environment = {"TMPDIR": str(ours), "PYTHONDONTWRITEBYTECODE": "1"}
    seconds = min(SECONDS, limits.seconds) if limits else SECONDS
    processes = limits.processes if limits else None
    outcome = workplace.run(command, environment, ours, output, seconds, processes, meanwhile)
    if outcome.status == 0 and result.exists():  # a judge that was killed has not written its result
        fields = json.loads(result.read_text(encoding="utf-8"))
        return Result(fields["score"], fields["message"], tuple(fields["remarks"]))
    if outcome.exceeded == "time":
        return Result(None, f"not judged within {seconds:g} s")
    if outcome.exceeded == "processes":
        return Result(None, f"it exceeded the limit of {processes} processes")
    printed = output.read_text(encoding="utf-8", errors="replace").strip()[-1000:]
    return Result(None, f"it ended the judging process\n{printed}".strip())
