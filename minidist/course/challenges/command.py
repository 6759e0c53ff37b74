"""``minidist challenge``: lists the challenges, or judges the learner's answer to one.

The learner's leaderboard is a file next to the exercises with one JSON object per line, one for each new score. It is
for the learner alone: ``minidist grade`` judges every answer again and never reads it.
"""

import hashlib
import json
import sys
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from minidist.course.answers import Source, implementation_folder, shown_path, write_atomically
from minidist.course.challenges.challenge import Challenge, answer_in, file_in, library_answer
from minidist.course.challenges.judge import run_judge
from minidist.course.challenges.scoring import CHALLENGES, challenge_of
from minidist.course.grading.workplace import Workplace

FILE = "leaderboard.jsonl"


def add_commands(commands) -> None:
    """Add the command to the subparsers of the command line."""
    command = commands.add_parser(
        "challenge",
        help="open tasks: beat the library's number",
        description="List the challenges, or judge your answer to one and compare its number with the library's.",
    )
    command.set_defaults(command=lambda options: _challenge(options.chapter, options.impl))
    command.add_argument("chapter", nargs="?", metavar="CHAPTER", help="judge your answer to this chapter's challenge")
    command.add_argument(
        "--impl", default="exercises", metavar="FOLDER", help="answers to judge: a folder (default: exercises)"
    )


def _challenge(chapter: str | None, impl: str) -> int:
    console, folder = Console(highlight=False, markup=False), implementation_folder(impl)
    if chapter is None:
        console.print(listing(folder))
        return 0
    return 0 if judge_answer(console, folder, chapter) else 1


def judge_answer(console: Console, folder: Path, chapter: str) -> bool:
    """Judge the answer to a chapter's challenge and print its score next to the library's; return whether it has one.

    The score goes into the leaderboard. A missing answer is created as a copy of the library's.

    Raises:
        ValueError: if the chapter has no challenge.
    """
    challenge = challenge_of(chapter)
    console.print(description(challenge))
    file = file_in(folder, challenge)
    if not file.exists():
        file.parent.mkdir(exist_ok=True)
        write_atomically(file, library_answer(challenge).text)
        console.print(f"wrote {file}", soft_wrap=True)
    source = answer_in(folder, challenge)
    if source is None:
        console.print(f"{file} is still the library's answer: change it, and judge it again", soft_wrap=True)
        console.print(comparison(challenge, challenge.library), soft_wrap=True)
        return True
    with Workplace() as workplace, Console(stderr=True).status(f"judging {file.name}"):
        result = run_judge(workplace, challenge, source)
    if result.score is None:
        console.print(f"{file} has no score:\n{result.message}", style="red", soft_wrap=True)
        return False
    noted = add(folder, challenge, source, result.score)
    for remark in result.remarks:
        console.print(remark, style="yellow", soft_wrap=True)
    console.print(comparison(challenge, result.score), style="bold", soft_wrap=True)
    if noted:
        console.print(f"noted in {shown_path(folder / FILE)}", style="dim", soft_wrap=True)
    return True


def number(value: float) -> str:
    """Format a score with three significant digits, or with all digits before the decimal point."""
    return f"{value:,.0f}" if value >= 999.5 else f"{value:.3g}"


def listing(folder: Path) -> Group:
    """Tabulate all challenges, with the best scores of the learner whose answers are in the folder."""
    table = Table(title="challenges: the smallest number wins", title_justify="left")
    for column in ("", "challenge", "unit", "your best", "library", "best known"):
        table.add_column(column, justify="left" if column in ("challenge", "unit") else "right")
    for challenge in CHALLENGES:
        mine = best(folder, challenge)
        style = "green" if mine is not None and mine < challenge.library else ""
        yours = Text("-" if mine is None else number(mine), style)
        scores = yours, number(challenge.library), number(challenge.known)
        table.add_row(str(challenge.chapter), challenge.title, challenge.unit, *scores)
    return Group(table, Text("minidist challenge 3 says more, and judges your answer. Challenges give no points."))


def description(challenge: Challenge) -> Text:
    """Describe the task of a challenge and the best solution known."""
    return Text.assemble(
        (f"challenge {challenge.chapter}: {challenge.title}\n", "bold"),
        f"{challenge.rule}\n",
        f"Best known here: {number(challenge.known)} {challenge.unit}. {challenge.idea}.",
    )


def comparison(challenge: Challenge, score: float) -> str:
    """Compare a score: "your all-reduce: 41.2 us, the library's: 57.8 us (28.7 % less)"."""
    change = score / challenge.library - 1
    how = "the same" if abs(change) < 0.0005 else f"{abs(change):.1%} {'more' if change > 0 else 'less'}"
    return (
        f"your {challenge.what}: {number(score)} {challenge.unit}, "
        f"the library's: {number(challenge.library)} {challenge.unit} ({how.replace('%', ' %')})"
    )


@dataclass(frozen=True)
class Entry:
    """A score in the leaderboard."""

    challenge: str  # the name of the file of answers
    score: float
    unit: str
    date: str  # ISO 8601, UTC
    sha256: str  # of the answer's text


def add(folder: Path, challenge: Challenge, source: Source, score: float) -> bool:
    """Append a score to the leaderboard, once for each answer and score; return False if it cannot be written."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    sha256 = hashlib.sha256(source.text.encode("utf-8", "backslashreplace")).hexdigest()
    entry = Entry(challenge.module, score, challenge.unit, now, sha256)
    if entry in [replace(one, date=now) for one in entries(folder)]:
        return True
    try:
        with open(folder / FILE, "a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(entry)) + "\n")
    except OSError as error:
        print(f"minidist: cannot save your score in {folder / FILE}: {error.strerror}", file=sys.stderr)
        return False
    return True


def entries(folder: Path) -> list[Entry]:
    """Return all entries of the leaderboard, the oldest first. Invalid lines are ignored."""
    try:
        lines = (folder / FILE).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        try:
            entry = Entry(**json.loads(line))
        except (ValueError, TypeError, RecursionError):
            continue
        found += [entry] if isinstance(entry.score, int | float) else []
    return found


def best(folder: Path, challenge: Challenge) -> float | None:
    """Return the learner's best score in a challenge, or None."""
    return min((entry.score for entry in entries(folder) if entry.challenge == challenge.module), default=None)
