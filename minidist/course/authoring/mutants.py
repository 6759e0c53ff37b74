"""Planted bugs: solutions with one mistake of the kind that people make. Every grader must catch every one of its own.

They stand in ``tests/exercises/mutants/chNN_name.py`` as a list ``MUTANTS``. What a task gives to the learner, the stub
or the program with the bug, is one of them without being listed.
"""

import runpy
from dataclasses import dataclass
from functools import cache
from textwrap import dedent, indent

from rich.console import Console
from rich.table import Table
from rich.text import Text

from minidist.course.answers import Source, chapter_of, course_folder, read_answers
from minidist.course.authoring.stubs import owners_of, put_back, stub_of
from minidist.course.grading.judge import judge

WHOLE = "the whole answer"


@dataclass(frozen=True)
class Mutant:
    """A solution in which one piece of text stands in place of another.

    Attributes:
        task: whose grader must catch it.
        bug: what is wrong, in words.
        old: a piece of a line, or whole lines at any indentation; stands exactly once between the task's markers.
            WHOLE for all that stands between them, where the task has one pair of markers.
        new: what stands there instead; "" for nothing.
    """

    task: str
    bug: str
    old: str
    new: str

    def source(self) -> Source:
        """The chapter's solutions with the bug in.

        Raises:
            ValueError: where ``old`` does not stand exactly once in the task, or the result is no Python.
        """
        solution = read_answers(course_folder("solutions"))[chapter_of(self.task)]
        before, body, after = _cut_out(solution.text, self.task)
        if self.old == WHOLE:
            changed = f"# >>> {self.task}\n" + indent(dedent(self.new).strip("\n"), "    ") + "\n    "
            return self._compiled(Source(solution.name, solution.path, before + changed + after))
        old, new = dedent(self.old).strip("\n"), dedent(self.new).strip("\n")
        depths = [" " * 4 * depth for depth in range(1, 6)] if "\n" in self.old else [""]
        found = [depth for depth in depths if f"\n{indent(old, depth)}\n" in body] if "\n" in self.old else [""]
        if len(found) != 1 or body.count(indent(old, found[0])) != 1:
            raise ValueError(
                f"mutant {self.bug!r} of task {self.task}: {self.old!r} has to stand in the solution exactly once"
            )
        changed = body.replace(indent(old, found[0]), indent(new, found[0]))
        return self._compiled(Source(solution.name, solution.path, before + changed + after))

    def _compiled(self, source: Source) -> Source:
        """The source, if it is Python: what cannot be loaded fails for that, and proves nothing of the grader."""
        try:
            compile(source.text, source.path, "exec")
        except SyntaxError as error:
            raise ValueError(f"mutant {self.bug!r} of task {self.task} is not Python: {error}") from None
        return source


@dataclass(frozen=True)
class AsGiven:
    """What a task gives to the learner: a stub, or a program with a bug."""

    task: str
    bug: str = "as it is given to the learner"

    def source(self) -> Source:
        solution = read_answers(course_folder("solutions"))[chapter_of(self.task)]
        stub = stub_of(solution.text, solution.name)
        return Source(solution.name, solution.path, put_back(solution.text, stub, owners_of(solution.text)[self.task]))


def _cut_out(text: str, task: str) -> tuple[str, str, str]:
    """What stands before, between and after the markers of a task: from its first to its last."""
    first = text.index(f"# >>> {task}\n")
    last = text.index("# <<<\n", text.rindex(f"# >>> {task}\n"))
    return text[:first], text[first:last], text[last:]


@cache
def all_mutants() -> list[Mutant | AsGiven]:
    """Every planted bug, in the order of the chapters."""
    found: list[Mutant | AsGiven] = []
    folder = course_folder("tests/exercises") / "mutants"
    for name, source in read_answers(course_folder("solutions")).items():
        if (folder / f"{name}.py").exists():
            found += runpy.run_path(str(folder / f"{name}.py"))["MUTANTS"]
        found += [AsGiven(task) for task in owners_of(source.text)]
    return found


def catch_all(console: Console, wish: str | None) -> bool:
    """Judge every planted bug and print which test caught it; returns whether all were caught.

    Raises:
        ValueError: for a task that is not there, or a planted bug that no longer fits its solution.
    """
    mutants = [mutant for mutant in all_mutants() if wish is None or wish in (mutant.task, mutant.task.split(".")[0])]
    if not mutants:
        raise ValueError(f"there is no planted bug for {wish}; it must be a chapter (3) or a task (3.4)")
    for mutant in mutants:
        mutant.source()
    with console.status("") as status:
        judged = judge(
            "solutions",
            [wish] if wish else [],
            "--mutants",
            on_verdict=lambda verdict: status.update(f"task {verdict.task}: {verdict.mutant}"),
        )
    table = Table(title="planted bugs, and what caught them", title_justify="left")
    for column in ("task", "planted bug", "caught by", "which said"):
        table.add_column(column)
    verdicts = {(v.task, v.mutant): v for one in judged for v in one.verdicts if v.state != "passed"}
    caught = [verdicts.get((mutant.task, mutant.bug)) for mutant in mutants]
    for mutant, verdict in zip(mutants, caught, strict=True):
        if verdict is None:
            table.add_row(mutant.task, mutant.bug, Text("NOT CAUGHT", "bold red"), "")
        else:
            table.add_row(mutant.task, mutant.bug, verdict.test, verdict.message.splitlines()[0])
    console.print(table)
    console.print(f"{len(caught) - caught.count(None)} of {len(caught)} planted bugs are caught", style="bold")
    return None not in caught
