"""The report of ``minidist check``: a table of tasks, the failures, what to do next, and the points so far."""

from collections.abc import Collection
from pathlib import Path
from shlex import quote

from rich.console import Group
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from minidist.course.answers import ROOT, implementation_folder, shown_path
from minidist.course.learner.progress import FILE
from minidist.course.tasks import TaskResult, Verdict

STATES = {"passed": ("passed", "green"), "failed": ("failing", "red"), "todo": ("to do", "yellow"), "": ("-", "dim")}
LINES = 12  # of a failure's message, unless one task is asked for


def next_task(results: list[TaskResult]) -> TaskResult | None:
    """Return the task to do next: the first that fails, else the first that is not passed; None if all are."""
    failing = (result for result in results if result.state == "failed")
    return next(failing, None) or next((result for result in results if result.state != "passed"), None)


def in_turn(results: list[TaskResult], seen: list[TaskResult]) -> list[TaskResult]:
    """Return the results in the order in which to work on them: those after ``seen``, then those from the start."""
    end = results.index(seen[-1]) + 1
    return results[end:] + results[:end]


def report(
    folder: Path, shown: list[TaskResult], all_results: list[TaskResult], in_full: bool, told: Collection[str] = ()
) -> Group:
    """Return everything that ``check`` prints.

    Args:
        shown: the results to show in detail, ``in_full`` with the complete message and traceback.
        all_results: results of the whole course, for the points and the next task.
        told: chapters whose tables have been shown before.
    """
    chapters = dict.fromkeys(result.task.chapter for result in shown if result.task.chapter not in told)
    parts: list = [table_of(folder, name, [r for r in shown if r.task.chapter == name]) for name in chapters]
    current = next_task(shown)
    failing = {r.task.number: verdict for r in all_results if (verdict := r.failure) and verdict.state == "failed"}
    alike: list[str] = []  # the tasks that fail for the same reason, such as a file that cannot be loaded
    if current is not None and current.failure is not None and current.failure.test:  # else it was not judged
        alike = [number for number, verdict in failing.items() if verdict.message == current.failure.message]
        parts.append(_failure(current, current.failure, alike, failing, in_full))
    if others := [_with_culprits(verdict, failing) for number, verdict in failing.items() if number not in alike]:
        parts.append(Text(f"also failing: {', '.join(others)}", "red"))
    parts.append(_what_next(folder, current, next_task(in_turn(all_results, shown)), in_full))
    parts.append(_points(all_results))
    if (folder / FILE).is_file():
        parts.append(Text(f"progress: {shown_path(folder / FILE)}{_installed(folder)}", "dim"))
    return Group(*parts)


def table_of(folder: Path, chapter: str, results: list[TaskResult]) -> Table:
    table = Table(title=f"chapter {int(chapter[2:4])}: {shown_path(folder / chapter)}.py", title_justify="left")
    table.add_column("task", justify="right", no_wrap=True)
    table.add_column("title")
    table.add_column("kind", no_wrap=True)
    table.add_column("points", justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for result in results:
        task, (word, style) = result.task, STATES[result.state]
        points = f"{result.points} of {task.points}"
        table.add_row(task.number, task.title, task.kind, points, Text(word, style))
    return table


def _with_culprits(verdict: Verdict, failing: Collection[str]) -> str:
    """Return "3.5", or "3.5 (uses 3.3)" if 3.3 fails too: then 3.5 may fail only because of it."""
    culprits = [number for number in verdict.uses if number in failing]
    return f"{verdict.task} (uses {' and '.join(culprits)})" if culprits else verdict.task


def _failure(result: TaskResult, verdict: Verdict, alike: list[str], failing: Collection[str], in_full: bool) -> Panel:
    """Show what is wrong with a task, and with those ``alike``, which fail for the same reason."""
    title = f"{result.task.number} fails in {verdict.test}"
    lines, details = verdict.message.splitlines(), verdict.details
    if result.state == "failed" and len(alike) > 1:
        title = f"{', '.join(alike)} fail"
    elif len(result.verdicts) > 1 and result.task.kind == "worksheet":
        unmet = [part for part in result.verdicts if part.state != "passed"]
        title = f"{result.task.number}: {len(result.verdicts) - len(unmet)} of {len(result.verdicts)} tests pass"
        lines = list(dict.fromkeys(part.message for part in unmet))
        details = "\n".join(dict.fromkeys(part.details for part in unmet if part.details))
    elif result.state == "todo" and result.task.kind == "debugging":
        title = f"{result.task.number} is still to do: the program fails in {verdict.test}"
    elif result.state == "todo":
        title = f"{result.task.number} is still to do"
    if in_full:
        lines += ["", *details.strip().splitlines()] if details.strip() else []
    elif len(lines) > LINES:
        lines = [*lines[:LINES], "..."]
    message = " ".join(verdict.message.split())
    lines += [f"note: {remark}" for remark in verdict.remarks if remark not in message]
    for number in verdict.uses:
        lines += [f"{result.task.number} uses {number}, which fails: fix that first"] if number in failing else []
    return Panel(Text("\n".join(lines)), title=title, title_align="left")


def _what_next(folder: Path, current: TaskResult | None, following: TaskResult | None, in_full: bool) -> Text:
    """Say what to work on: the current task, or the following one if everything shown is passed."""
    text, result = Text(), current or following
    if result is None:
        text.append("Well done, you have solved every task! Now train on your own code:\n", "green")
        impl = next((name for name in ("exercises", "solutions") if folder == implementation_folder(name)), folder)
        return text.append(f"minidist train --dp 4 --impl {quote(str(impl))}", "green")
    if current is None:
        text.append("Well done! On to the next task.\n", "green")
    number = result.task.number
    text.append(f"{'fix' if result.state == 'failed' else 'next'}: {number}  {result.task.title}", "bold")
    text.append(f"\nedit {shown_path(folder / result.task.chapter)}.py")
    if current is not None and current.failure and current.failure.details.strip() and not in_full:
        text.append(f"\ndetails: minidist check {number}")  # not one more on a line: 80 columns would break a command
    return text.append(f"    hint: minidist check --hint {number}")


def _installed(folder: Path) -> str:
    """Say where minidist and its graders are installed, unless that is the clone that has the answers."""
    elsewhere = folder.parent != ROOT and (folder.parent / "minidist").is_dir()
    return f"\njudged by minidist as installed from {ROOT}" if elsewhere else ""


def _points(results: list[TaskResult]) -> Group:
    points, total = sum(result.points for result in results), sum(result.task.points for result in results)
    passed = sum(result.state == "passed" for result in results)
    bar = Table.grid()
    bar.add_row(ProgressBar(total=total, completed=points, width=60))
    return Group(Text(f"{points} of {total} points, {passed} of {len(results)} tasks", "bold"), bar)
