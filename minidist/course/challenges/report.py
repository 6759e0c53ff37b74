"""What a learner sees of challenges: a list with scores, and one answer's number beside the library's."""

from pathlib import Path

from rich.console import Group
from rich.table import Table
from rich.text import Text

from minidist.course.challenges.catalogue import CHALLENGES
from minidist.course.challenges.challenge import Challenge
from minidist.course.challenges.leaderboard import best


def number(value: float) -> str:
    """Three digits, or all of those before the point."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def listing(folder: Path) -> Group:
    """All challenges, with the learner's best scores.

    Args:
        folder: the learner's answers.
    """
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
    """What the challenge asks for, and what is known about it."""
    return Text.assemble(
        (f"challenge {challenge.chapter}: {challenge.title}\n", "bold"),
        f"{challenge.rule}\n",
        f"Best known here: {number(challenge.known)} {challenge.unit}. {challenge.idea}.",
    )


def comparison(challenge: Challenge, score: float) -> str:
    """ "your all-reduce: 41.2 us, the library's: 57.8 us (29 % less)"."""
    change = score / challenge.library - 1
    how = "the same" if abs(change) < 0.0005 else f"{abs(change):.1%} {'more' if change > 0 else 'less'}"
    return (
        f"your {challenge.what}: {number(score)} {challenge.unit}, "
        f"the library's: {number(challenge.library)} {challenge.unit} ({how.replace('%', ' %')})"
    )
