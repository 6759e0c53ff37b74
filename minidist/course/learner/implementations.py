"""Training on a learner's own code: their functions in the library's sockets, and its own where a stub still is."""

import ast
from dataclasses import dataclass
from functools import partial

from rich.console import Console
from rich.table import Table
from rich.text import Text

from minidist import overrides
from minidist.course.answers import Source, implementation_folder, read_answers
from minidist.course.sandbox.guard import run_file
from minidist.train.trainer import Run, train_rank


@dataclass(frozen=True)
class Piece:
    """What is in one socket."""

    socket: str
    source: Source | None  # the learner's file; None where the library's own function is in use
    why: str  # in words: "ch03_collectives.py", or "still a stub in ch03_collectives.py"


def pieces_of(impl: str) -> list[Piece]:
    """For each socket, whose function is in it when training on these answers.

    Args:
        impl: "exercises", "solutions" or a folder.

    Raises:
        ValueError: for a folder that is not there, or a file in it that is not Python, before any rank starts.
    """
    folder = implementation_folder(impl)
    found = {name: Piece(name, None, f"not in {folder.name}/") for name in sorted(overrides.SOCKETS)}
    for source in read_answers(folder).values():
        here = {n.name: n for n in parse(source).body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
        for node in here.values():
            if node.name in found:
                stub = any(map(is_stub, with_bases(node, here)))
                why = f"still a stub in {source.name}.py" if stub else f"{source.name}.py"
                found[node.name] = Piece(node.name, None if stub else source, why)
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


def training_on(pieces: list[Piece]):
    """A rank function that trains as ``train_rank`` does, on the learner's functions among the pieces."""
    return partial(_train_rank, [(piece.socket, piece.source) for piece in pieces if piece.source is not None])


def _train_rank(own: list[tuple[str, Source]], *arguments):
    namespaces = {source.name: vars(run_file(source)) for _, source in own}
    overrides.plug({name: namespaces[source.name][name] for name, source in own})
    for namespace in namespaces.values():
        # where the learner's functions call each other they go through the sockets too: a stub may be among them
        namespace.update({name: call for name, call in overrides.SOCKETS.items() if name in namespace})
    try:
        return train_rank(*arguments)
    finally:
        overrides.plug({})


def pieces_as_dict(pieces: list[Piece], runs: list[Run]) -> dict:
    """Whose function was in each socket, and how often rank 0 of these runs called it; nothing without ``--impl``."""
    rows = [
        {
            "socket": piece.socket,
            "whose": "yours" if piece.source else "the library's",
            "where": piece.why,
            "calls": sum(run.ranks[0].socket_calls.get(piece.socket, 0) for run in runs),
        }
        for piece in pieces
    ]
    return {"pieces": rows} if rows else {}


def print_pieces(console: Console, pieces: list[Piece], runs: list[Run]) -> None:
    """The same as a table."""
    table = Table(title="whose code it was", title_justify="left")
    for column in ("piece", "whose", "where", "calls by rank 0"):
        table.add_column(column, justify="right" if column.startswith("calls") else "left")
    for row in pieces_as_dict(pieces, runs)["pieces"]:
        yours = row["whose"] == "yours"
        whose = Text(row["whose"], "green" if yours else "dim")
        table.add_row(row["socket"], whose, row["where"], f"{row['calls']:,}" if yours else "")
    console.print(table)


def called_in_all(pieces: list[Piece], runs: list[Run]) -> list[str]:
    """The sockets in which rank 0 of every one of these runs called the learner's function."""
    return [piece.socket for piece in pieces if all(piece.socket in run.ranks[0].socket_calls for run in runs)]
