"""Finds what the verdict on a task depends on, so that a task is judged again only when that has changed.

In the learner's file it depends on the task's own definitions, those that its grader calls, every definition that these
name in turn, and all code that runs while the file loads. Names are compared as text, whatever they refer to. So a
definition may count as named although it is not, which only costs time; the opposite does not happen.
"""

import ast
import hashlib
from collections.abc import Iterable

from minidist.course.tasks import number_of_class, task_classes

# Code that uses one of these can reach a definition without its name.
DYNAMIC = {"globals", "locals", "vars", "eval", "exec", "compile", "__import__", "importlib", "sys", "inspect"}
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def dependencies(answers: str, graders: str, definitions: dict[str, list[str]]) -> dict[str, tuple[str, str]]:
    """Return two hashes for each task: of the code that its verdict depends on, and of that code with its line numbers.

    Args:
        answers: text of the learner's file.
        graders: text of the chapter's graders.
        definitions: task -> the names of its definitions, as ``definitions_by_task`` returns them.
    """
    try:
        tree = ast.parse(answers)
    except (SyntaxError, ValueError):  # no task can be judged
        whole = _hash([answers, graders])
        return dict.fromkeys(definitions, (whole, whole))
    mentioned = _mentioned_by_graders(graders)
    found = {}
    for task, names in definitions.items():
        nodes = _reached(tree, {*names, *mentioned.get(task, ())})
        others = (part for node in tree.body if node not in nodes for part in _parts_at_definition(node))
        texts = [graders, *map(ast.dump, nodes), *sorted(set(map(ast.dump, others)))]
        found[task] = _hash(texts), _hash([*texts, *(str(node.lineno) for node in nodes), *map(_lines, nodes)])
    return found


def _mentioned_by_graders(graders: str) -> dict[str, set[str]]:
    """Return all names by which each task's grader, and the helpers that it uses in the same file, may call answers."""
    tree = ast.parse(graders)
    defined = [(node, names_defined(node)) for node in tree.body]
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    imported = {alias.asname or alias.name for node in imports for alias in node.names}
    found = {}
    for task in task_classes(tree):
        nodes: list[ast.stmt] = []
        new: list[ast.stmt] = [task]
        while new:
            nodes += new
            names = _names_in(new) | {part.arg for node in new for part in ast.walk(node) if isinstance(part, ast.arg)}
            new = [node for node, own in defined if own & names and node not in nodes]  # an argument may be a fixture
        found[number_of_class(task)] = {name for node in nodes for name in _calls_in(node, imported)}
    return found


def _calls_in(grader: ast.stmt, imported: set[str]) -> set[str]:
    """Return the attributes and strings in a grader, as in ``answers.send`` and ``student.call("send")``.

    f"Zero{stage}" becomes "Zero*". Attributes of imported modules are the library's and left out.
    """
    found: set[str] = set()
    for part in ast.walk(grader):
        if isinstance(part, ast.Attribute):
            if not (isinstance(part.value, ast.Name) and part.value.id in imported):
                found.add(part.attr)
        elif isinstance(part, ast.Constant) and isinstance(part.value, str):
            found.add(part.value)
        elif isinstance(part, ast.JoinedStr) and part.values and isinstance(part.values[0], ast.Constant):
            found.add(f"{part.values[0].value}*")
    return found


def _reached(tree: ast.Module, names: set[str]) -> list[ast.stmt]:
    """Return the definitions of these names, all that they mention, and the code that runs at load, in file order.

    A definition with a decorator from the same file counts as code that runs at load: the decorator may register it, so
    that it is reached without its name.
    """
    own = set().union(*map(names_defined, tree.body))
    every = [node for node in tree.body if isinstance(node, Definition)]
    definitions = [node for node in every if not _names_in(_decorators_in(node)) & own]
    at_load = [node for node in tree.body if node not in definitions]
    parts = [part for node in definitions for inner in _parts_at_definition(node) for part in ast.walk(inner)]
    names = names | _names_in(part for part in parts if isinstance(part, ast.Call))
    reached: list[ast.stmt] = []
    new = [*at_load, *(node for node in definitions if _is_named(node, names))]
    while new:
        reached += new
        mentioned = _names_in(new)
        everything = bool(mentioned & DYNAMIC)
        new = [node for node in definitions if node not in reached and (everything or _is_named(node, mentioned))]
    return [node for node in tree.body if node in reached]


def _decorators_in(node: ast.stmt) -> list[ast.expr]:
    return [decorator for part in ast.walk(node) for decorator in getattr(part, "decorator_list", ())]


def _parts_at_definition(node: ast.stmt) -> list[ast.AST]:
    """Return the code that runs at a definition: decorators, defaults, annotations, the statements of a class."""
    if isinstance(node, ast.ClassDef):
        parts = [*node.decorator_list, *node.bases, *node.keywords]
        return [*parts, *(part for inner in node.body for part in _parts_at_definition(inner))]
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        every = node.args
        arguments = [*every.posonlyargs, *every.args, *every.kwonlyargs, every.vararg, every.kwarg]
        annotations = [argument.annotation for argument in arguments if argument is not None]
        parts = [*node.decorator_list, *every.defaults, *every.kw_defaults, *annotations, node.returns]
        return [part for part in parts if part is not None]
    return [node]


def _is_named(node: Definition, names: set[str]) -> bool:
    """Return whether one of the names is this definition's; "Zero*" stands for all names that begin with Zero."""
    return node.name in names or any(name.endswith("*") and node.name.startswith(name[:-1]) for name in names)


def names_defined(node: ast.stmt) -> set[str]:
    """Names that a statement defines by ``def``, ``class`` or ``=``, also inside an ``if``; not by ``import``."""
    if isinstance(node, Definition):
        return {node.name}
    parts = list(ast.walk(node))
    stored = {part.id for part in parts if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
    return stored | {part.name for part in parts if isinstance(part, Definition)}


def _names_in(nodes: Iterable[ast.AST]) -> set[str]:
    """Return every name in the code, whatever it refers to."""
    return {part.id for node in nodes for part in ast.walk(node) if isinstance(part, ast.Name)}


def _lines(node: ast.stmt) -> str:
    return " ".join(str(part.lineno - node.lineno) for part in ast.walk(node) if isinstance(part, ast.stmt | ast.expr))


def _hash(texts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:32]


def tasks_used(text: str, definitions: dict[str, list[str]], task: str) -> list[str]:
    """Return the other tasks whose functions the answer to a task names, directly or through functions of its own."""
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError):
        return []
    names_in = {node.name: _names_in([node]) for node in body if isinstance(node, Definition)}
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
