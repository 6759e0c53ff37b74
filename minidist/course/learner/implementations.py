"""Trains on a learner's own code: solved functions override the library's, stubs do not."""

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from rich.console import Console
from rich.table import Table
from rich.text import Text

from minidist import overrides
from minidist.course.answers import Source, implementation_folder, read_answers
from minidist.course.dependencies import names_defined
from minidist.course.sandbox.in_rank import run_file
from minidist.train.result import Run
from minidist.train.trainer import train_rank


@dataclass(frozen=True)
class Implementation:
    """The implementation of one overridable function: the learner's or the library's."""

    name: str  # of the function
    source: Source | None  # the learner's file; None if the library's own function runs
    where: str  # "ch03_collectives.py", "still a stub in ch03_collectives.py" or "not in exercises/"


def implementations_of(impl: str) -> list[Implementation]:
    """List which implementation of each overridable function runs when training on these answers.

    Args:
        impl: "exercises", "solutions" or a folder.

    Raises:
        ValueError: if the folder does not exist, or a file in it is not Python. No rank has started then.
    """
    folder = implementation_folder(impl)
    found = {name: Implementation(name, None, f"not in {folder.name}/") for name in sorted(overrides.OVERRIDABLE)}
    for source in read_answers(folder).values():
        definitions = {name: node for node in _parse(source).body for name in names_defined(node)}  # the last counts
        for name in definitions.keys() & found:
            stub = any(map(_is_stub, _with_bases(definitions[name], definitions)))
            where = f"still a stub in {source.name}.py" if stub else f"{source.name}.py"
            found[name] = Implementation(name, None if stub else source, where)
    return list(found.values())


def _parse(source: Source) -> ast.Module:
    """Parse a file of answers.

    Raises:
        ValueError: if it is not Python; the error names the line.
    """
    try:
        return ast.parse(source.text)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        place = f"{source.path}:{line}" if line else source.path
        raise ValueError(f"{place}: not valid Python: {getattr(error, 'msg', error)}") from None


def _with_bases(node: ast.stmt, definitions: dict) -> list:
    """Return a definition and its base classes in the same file, all of which it needs to work."""
    names = [base.id for base in getattr(node, "bases", ()) if isinstance(base, ast.Name)]
    bases = [definitions[name] for name in names if name in definitions]
    return [node, *(ancestor for base in bases for ancestor in _with_bases(base, definitions))]


def _is_stub(node: ast.stmt) -> bool:
    """Return whether a definition still contains the ``raise NotImplementedError("task ...")`` of its stub."""
    raised = [n.exc for n in ast.walk(node) if isinstance(n, ast.Raise) and n.exc is not None]
    return any(ast.unparse(error).startswith("NotImplementedError('task ") for error in raised)


def training_on(implementations: list[Implementation]):
    """Return a rank function that trains as ``train_rank`` does, with the learner's functions as overrides."""
    return partial(_train_rank, implementations)


def _train_rank(implementations: list[Implementation], *arguments):
    with overriding(implementations):
        return train_rank(*arguments)


@contextmanager
def overriding(implementations: list[Implementation]) -> Iterator[None]:
    """Context manager: inside, this process calls the learner's functions; see ``install``."""
    install(implementations)
    try:
        yield
    finally:
        overrides.override({})


def install(implementations: list[Implementation]) -> None:
    """Make this process call the learner's functions in place of the library's functions that it has loaded.

    A rank loads all functions that train. The command loads those that it applies to the ranks' reports, such as
    ``slow_ranks``.
    """
    own = [(each.name, each.source) for each in implementations if each.source is not None]
    namespaces = {source.name: vars(run_file(source)) for _, source in own}
    library = {name: call.__wrapped__ for name, call in overrides.OVERRIDABLE.items()}  # so that its calls count too
    learners = {name: namespaces[source.name][name] for name, source in own if name in library}
    overrides.override(library | learners)
    for namespace in namespaces.values():
        # The learner's functions call each other through the overrides as well, because some may still be stubs.
        namespace.update({name: call for name, call in overrides.OVERRIDABLE.items() if name in namespace})


def implementations_as_dict(implementations: list[Implementation], runs: list[Run]) -> dict:
    """Return which implementation of each function ran, and how often a rank called it; {} without ``--impl``.

    Ranks may call different functions, as a parameter server and its workers do. The rank with the most calls counts.
    """
    rows = [
        {
            "function": each.name,
            "implementation": "yours" if each.source else "minidist",
            "where": each.where,
            "calls": sum(max(rank.override_calls.get(each.name, 0) for rank in run.ranks) for run in runs),
        }
        for each in implementations
    ]
    return {"implementations": rows} if rows else {}


def print_implementations(console: Console, implementations: list[Implementation], runs: list[Run]) -> None:
    """Print a table of the implementations that were called, the learner's first."""
    table = Table(title="implementations that were called", title_justify="left")
    for column in ("function", "implementation", "where", "calls on a rank"):
        table.add_column(column, justify="right" if column.startswith("calls") else "left", overflow="fold")
    rows = implementations_as_dict(implementations, runs)["implementations"]
    for row in sorted(rows, key=lambda row: row["implementation"] != "yours"):
        if row["calls"]:
            which = Text(row["implementation"], "green" if row["implementation"] == "yours" else "dim")
            table.add_row(row["function"], which, row["where"], f"{row['calls']:,}")
    console.print(table)


def called_in_all(implementations: list[Implementation], runs: list[Run]) -> list[str]:
    """Return the learner's functions that every one of these runs called on some rank."""
    own = [each.name for each in implementations if each.source is not None]
    return [name for name in own if all(any(name in rank.override_calls for rank in run.ranks) for run in runs)]
