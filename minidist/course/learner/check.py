"""``minidist check``: judges a learner's answers and says what to do next."""

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as ProgressBar
from rich.text import Text

from minidist.course.answers import chapter_names, chapter_of, implementation_folder, read_answers
from minidist.course.grading.run_graders import run_graders
from minidist.course.learner.progress import Progress
from minidist.course.learner.report import next_task, number_of, report
from minidist.course.tasks import TaskResult


def check(console: Console, impl: str, target: str | None, all_chapters: bool) -> bool:
    """Judge what has changed, or the target, and print the learner's progress.

    Args:
        impl: "exercises", or a folder of answers.
        target: a chapter ("3") or task ("3.4") to judge and show; None for what has changed.
        all_chapters: judge and show every chapter.

    Returns:
        Whether every task shown is passed.

    Raises:
        ValueError: if the chapter or task does not exist.
    """
    progress = Progress(implementation_folder(impl))
    chapters = chapter_names()
    if target is not None:
        chapter_of(target)  # raises ValueError before the graders start
        targets = [target]
    elif all_chapters:
        targets = [number_of(name) for name in chapters]
    else:
        targets = [number_of(name) for name in progress.stale_chapters(chapters)]
    complete = [name for name in chapters if number_of(name) in targets]
    hashes = progress.hashes(complete)
    edited = progress.newest(complete) if target is None and len(complete) < len(chapters) else None
    if targets or not progress.results:
        progress.update(_judge(impl, targets), hashes)
    shown = progress.results
    if target is not None:
        shown = [result for result in shown if result.task.matches(target)]
    elif not all_chapters:  # the chapter being worked on, else the first that is not solved
        current = edited or (next_task(shown) or shown[-1]).task.chapter
        shown = [result for result in shown if result.task.chapter == current]
    console.print(report(progress.folder, shown, progress.results, in_full=target is not None))
    return all(result.state == "passed" for result in shown)


def _judge(impl: str, targets: list[str]) -> list[TaskResult]:
    columns = TextColumn("judging {task.description}"), BarColumn()
    with ProgressBar(*columns, console=Console(stderr=True), transient=True) as bar:
        line = bar.add_task("", total=None)
        return run_graders(
            impl, targets, on_verdict=lambda verdict: bar.update(line, description=f"task {verdict.task}")
        )


def hint(console: Console, target: str) -> None:
    """Print the hint for a task, or for every task of a chapter.

    Raises:
        ValueError: if the task does not exist.
    """
    chapter_of(target)
    results = run_graders("solutions", [target], "--collect-only")
    for task in (result.task for result in results if result.task.matches(target)):
        text = Text.assemble((f"{task.number}  {task.title}", "bold"), f"  ({task.points} points)\n{task.hint}")
        console.print(text)


def watch(console: Console, impl: str, target: str | None, all_chapters: bool) -> None:
    """``check`` again whenever a file of answers is saved, until Ctrl-C.

    Raises:
        ValueError: if the package watchfiles is missing.
    """
    try:
        from watchfiles import watch as changes
    except ImportError:
        raise ValueError("--watch needs watchfiles: pip install -e '.[course]'") from None
    folder = implementation_folder(impl)
    # Also wake up twice a second without an event: a file may have been saved while another was being judged.
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
        check(console, impl, target, all_chapters)
        console.print("Save a file to check it again. Stop with Ctrl-C.", style="dim")
