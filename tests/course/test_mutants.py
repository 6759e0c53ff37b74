"""Every grader catches every mutant of its task."""

import pytest

from minidist.cli.main import main
from minidist.course.answers import chapter_names
from minidist.course.authoring.mutants import Mutant, all_mutants, one_of_each_kind
from minidist.course.grading.run_graders import run_graders
from minidist.course.tasks import Task, TaskResult, Verdict, tasks_of

CHAPTERS = [str(int(name[2:4])) for name in chapter_names()]


@pytest.mark.long
@pytest.mark.parametrize("chapter", CHAPTERS)
def test_mutants_of_every_kind_are_caught(chapter):
    """One of each task and kind. `minidist mutants` runs all of them, a thousand."""
    verdicts = [v for result in run_graders("solutions", [chapter], "--mutants=kinds") for v in result.verdicts]
    assert not any("[" in verdict.test for verdict in verdicts)  # a test's name is told without its cases
    caught = {(verdict.task, verdict.mutant) for verdict in verdicts if verdict.state != "passed"}
    mutants = one_of_each_kind([mutant for mutant in all_mutants() if mutant.task.split(".")[0] == chapter])
    assert mutants and [mutant for mutant in mutants if (mutant.task, mutant.bug) not in caught] == []


def test_every_task_has_its_mutants():
    """One of them is what the learner is given; the others are solutions with a bug."""
    every = all_mutants()
    for task in (task for name in chapter_names() for task in tasks_of(name)):
        given = [mutant.changes is None for mutant in every if mutant.task == task.number]
        assert given.count(True) == 1
        assert given.count(False) >= {"code": 3, "worksheet": 2, "debugging": 1}[task.kind], task


def test_a_mutant_that_is_not_caught_is_reported(monkeypatch, capsys):
    """A mutant without a bug stands for a grader that misses one."""
    harmless = Mutant("3.4", "no bug", (("right, left = (rank + 1) % size", "right, left = (1 + rank) % size"),))
    real = next(mutant for mutant in all_mutants() if mutant.task == "3.4")
    task = Task("3.4", 4, "code", "title", "ch03_collectives")
    known = TaskResult(task, [Verdict("3.4", "test_values", "failed", "wrong", mutant=real.bug)])
    monkeypatch.setattr("minidist.course.authoring.mutants.all_mutants", lambda: [harmless, real])
    monkeypatch.setattr("minidist.course.authoring.mutants.run_graders", lambda *_, **__: [known])
    assert main(["mutants", "3.4"]) == 1
    shown = capsys.readouterr().out
    assert shown.count("NOT CAUGHT") == 1 and "caught 1 of 2 mutants" in shown
