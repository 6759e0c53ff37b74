"""``minidist check``: judges a learner's answers and says what to do next, or gives hints.

``tests/exercises/hints/chNN_name.toml`` has a list of hints for every task, from a first push to nearly the code.
"""

import tomllib
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as ProgressBar
from rich.text import Text

from minidist.course.answers import chapter_names, chapter_of, course_folder, implementation_folder
from minidist.course.grading.run_graders import run_graders
from minidist.course.learner.progress import Progress
from minidist.course.learner.report import in_turn, next_task, report, table_of
from minidist.course.tasks import TaskResult, Verdict, results_of, tasks_named


def check(
    console: Console,
    impl: str,
    target: str | None,
    all_chapters: bool,
    judge: Callable[..., list[TaskResult]] | None = None,
) -> bool:
    """Judge what has changed, and print the learner's progress; return whether every task shown is passed.

    Args:
        target: a task ("3.4") to judge even if it has not changed, or a chapter ("3"); None for the chapter that the
            learner works on.
        all_chapters: judge every task again and show every chapter.
        judge: function to call in place of ``run_graders``, the default.

    Raises:
        ValueError: if the chapter or task does not exist.
    """
    folder = implementation_folder(impl)
    progress = Progress(folder, chapter_names())
    named = [task.number for task in tasks_named(target)] if target is not None else []
    chapter = chapter_of(target) if target is not None else progress.current_chapter()
    numbers = [result.task.number for result in progress.results]
    if not all_chapters:
        changed = progress.to_judge(chapter)
        numbers = named if target in named else [n for n in changed if target is None or n in named]
    told: list[str] = []  # chapters whose tables have been shown
    verdicts: list[Verdict] = []

    def on_verdict(verdict: Verdict) -> None:
        """Show a chapter's table once the judge reaches the next chapter, since all of them take minutes."""
        verdicts.append(verdict)
        before = chapter_of(verdicts[-2].task) if verdicts[1:] else chapter_of(verdict.task)
        if all_chapters and chapter_of(verdict.task) != before:
            tasks = [result.task for result in progress.results if result.task.chapter == before]
            judged = results_of(tasks, [each for each in verdicts if chapter_of(each.task) == before])
            console.print(table_of(folder, before, judged))
            told.append(before)

    if numbers:
        progress.update(_judge(judge or run_graders, str(folder.resolve()), numbers, on_verdict, console.is_terminal))
    results = progress.results
    if target is not None:
        shown = [result for result in results if result.task.number in named]
    elif all_chapters:
        shown = results
    else:
        shown = [result for result in results if result.task.chapter == chapter]
        if not numbers and next_task(shown) is None:  # solved, as the learner has seen
            following = next_task(in_turn(results, shown)) or results[-1]
            shown = [result for result in results if result.task.chapter == following.task.chapter]
    console.print(report(folder, shown, results, in_full=target is not None, told=told))
    return all(result.state == "passed" for result in shown)


def _judge(
    judge: Callable[..., list[TaskResult]], impl: str, targets: list[str], on_verdict: Callable[[Verdict], None],
    redirect: bool,
) -> list[TaskResult]:  # fmt: skip
    """Judge with a progress bar on standard error. redirect: whether standard output is the same terminal."""
    columns = TextColumn("judging {task.description}"), BarColumn()
    with ProgressBar(*columns, console=Console(stderr=True), transient=True, redirect_stdout=redirect) as bar:
        line = bar.add_task("", total=None)

        def tell(verdict: Verdict) -> None:
            bar.update(line, description=f"task {verdict.task}")
            on_verdict(verdict)

        return judge(impl, targets, on_verdict=tell)


def hint(console: Console, target: str, level: int = 1) -> None:
    """Print the first ``level`` hints for a task, or for every task of a chapter.

    Raises:
        ValueError: if the task does not exist, or has fewer hints.
    """
    tasks, levels = tasks_named(target), hints_of(chapter_of(target))
    most = max(len(levels[task.number]) for task in tasks)
    if not 1 <= level <= most:
        raise ValueError(f"there is no hint {level} for {target}: choose a number from 1 to {most}")
    for task in tasks:
        hints = levels[task.number]
        console.print(Text(f"{task.number}  {task.title}", "bold"))
        for number, text in enumerate(hints[:level], 1):
            console.print(Text.assemble((f"hint {number} of {len(hints)}: ", "yellow"), text))
    if level < most:
        console.print(f"the next one: minidist check --hint {target} {level + 1}", style="dim")


def hints_of(chapter: str) -> dict[str, list[str]]:
    """Return the hints of a chapter's tasks, by number; each list goes from a first push to nearly the code."""
    file = course_folder("tests/exercises") / "hints" / f"{chapter}.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))
