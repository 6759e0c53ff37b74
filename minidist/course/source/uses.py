"""Which tasks an answer builds on: it may be right and fail because a function of another task is wrong."""

import ast


def tasks_used(text: str, definitions: dict[str, list[str]], task: str) -> list[str]:
    """The other tasks whose functions the answer to a task names, directly or through functions of its own.

    Args:
        text: the learner's file.
        definitions: the names of the functions and classes of each task.
        task: its number.
    """
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError):
        return []
    names_in = {
        node.name: {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
        for node in body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    task_of = {name: number for number, names in definitions.items() for name in names}
    used, unread, read = set(), list(definitions[task]), set()
    while unread:
        read.add(name := unread.pop())
        for other in names_in.get(name, ()):
            if task_of.get(other, task) != task:
                used.add(task_of[other])
            elif other not in read:
                unread.append(other)
    return [number for number in definitions if number in used]
