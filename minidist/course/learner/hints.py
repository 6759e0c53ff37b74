"""``minidist check --hint``: the hints for a task, from a first push to nearly the code.

``tests/exercises/hints/chNN_name.toml`` has a list of them for every task.
"""

import tomllib

from rich.console import Console
from rich.text import Text

from minidist.course.answers import chapter_of, course_folder
from minidist.course.source.task_list import tasks_named


def hint(console: Console, target: str, level: int = 1) -> None:
    """Print the first hints for a task, or for every task of a chapter.

    Args:
        level: how many hints of each task.

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
    """The hints of a chapter's tasks, by number; each list goes from the first push to nearly the code."""
    file = course_folder("tests/exercises") / "hints" / f"{chapter}.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))
