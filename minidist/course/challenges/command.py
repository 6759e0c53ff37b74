"""``minidist challenge``: lists the challenges, or judges the learner's answer to one."""

from pathlib import Path

from rich.console import Console

from minidist.course.answers import implementation_folder, write_atomically
from minidist.course.challenges.catalogue import answer_in, challenge_of, file_in, library_answer
from minidist.course.challenges.leaderboard import add
from minidist.course.challenges.report import comparison, description, listing
from minidist.course.challenges.run import run_judge
from minidist.course.grading.workplace import Workplace


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
    """Judge the answer to one challenge, print its number beside the library's, and note it in the leaderboard.

    An answer that is not there yet is written: it begins as the library's.

    Args:
        folder: the learner's answers.
        chapter: such as "3".

    Returns:
        Whether there is a score.

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
    add(folder, challenge, source, result.score)
    for remark in result.remarks:
        console.print(remark, style="yellow", soft_wrap=True)
    console.print(comparison(challenge, result.score), style="bold", soft_wrap=True)
    return True
