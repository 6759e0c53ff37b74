"""What ``minidist check`` shows: a table of tasks, what fails, what to do next, and the points so far."""

from pathlib import Path

from rich.console import Group
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from minidist.course.tasks import TaskResult

STATES = {"passed": ("passed", "green"), "failed": ("failing", "red"), "todo": ("to do", "yellow"), "": ("-", "dim")}
LINES = 12  # of a failure's message, unless one task is asked for


def number_of(chapter: str) -> str:
    """ "3" of "ch03_collectives"."""
    return str(int(chapter[2:4]))


def next_task(results: list[TaskResult]) -> TaskResult | None:
    """What to do next: the first task that is not passed."""
    return next((result for result in results if result.state != "passed"), None)


def report(folder: Path, shown: list[TaskResult], all_results: list[TaskResult], in_full: bool) -> Group:
    """Everything that ``check`` prints.

    Args:
        folder: the learner's answers.
        shown: the results to show in detail.
        all_results: of the whole course, for the points and the next task.
        in_full: show complete messages and tracebacks.
    """
    chapters = dict.fromkeys(result.task.chapter for result in shown)
    parts: list = [_table(folder, name, [r for r in shown if r.task.chapter == name]) for name in chapters]
    failing: dict[str, list[TaskResult]] = {}  # message -> the tasks that it concerns
    for result in shown:
        if result.state == "failed":
            failing.setdefault(result.failure.message, []).append(result)
    parts += [_failure(results, in_full) for results in failing.values()]
    if (result := next_task(shown) or next_task(all_results)) is not None:
        if next_task(shown) is None:
            parts.append(Text("Well done! On to the next task.", "green"))
        parts.append(_what_next(folder, result))
    else:
        text = (
            "Well done, you have solved every task! Now train on your own code:\nminidist train --dp 4 --impl exercises"
        )
        parts.append(Text(text, "green"))
    parts.append(_points(all_results))
    return Group(*parts)


def _table(folder: Path, chapter: str, results: list[TaskResult]) -> Table:
    table = Table(title=f"chapter {number_of(chapter)}: {folder.name}/{chapter}.py", title_justify="left")
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


def _failure(results: list[TaskResult], in_full: bool) -> Panel:
    """What is wrong with one task, or with several for the same reason, such as a file that cannot be loaded."""
    verdict = results[0].failure
    numbers = ", ".join(result.task.number for result in results)
    title = f"{numbers} fails in {verdict.test}" if len(results) == 1 else f"{numbers} fail"
    lines = verdict.message.splitlines()
    if in_full:
        lines += ["", *verdict.details.splitlines()] if verdict.details.strip() else []
    elif len(lines) > LINES:
        lines = [*lines[:LINES], "..."]
    message = " ".join(verdict.message.split())
    lines += [f"note: {remark}" for remark in verdict.remarks if remark not in message]
    return Panel(Text("\n".join(lines)), title=title, title_align="left")


def _what_next(folder: Path, result: TaskResult) -> Text:
    number = result.task.number
    text = Text.assemble(("next: ", "bold"), (f"{number}  {result.task.title}", "bold"))
    text.append(f"\nedit {folder.name}/{result.task.chapter}.py")
    if result.state == "failed":
        return text.append(f"    details: minidist check {number}    hint: minidist check --hint {number}")
    return text.append(f"\nhint: {result.task.hint}", "yellow")


def _points(results: list[TaskResult]) -> Group:
    points, total = sum(result.points for result in results), sum(result.task.points for result in results)
    passed = sum(result.state == "passed" for result in results)
    bar = Table.grid()
    bar.add_row(ProgressBar(total=total, completed=points, width=60))
    return Group(Text(f"{points} of {total} points, {passed} of {len(results)} tasks", "bold"), bar)
