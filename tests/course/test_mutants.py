"""The course proves itself: every grader catches every mutant of its solution."""

import pytest

from minidist.cli import main
from minidist.course.answers import chapter_names
from minidist.course.authoring.mutants import AsGiven, Mutant, all_mutants
from minidist.course.grading.judge import Judged, judge
from minidist.course.tasks import Task, Verdict

CHAPTERS = [str(int(name[2:4])) for name in chapter_names()]


def caught(judged: list[Judged]) -> set[tuple[str, str]]:
    """(task, mutant) of every mutant that a grader has caught."""
    return {(verdict.task, verdict.mutant) for one in judged for verdict in one.verdicts if verdict.state != "passed"}


def test_one_mutant_of_each_task_is_caught():
    judged = judge("solutions", [], "--mutants=one")
    tasks = {task for task, _ in caught(judged)}
    assert [one.task.number for one in judged if one.task.number not in tasks] == []


@pytest.mark.long
@pytest.mark.parametrize("chapter", CHAPTERS)
def test_every_mutant_is_caught(chapter):
    found = caught(judge("solutions", [chapter], "--mutants"))
    mutants = [mutant for mutant in all_mutants() if mutant.task.split(".")[0] == chapter]
    assert mutants and [mutant for mutant in mutants if (mutant.task, mutant.bug) not in found] == []


def test_every_task_has_its_mutants():
    """What is given to the learner is one of them, and what is planted is more than a stub."""
    for one in judge("solutions", [], "--collect-only"):
        mutants = [mutant for mutant in all_mutants() if mutant.task == one.task.number]
        assert sum(isinstance(mutant, AsGiven) for mutant in mutants) == 1
        planted = sum(isinstance(mutant, Mutant) for mutant in mutants)
        assert planted >= {"code": 3, "worksheet": 2, "debugging": 1}[one.task.kind], one.task


def test_a_bug_that_is_not_caught_is_told(monkeypatch, capsys):
    """A planted bug that changes nothing stands for a grader that sees nothing."""
    harmless = Mutant("3.5", "a bug that is none", "right, left = (rank + 1) % size", "right, left = (1 + rank) % size")
    real = next(mutant for mutant in all_mutants() if mutant.task == "3.5")
    task = Task("3.5", 4, "hint", "code", "title", "ch03_collectives")
    known = Judged(task, [Verdict("3.5", "test_values", "failed", "wrong", mutant=real.bug)])
    monkeypatch.setattr("minidist.course.authoring.mutants.all_mutants", lambda: [harmless, real])
    monkeypatch.setattr("minidist.course.authoring.mutants.judge", lambda *_, **__: [known])
    assert main(["mutants", "3.5"]) == 1
    shown = capsys.readouterr().out
    assert shown.count("NOT CAUGHT") == 1 and "1 of 2 planted bugs are caught" in shown


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("rank", "x", "exactly once"),
        ("no such text", "x", "exactly once"),
        ("range(size - 1)", "range(", "is not Python"),
    ],
)
def test_a_planted_bug_that_does_not_fit(old, new, message):
    with pytest.raises(ValueError, match=message):
        Mutant("3.5", "unfit", old, new).source()
