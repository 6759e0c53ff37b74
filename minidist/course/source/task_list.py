"""The tasks of a chapter, read from the source of its graders: nothing is imported, so it takes milliseconds."""

import ast

from minidist.course.answers import chapter_of, course_folder
from minidist.course.tasks import Task


def tasks_of(chapter: str) -> list[Task]:
    """The tasks of a chapter such as "ch03_collectives", in order. How many tests each has, only pytest knows."""
    tasks = [_task(chapter, node) for node in task_classes(ast.parse(grader_of(chapter)))]
    return sorted(tasks, key=lambda task: task.order)


def grader_of(chapter: str) -> str:
    """The source of a chapter's graders."""
    return (course_folder("tests/exercises") / f"test_{chapter}.py").read_text(encoding="utf-8")


def tasks_named(target: str) -> list[Task]:
    """The task ("3.4"), or the tasks of the chapter ("3"), of that name.

    Raises:
        ValueError: if there is none.
    """
    tasks = tasks_of(chapter_of(target))
    found = [task for task in tasks if task.matches(target)]
    if not found:
        raise ValueError(f"there is no task {target}; choose from {', '.join(task.number for task in tasks)}")
    return found


def task_classes(graders: ast.Module) -> list[ast.ClassDef]:
    """The classes that are marked as the grader of a task."""
    return [node for node in graders.body if isinstance(node, ast.ClassDef) and _marker(node)]


def number_of_class(node: ast.ClassDef) -> str:
    """The number of the task that a class grades, such as "3.4"."""
    return ast.literal_eval(_marker(node).args[0])


def _marker(node: ast.ClassDef) -> ast.Call | None:
    calls = [decorator for decorator in node.decorator_list if isinstance(decorator, ast.Call)]
    return next((call for call in calls if ast.unparse(call.func) == "pytest.mark.task"), None)


def _task(chapter: str, node: ast.ClassDef) -> Task:
    keys = {keyword.arg: keyword.value for keyword in _marker(node).keywords}
    kind = ast.literal_eval(keys["kind"]) if "kind" in keys else "code"
    title = ast.get_docstring(node).splitlines()[0]
    return Task(number_of_class(node), ast.literal_eval(keys["points"]), kind, title, chapter)
