"""``minidist check``: what a learner has solved, what fails and why, and what to do next."""

from pathlib import Path

from rich.console import Console, Group
from rich.panel import Panel
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as ProgressBar
from rich.progress_bar import ProgressBar as Bar
from rich.table import Table
from rich.text import Text

from minidist.course.answers import chapter_names, chapter_of, implementation_folder, read_answers
from minidist.course.grading.judge import Judged, judge
from minidist.course.learner.progress import Progress

STATES = {"passed": ("passed", "green"), "failed": ("failing", "red"), "todo": ("to do", "yellow"), "": ("-", "dim")}
LINES = 12  # of what is wrong, unless one task is asked for


def check(console: Console, impl: str, wish: str | None, everything: bool) -> bool:
    """Judge what has changed, or what is wished for, and print where the learner stands.

    Args:
        impl: "exercises", or a folder of answers.
        wish: a chapter ("3") or task ("3.4") to judge and show; None for what has changed.
        everything: judge and show all chapters.

    Returns:
        Whether everything that is shown is passed.

    Raises:
        ValueError: for a chapter or task that is not there.
    """
    progress = Progress(implementation_folder(impl))
    chapters = chapter_names()
    if wish is not None:
        chapter_of(wish)  # a ValueError now rather than from the graders
        wished = [wish]
    elif everything:
        wished = [number_of(name) for name in chapters]
    else:
        wished = [number_of(name) for name in progress.stale_chapters(chapters)]
    whole = [name for name in chapters if number_of(name) in wished]
    hashes = progress.hashes(whole)
    edited = progress.newest(whole) if wish is None and len(whole) < len(chapters) else None
    if wished or not progress.judged:
        progress.update(_judge(impl, wished), hashes)
    shown = progress.judged
    if wish is not None:
        shown = [one for one in shown if one.task.belongs(wish)]
    elif not everything:  # the chapter that was worked on, else the first that is not solved
        current = edited or (next_task(shown) or shown[-1]).task.chapter
        shown = [one for one in shown if one.task.chapter == current]
    console.print(_report(progress.folder, shown, progress.judged, wish is not None))
    return all(one.state == "passed" for one in shown)


def number_of(chapter: str) -> str:
    """ "3" of "ch03_collectives"."""
    return str(int(chapter[2:4]))


def _judge(impl: str, wished: list[str]) -> list[Judged]:
    bar = ProgressBar(
        TextColumn("judging {task.description}"), BarColumn(), console=Console(stderr=True), transient=True
    )
    with bar:
        task = bar.add_task("", total=None)
        return judge(impl, wished, on_verdict=lambda verdict: bar.update(task, description=f"task {verdict.task}"))


def next_task(judged: list[Judged]) -> Judged | None:
    """What to do next: the first task that is not passed."""
    return next((one for one in judged if one.state != "passed"), None)


def _report(folder: Path, shown: list[Judged], all_tasks: list[Judged], in_full: bool) -> Group:
    parts: list = []
    for chapter in dict.fromkeys(one.task.chapter for one in shown):
        tasks = [one for one in shown if one.task.chapter == chapter]
        table = Table(title=f"chapter {number_of(chapter)}: {folder.name}/{chapter}.py", title_justify="left")
        table.add_column("task", justify="right", no_wrap=True)
        table.add_column("what")
        table.add_column("kind", no_wrap=True)
        table.add_column("points", justify="right", no_wrap=True)
        table.add_column("state", no_wrap=True)
        for one in tasks:
            word, style = STATES[one.state]
            points = f"{one.points} of {one.task.points}"
            table.add_row(one.task.number, one.task.title, one.task.kind, points, Text(word, style))
        parts.append(table)
    failing: dict[str, list[Judged]] = {}
    for one in shown:
        if one.state == "failed":
            failing.setdefault(one.failure.message, []).append(one)
    parts += [_failure(some, in_full) for some in failing.values()]
    if (task := next_task(shown) or next_task(all_tasks)) is not None:
        parts.append(_what_next(folder, task))
    else:
        parts.append(Text("Everything is solved. Now train on it: minidist train --dp 4 --impl exercises", "green"))
    parts.append(_bar(all_tasks))
    return Group(*parts)


def _failure(some: list[Judged], in_full: bool) -> Panel:
    """What is wrong with a task, or with several for the same reason, such as a file that cannot be loaded."""
    verdict = some[0].failure
    numbers = ", ".join(one.task.number for one in some)
    fails = f"{numbers} fails in {verdict.test}" if len(some) == 1 else f"{numbers} fail"
    lines = verdict.message.splitlines()
    if in_full:
        lines += ["", *verdict.details.splitlines()] if verdict.details.strip() else []
    elif len(lines) > LINES:
        lines = [*lines[:LINES], "..."]
    said = " ".join(verdict.message.split())
    lines += [f"note: {remark}" for remark in verdict.remarks if remark not in said]
    return Panel(Text("\n".join(lines)), title=fails, title_align="left")


def _what_next(folder: Path, one: Judged) -> Text:
    where = f"{folder.name}/{one.task.chapter}.py"
    text = Text.assemble(("next: ", "bold"), (f"{one.task.number}  {one.task.title}", "bold"), f"  in {where}\n")
    if one.state == "failed":
        number = one.task.number
        return text.append(f"it fails; in full: minidist check {number}    a hint: minidist check --hint {number}")
    return text.append(f"hint: {one.task.hint}", "yellow")


def _bar(all_tasks: list[Judged]) -> Group:
    points, total = sum(one.points for one in all_tasks), sum(one.task.points for one in all_tasks)
    passed = sum(one.state == "passed" for one in all_tasks)
    text = f"{points} of {total} points, {passed} of {len(all_tasks)} tasks"
    bar = Table.grid()
    bar.add_row(Bar(total=total, completed=points, width=60))
    return Group(Text(text, "bold"), bar)


def hint(console: Console, wish: str) -> None:
    """Print the hint for a task, or for every task of a chapter.

    Raises:
        ValueError: for a task that is not there.
    """
    chapter_of(wish)
    tasks = [one.task for one in judge("solutions", [wish], "--collect-only") if one.task.belongs(wish)]
    for task in tasks:
        text = Text.assemble((f"{task.number}  {task.title}", "bold"), f"  ({task.points} points)\n{task.hint}")
        console.print(text)


def watch(console: Console, impl: str, wish: str | None, everything: bool) -> None:
    """``check`` again whenever a file of answers is saved, until Ctrl-C.

    Raises:
        ValueError: where the package for it is missing.
    """
    try:
        from watchfiles import watch as changes
    except ImportError:
        raise ValueError("--watch needs watchfiles: pip install -e '.[course]'") from None
    folder = implementation_folder(impl)
    # Woken also when nothing was seen, twice a second: a file may have been saved while another was being judged.
    saves = changes(folder, recursive=False, raise_interrupt=False, rust_timeout=500, yield_on_timeout=True)
    judged = None
    for _ in saves:
        now = {name: source.text for name, source in read_answers(folder).items()}
        if now == judged:
            continue
        if judged is not None:
            console.clear()
            changed = sorted(name for name in now.keys() | judged.keys() if now.get(name) != judged.get(name))
            console.print("changed: " + ", ".join(f"{name}.py" for name in changed), style="dim")
        judged = now
        check(console, impl, wish, everything)
        console.print("waiting for you to save a file; Ctrl-C ends", style="dim")
