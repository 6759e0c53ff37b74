"""Training on a learner's own code: their functions override the library's, except where a stub still is."""

import ast
from dataclasses import dataclass
from functools import partial

from rich.console import Console
from rich.table import Table
from rich.text import Text

from minidist import overrides
from minidist.course.answers import Source, implementation_folder, read_answers
from minidist.course.sandbox.guard import run_file
from minidist.train.result import Run
from minidist.train.trainer import train_rank


@dataclass(frozen=True)
class Implementation:
    """Which implementation of one overridable function runs."""

    name: str  # of the function
    source: Source | None  # the learner's file; None where the library's own function runs
    why: str  # in words: "ch03_collectives.py", or "still a stub in ch03_collectives.py"


def implementations_of(impl: str) -> list[Implementation]:
    """For each overridable function, which implementation runs when training on these answers.

    Args:
        impl: "exercises", "solutions" or a folder.

    Raises:
        ValueError: for a folder that is not there, or a file in it that is not Python, before any rank starts.
    """
    folder = implementation_folder(impl)
    found = {name: Implementation(name, None, f"not in {folder.name}/") for name in sorted(overrides.OVERRIDABLE)}
    for source in read_answers(folder).values():
        here = {n.name: n for n in parse(source).body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
        for node in here.values():
            if node.name in found:
                stub = any(map(is_stub, with_bases(node, here)))
                why = f"still a stub in {source.name}.py" if stub else f"{source.name}.py"
                found[node.name] = Implementation(node.name, None if stub else source, why)
    return list(found.values())


def parse(source: Source) -> ast.Module:
    """The syntax tree of a file of answers.

    Raises:
        ValueError: where it is not Python, naming the line.
    """
    try:
        return ast.parse(source.text)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        place = f"{source.path}:{line}" if line else source.path
        raise ValueError(f"{place}: this is not Python: {getattr(error, 'msg', error)}") from None


def with_bases(node: ast.FunctionDef | ast.ClassDef, here: dict) -> list:
    """A definition, and the classes of the same file that it is built on: it works when they do."""
    bases = [here[base.id] for base in getattr(node, "bases", ()) if isinstance(base, ast.Name) and base.id in here]
    return [node, *(one for base in bases for one in with_bases(base, here))]


def is_stub(node: ast.FunctionDef | ast.ClassDef) -> bool:
    """Whether a definition still holds a line ``raise NotImplementedError("task ...")`` of its stub."""
    raised = [n.exc for n in ast.walk(node) if isinstance(n, ast.Raise) and n.exc is not None]
    return any(ast.unparse(error).startswith("NotImplementedError('task ") for error in raised)


def training_on(implementations: list[Implementation]):
    """A rank function that trains as ``train_rank`` does, on the learner's functions among the implementations."""
    return partial(_train_rank, [(one.name, one.source) for one in implementations if one.source is not None])


def _train_rank(own: list[tuple[str, Source]], *arguments):
    namespaces = {source.name: vars(run_file(source)) for _, source in own}
    overrides.override({name: namespaces[source.name][name] for name, source in own})
    for namespace in namespaces.values():
        # where the learner's functions call each other they go through the overrides too: a stub may be among them
        namespace.update({name: call for name, call in overrides.OVERRIDABLE.items() if name in namespace})
    try:
        return train_rank(*arguments)
    finally:
        overrides.override({})


def implementations_as_dict(implementations: list[Implementation], runs: list[Run]) -> dict:
    """Which implementation ran, and how often rank 0 of these runs called it; nothing without ``--impl``."""
    rows = [
        {
            "function": one.name,
            "implementation": "yours" if one.source else "minidist",
            "where": one.why,
            "calls": sum(run.ranks[0].override_calls.get(one.name, 0) for run in runs),
        }
        for one in implementations
    ]
    return {"implementations": rows} if rows else {}


def print_implementations(console: Console, implementations: list[Implementation], runs: list[Run]) -> None:
    """The same as a table."""
    table = Table(title="which implementation ran", title_justify="left")
    for column in ("function", "implementation", "where", "calls by rank 0"):
        table.add_column(column, justify="right" if column.startswith("calls") else "left")
    for row in implementations_as_dict(implementations, runs)["implementations"]:
        yours = row["implementation"] == "yours"
        which = Text(row["implementation"], "green" if yours else "dim")
        table.add_row(row["function"], which, row["where"], f"{row['calls']:,}" if yours else "")
    console.print(table)


def called_in_all(implementations: list[Implementation], runs: list[Run]) -> list[str]:
    """The functions of the learner that rank 0 of every one of these runs called."""
    return [one.name for one in implementations if all(one.name in run.ranks[0].override_calls for run in runs)]
