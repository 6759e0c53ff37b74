"""``minidist mutants``: runs the graders on every mutant and shows which test caught it."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from minidist.course.authoring.mutants import KINDS, AsGiven, Mutant, all_mutants
from minidist.course.grading.run_graders import run_graders
from minidist.course.tasks import Verdict


def catch_mutants(console: Console, target: str | None) -> bool:
    """Judge mutants and print which test caught each; returns whether all were caught.

    Args:
        target: a chapter ("3") or task ("3.4"); None for all.

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
    table = Table(title="mutants and the tests that caught them", title_justify="left")
    for column in ("task", "bug", "caught by", "message"):
        table.add_column(column)
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


def _by_kind(mutants: list[Mutant | AsGiven], caught: list[Verdict | None]) -> Table:
    table = Table(title="caught by kind", title_justify="left")
    for column in ("kind", "what is wrong with it", "caught", "of"):
        table.add_column(column, justify="right" if column in ("caught", "of") else "left")
    for kind, about in KINDS.items():
        verdicts = [verdict for mutant, verdict in zip(mutants, caught, strict=True) if mutant.kind == kind]
        if verdicts:
            table.add_row(kind, about, str(len(verdicts) - verdicts.count(None)), str(len(verdicts)))
    return table
