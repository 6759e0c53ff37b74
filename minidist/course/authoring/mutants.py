"""Mutants: solutions with one bug of the kind that people write. Each grader must catch all mutants of its task.

``tests/exercises/mutants/chNN_name.toml`` lists them: a table for each task and kind, and for each bug the line of the
solution and its replacement. The stub, or program with a bug, that a task gives to the learner is a mutant too and need
not be listed. ``minidist mutants`` runs the graders on all of them and shows which test caught each.
"""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from textwrap import indent

from rich.console import Console
from rich.table import Table
from rich.text import Text

from minidist.course.answers import Source, chapter_of, course_folder, solutions
from minidist.course.grading.run_graders import run_graders
from minidist.course.stubs import definitions_by_task, replace_definitions, stub_of
from minidist.course.tasks import Verdict

KINDS = {
    "logic": "wrong values, messages or costs",
    "dtype": "right for one dtype, wrong for another that the contract leaves open",
    "second call": "right when called once",
    "lent": "keeps, returns or still sends an array that belongs to the caller",
    "edge": "right but for a size or a value at the edge",
}


@dataclass(frozen=True)
class Mutant:
    """A solution with a bug.

    Attributes:
        task: the task whose grader must catch it.
        bug: the bug in words.
        changes: pairs (old, new), a text, or None. ``old`` is a part of a line, or whole lines at any indentation if
            either has several; it occurs exactly once between the task's markers. A text replaces everything between
            the markers. None stands for what the task gives to the learner: a stub or a program with a bug.
        kind: one of KINDS.
    """

    task: str
    bug: str
    changes: tuple[tuple[str, str], ...] | str | None
    kind: str = "logic"

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"{self}: expected a kind of {', '.join(KINDS)}, got {self.kind}")

    def __str__(self) -> str:
        return f"mutant {self.bug!r} of task {self.task}"

    def source(self) -> Source:
        """Return the chapter's solutions with the bug.

        Raises:
            ValueError: if a line is not found exactly once in the task, or the result is not Python: a mutant that
                cannot be loaded fails anyway and proves nothing about the grader.
        """
        solution = solutions()[chapter_of(self.task)]
        text = solution.text
        if self.changes is None:
            names = definitions_by_task(text)[self.task]
            return replace(solution, text=replace_definitions(text, stub_of(text, solution.name), names))
        first = text.index(f"# >>> {self.task}\n")
        last = text.index("# <<<\n", text.rindex(f"# >>> {self.task}\n"))
        body = text[first:last]
        if isinstance(self.changes, str):
            body = f"# >>> {self.task}\n{indent(self.changes, '    ')}\n    "
        else:
            for old, new in self.changes:
                body = self._replaced(body, old, new)
        text = text[:first] + body + text[last:]
        try:
            compile(text, solution.path, "exec")
        except SyntaxError as error:
            raise ValueError(f"{self} is not Python: {error}") from None
        return replace(solution, text=text)

    def _replaced(self, body: str, old: str, new: str) -> str:
        if "\n" not in old + new:
            blocks = [(old, new)]
        else:
            indents = (" " * 4 * depth for depth in range(6))
            blocks = [(f"\n{indent(old, each)}\n", f"\n{indent(new, each)}\n") for each in indents]
        found = [block for block in blocks if block[0] in body]
        if len(found) != 1 or body.count(found[0][0]) != 1:
            raise ValueError(f"{self}: the solution must contain {old!r} exactly once")
        return body.replace(*found[0])


def one_of_each_kind(mutants: Sequence[Mutant]) -> list[Mutant]:
    """Return the first mutant of each task and kind."""
    return list({(mutant.task, mutant.kind): mutant for mutant in reversed(mutants)}.values())[::-1]


@cache
def all_mutants() -> list[Mutant]:
    """Return every mutant, in the order of the chapters."""
    mutants: list[Mutant] = []
    for name, source in solutions().items():
        file = course_folder("tests/exercises") / "mutants" / f"{name}.toml"
        for task, kinds in tomllib.loads(file.read_text(encoding="utf-8")).items() if file.exists() else ():
            for kind, bugs in kinds.items():
                for bug, what in bugs.items():  # a text, or a flat list: old, new, old, new
                    changes = what if isinstance(what, str) else tuple(zip(what[::2], what[1::2], strict=True))
                    mutants.append(Mutant(task, bug, changes, kind))
        mutants += [Mutant(task, "as given to the learner", None) for task in definitions_by_task(source.text)]
    return mutants


def catch_mutants(console: Console, target: str | None) -> bool:
    """Judge mutants of a chapter ("3") or task ("3.4"), or all; print what caught each; return whether all are caught.

    Raises:
        ValueError: if the target has no mutants, or a mutant no longer fits its solution.
    """
    mutants = [m for m in all_mutants() if target is None or target in (m.task, m.task.partition(".")[0])]
    if not mutants:
        raise ValueError(f"there are no mutants of {target}: expected a chapter (3) or a task (3.4)")
    for mutant in mutants:
        mutant.source()
    with console.status("") as status:
        results = run_graders(
            "solutions",
            [target] if target else [],
            "--mutants",
            on_verdict=lambda verdict: status.update(f"task {verdict.task}: {verdict.mutant}"),
        )
    title = "mutants and the tests that caught them"
    table = Table("task", "bug", "caught by", "message", title=title, title_justify="left")
    verdicts = {(v.task, v.mutant): v for result in results for v in result.verdicts if v.state != "passed"}
    caught = [verdicts.get((mutant.task, mutant.bug)) for mutant in mutants]
    for mutant, verdict in zip(mutants, caught, strict=True):
        if verdict is None:
            table.add_row(mutant.task, mutant.bug, Text("NOT CAUGHT", "bold red"), "")
        else:
            table.add_row(mutant.task, mutant.bug, verdict.test, verdict.message.splitlines()[0])
    console.print(table)
    console.print(_by_kind(mutants, caught))
    console.print(f"caught {len(caught) - caught.count(None)} of {len(caught)} mutants", style="bold")
    return None not in caught


def _by_kind(mutants: list[Mutant], caught: list[Verdict | None]) -> Table:
    table = Table(title="caught by kind", title_justify="left")
    for column in ("kind", "what is wrong with it", "caught", "of"):
        table.add_column(column, justify="right" if column in ("caught", "of") else "left")
    for kind, about in KINDS.items():
        verdicts = [verdict for mutant, verdict in zip(mutants, caught, strict=True) if mutant.kind == kind]
        if verdicts:
            table.add_row(kind, about, str(len(verdicts) - verdicts.count(None)), str(len(verdicts)))
    return table
