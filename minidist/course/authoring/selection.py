"""Collects the tasks from the graders' markers and selects the tests to run."""

from dataclasses import replace

import pytest

from minidist.course.answers import course_folder
from minidist.course.tasks import KINDS, Task
from minidist.course.verdict_file import write_tasks


class Selection:
    """The part of the plugin that pytest calls after it has collected the graders."""

    def pytest_collection_modifyitems(self, config, items):
        tasks: dict[str, Task] = {}
        for item in items:
            if marker := item.get_closest_marker("task"):
                task = task_of(item, marker)
                known = tasks.setdefault(task.number, task)
                known.tests += 1
                if known != replace(task, tests=known.tests):
                    raise pytest.UsageError(f"task {task.number} has two different descriptions: {known} and {task}")
        write_tasks(config.getoption("verdicts"), sorted(tasks.values(), key=lambda task: task.order))
        targets = config.getoption("task")
        if unknown := [target for target in targets if not any(task.matches(target) for task in tasks.values())]:
            raise pytest.UsageError(f"there is no task {', '.join(unknown)}; choose from {', '.join(tasks)}")
        if targets or config.getoption("mutants"):
            targets = targets or list(tasks)
            numbers = {number for number, task in tasks.items() if any(task.matches(target) for target in targets)}
            chosen = [i for i in items if (m := i.get_closest_marker("task")) and m.args[0] in numbers]
            config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
            items[:] = chosen


def task_of(item, marker) -> Task:
    """The task that a test's marker describes.

    Raises:
        pytest.UsageError: if the description is incomplete.
    """
    keys = marker.kwargs
    answers = item.get_closest_marker("answers")
    title = (item.cls.__doc__ if item.cls else item.function.__doc__) or ""
    if len(marker.args) != 1 or "points" not in keys or answers is None or not title:
        raise pytest.UsageError(
            f'{item.nodeid}: a task needs @pytest.mark.task("3.4", points=4), a docstring with its title, '
            'and pytestmark = pytest.mark.answers("chNN_name")'
        )
    kind = keys.get("kind", "code")
    if kind not in KINDS:
        raise pytest.UsageError(f"{item.nodeid}: expected a kind from {', '.join(KINDS)}, got {kind!r}")
    if not (course_folder("solutions") / f"{answers.args[0]}.py").is_file():
        raise pytest.UsageError(f"{item.nodeid}: there is no file solutions/{answers.args[0]}.py")
    return Task(marker.args[0], keys["points"], kind, title.strip().splitlines()[0], answers.args[0])
