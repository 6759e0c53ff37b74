"""Mutants: solutions with one bug of the kind that people write. Each grader must catch all mutants of its task.

``tests/exercises/mutants/chNN_name.py`` lists them as ``MUTANTS``. What a task gives to the learner, a stub or a
program with a bug, is a mutant too and need not be listed.
"""

import runpy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from textwrap import dedent, indent

from minidist.course.answers import Source, chapter_of, course_folder, read_answers
from minidist.course.source.stubs import definitions_by_task, replace_definitions, stub_of

WHOLE = "the whole answer"
KINDS = {
    "logic": "wrong values, messages or costs",
    "dtype": "right for one dtype, wrong for another that the contract leaves open",
    "second call": "right when called once",
    "lent": "keeps, returns or still sends an array that belongs to the caller",
    "edge": "right but for a size or a value at the edge",
}


@dataclass(frozen=True)
class Mutant:
    """A solution in which one piece of text is replaced.

    Attributes:
        task: the task whose grader must catch it.
        bug: what is wrong, in words.
        old: a piece of a line, or whole lines at any indentation, found exactly once between the task's markers.
            WHOLE for everything between them, where the task has one pair of markers.
        new: what replaces it; "" for nothing.
        kind: one of KINDS.
    """

    task: str
    bug: str
    old: str
    new: str
    kind: str = "logic"

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(
                f"mutant {self.bug!r} of task {self.task}: expected a kind of {', '.join(KINDS)}, got {self.kind}"
            )

    def source(self) -> Source:
        """The chapter's solutions with the bug.

        Raises:
            ValueError: if ``old`` is not found exactly once in the task, or the result is not Python.
        """
        solution = read_answers(course_folder("solutions"))[chapter_of(self.task)]
        before, body, after = _split_at_markers(solution.text, self.task)
        if self.old == WHOLE:
            changed = f"# >>> {self.task}\n" + indent(dedent(self.new).strip("\n"), "    ") + "\n    "
            return self._compiled(Source(solution.name, solution.path, before + changed + after))
        old, new = dedent(self.old).strip("\n"), dedent(self.new).strip("\n")
        depths = [" " * 4 * depth for depth in range(1, 6)] if "\n" in self.old else [""]
        found = [depth for depth in depths if f"\n{indent(old, depth)}\n" in body] if "\n" in self.old else [""]
        if len(found) != 1 or body.count(indent(old, found[0])) != 1:
            raise ValueError(
                f"mutant {self.bug!r} of task {self.task}: the solution must contain {self.old!r} exactly once"
            )
        changed = body.replace(indent(old, found[0]), indent(new, found[0]))
        return self._compiled(Source(solution.name, solution.path, before + changed + after))

    def _compiled(self, source: Source) -> Source:
        """The source, if it is Python: a mutant that cannot be loaded fails anyway and proves nothing of the grader."""
        try:
            compile(source.text, source.path, "exec")
        except SyntaxError as error:
            raise ValueError(f"mutant {self.bug!r} of task {self.task} is not Python: {error}") from None
        return source


@dataclass(frozen=True)
class AsGiven:
    """What a task gives to the learner: a stub, or a program with a bug."""

    task: str
    bug: str = "as given to the learner"
    kind: str = "logic"

    def source(self) -> Source:
        solution = read_answers(course_folder("solutions"))[chapter_of(self.task)]
        stub, names = stub_of(solution.text, solution.name), definitions_by_task(solution.text)[self.task]
        return Source(solution.name, solution.path, replace_definitions(solution.text, stub, names))


def _split_at_markers(text: str, task: str) -> tuple[str, str, str]:
    """The text before, between and after the markers of a task, from its first marker to its last."""
    first = text.index(f"# >>> {task}\n")
    last = text.index("# <<<\n", text.rindex(f"# >>> {task}\n"))
    return text[:first], text[first:last], text[last:]


def one_of_each_kind(mutants: Sequence[Mutant | AsGiven]) -> list[Mutant | AsGiven]:
    """The first mutant of each task and kind."""
    return list({(mutant.task, mutant.kind): mutant for mutant in reversed(mutants)}.values())[::-1]


@cache
def all_mutants() -> list[Mutant | AsGiven]:
    """Every mutant, in the order of the chapters."""
    mutants: list[Mutant | AsGiven] = []
    folder = course_folder("tests/exercises") / "mutants"
    for name, source in read_answers(course_folder("solutions")).items():
        if (folder / f"{name}.py").exists():
            mutants += runpy.run_path(str(folder / f"{name}.py"))["MUTANTS"]
        mutants += [AsGiven(task) for task in definitions_by_task(source.text)]
    return mutants
