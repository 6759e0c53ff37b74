"""The leaderboard of a class: every submission's answers to the challenges, judged again, whatever score they claim."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from minidist.course.answers import write_atomically
from minidist.course.challenges.challenge import FOLDER, Challenge, Result, answer_in, file_in
from minidist.course.challenges.command import number
from minidist.course.challenges.judge import run_judge
from minidist.course.challenges.scoring import CHALLENGES
from minidist.course.grading.grade_class import write_csv
from minidist.course.grading.submissions import File, copy_files, find_files, find_submissions
from minidist.course.grading.workplace import Limits, Workplace, several_at_once
from minidist.course.tasks import readable_line

FILE = "leaderboard.csv"


@dataclass(frozen=True)
class Standing:
    """A student's result in a challenge."""

    challenge: Challenge
    student: str
    result: Result


def grade_challenges(
    console: Console, submissions: Path, out: Path, limits: Limits, jobs: int, targets: Sequence[str]
) -> list[Standing]:
    """Judge every answer to a challenge and write leaderboard.csv, best first; Gradescope's files get the scores too.

    Args:
        submissions, out, limits, jobs: see ``grade_class``, which has created ``out``.
        targets: chapters ("3") whose challenges are judged; none for all. Tasks ("3.4") have no challenges.
    """
    chosen = [challenge for challenge in CHALLENGES if not targets or str(challenge.chapter) in targets]
    entries, _ = find_submissions(submissions)
    with several_at_once(jobs) as (pool, go_on), Console(stderr=True).status("judging challenges"):
        futures = [pool.submit(_judge_student, *entry, chosen, limits, go_on) for entry in entries]
        standings = [standing for future in futures for standing in future.result()]
    standings.sort(key=lambda one: (one.challenge.chapter, one.result.score is None, one.result.score, one.student))
    _write(out, standings)
    if standings:
        console.print(_table(standings))
        console.print(f"{FILE} is in {out}/", soft_wrap=True)
    return standings


def _judge_student(
    student: str, submission: Path, challenges: Sequence[Challenge], limits: Limits, go_on: Callable[[], None]
) -> list[Standing]:
    """Judge a student's answers, except those that are still the library's."""
    try:
        found, _ = find_files(submission, [challenge.module for challenge in challenges])
    except ValueError:
        return []  # the grades report a damaged file
    standings = []
    for challenge in challenges:
        file = f"{challenge.module}.py"
        if file in found:
            go_on()
            try:
                result = _judged(challenge, {file: found[file]}, limits, go_on)
            except Exception as error:  # whatever one answer does, the others are judged
                result = Result(None, f"could not be judged: {type(error).__name__}: {error}")
            standings += [] if result is None else [Standing(challenge, student, result)]
    return standings


def _judged(
    challenge: Challenge, found: dict[str, list[File]], limits: Limits, go_on: Callable[[], None]
) -> Result | None:
    """Judge an answer in a workplace of its own, which it may destroy; return None if it is the library's."""
    with Workplace() as workplace:
        folder = workplace.new_folder()
        file = file_in(folder, challenge)
        file.parent.mkdir()
        remarks = copy_files(found, file.parent, FOLDER)
        if not file.exists():
            return Result(None, "; ".join(remarks))
        source = answer_in(folder, challenge)
        if source is None:
            return None
        result = run_judge(workplace, challenge, source, limits, go_on)
        return replace(result, remarks=(*remarks, *result.remarks))


def _write(out: Path, standings: Sequence[Standing]) -> None:
    rows: list[list] = [["chapter", "challenge", "place", "student", "score", "unit", "library", "remarks"]]
    for place, one in _placed(standings):
        texts = (one.result.message, *one.result.remarks)
        remarks = "; ".join(readable_line(" ".join(text.split())) for text in texts if text)
        challenge, score = one.challenge, one.result.score
        unit, library = challenge.unit, challenge.library
        rows.append([challenge.chapter, challenge.what, place, one.student, score, unit, library, remarks])
    write_csv(out / FILE, rows)
    for student in {one.student for one in standings}:
        _add_to_gradescope(out / "students" / student / "results.json", [s for s in standings if s.student == student])


def _placed(standings: Sequence[Standing]) -> list[tuple[int | str, Standing]]:
    """Pair each standing with its place in its challenge: equal scores share a place, wrong answers have none ("")."""
    placed = []
    for one in standings:
        scores = [other.result.score for other in standings if other.challenge is one.challenge]
        place = "" if (own := one.result.score) is None else 1 + sum(s is not None and s < own for s in scores)
        placed.append((place, one))
    return placed


def _table(standings: Sequence[Standing]) -> Table:
    table = Table(title="leaderboard", title_justify="left")
    for column in ("challenge", "place", "student", "score", "library"):
        table.add_column(column, justify="left" if column in ("challenge", "student") else "right")
    for place, one in _placed(standings):
        challenge = one.challenge
        score = "no score" if one.result.score is None else f"{number(one.result.score)} {challenge.unit}"
        library = f"{number(challenge.library)} {challenge.unit}"
        table.add_row(f"{challenge.chapter}  {challenge.what}", str(place), one.student, score, library)
    return table


def _add_to_gradescope(file: Path, standings: Sequence[Standing]) -> None:
    """Add the scores in the form that Gradescope shows as the assignment's leaderboard."""
    if not file.exists():
        return
    content = json.loads(file.read_text(encoding="utf-8"))
    content["leaderboard"] = [
        {
            "name": f"{one.challenge.chapter} {one.challenge.what} ({one.challenge.unit})",
            "value": one.result.score,
            "order": "asc",
        }
        for one in standings
        if one.result.score is not None
    ]
    write_atomically(file, json.dumps(content, indent=1))
