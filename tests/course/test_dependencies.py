"""A task is judged again when something has changed that its verdict depends on, and else not."""

import pytest

from minidist.course.dependencies import dependencies, tasks_used
from minidist.course.grading.run_graders import run_graders
from minidist.course.tasks import tasks_of

ANSWERS = """
import numpy as np
LIMIT = 3

def helper(x):
    return x + 1

def first(x):
    return helper(x)

def second(x: int, start=0):
    return x

class Third:
    size = 4
    def run(self):
        return self.size

def stage1():
    pass

TABLE = {}

def entered(function):
    TABLE[function.__name__] = function

@entered
def looked_up(x):
    return -x

class Fifth:
    @entered
    def step(self):
        return 7
"""
GRADERS = """
def run_second(answers):
    return answers.second(1)

def run_stage(answers, number):
    return getattr(answers, f"stage{number}")()

@pytest.mark.task("9.1", points=1)
class TestFirst: pass

@pytest.mark.task("9.2", points=1)
class TestThird:
    def test(self, student):
        run_second(student)

@pytest.mark.task("9.3", points=1)
class TestFourth:
    def test(self, student):
        run_stage(student, 1)
"""
DEFINITIONS = {"9.1": ["first"], "9.2": ["Third"], "9.3": []}
USES = {"9.1": ["a"], "9.2": ["b", "B"], "9.3": ["c"]}


def changed(old: str, new: str, answers: str = ANSWERS, graders: str = GRADERS) -> str:
    """The tasks to judge again after a change of the answers."""
    assert answers.count(old) == 1
    before = dependencies(answers, graders, DEFINITIONS)
    after = dependencies(answers.replace(old, new), graders, DEFINITIONS)
    return " ".join(task for task in before if before[task][0] != after[task][0])


CHANGES = [  # (from, to, the tasks that are judged again)
    ("return helper(x)", "return helper(x) + 0", "9.1"),
    ("return x + 1", "return x + 2", "9.1"),  # through first
    ("return x\n", "return 2 * x\n", "9.2"),  # through the grader
    ("return self.size", "return 5", "9.2"),
    ("    pass", "    return 1", "9.3"),  # a name that the grader puts together
    ("return -x", "return 2 - x", "9.1 9.2 9.3"),  # without its name: a decorator of the file may have stored it
    ("return 7", "return 8", "9.1 9.2 9.3"),
    ("LIMIT = 3", "LIMIT = 4", "9.1 9.2 9.3"),
    ("import numpy as np", "import numpy", "9.1 9.2 9.3"),
    ("start=0", "start=np.zeroes(1)", "9.1 9.2 9.3"),  # an error when it is defined keeps the file from loading
    ("x: int", "x: intt", "9.1 9.2 9.3"),
    ("size = 4", "size = helper(4)", "9.1 9.2 9.3"),
    ("def helper(x):", "def helper(x:", "9.1 9.2 9.3"),  # not Python
    ("return x + 1", "return x + 1  # a comment", ""),
    ("LIMIT = 3", "\n\nLIMIT = 3", ""),
    ("    pass", "    pass\n\n\ndef unused(x):\n    return 1", ""),
    ("def first(x):", "def helper(x):\n    return 7\n\n\ndef first(x):", "9.1"),  # the last of one name counts
]


def test_what_a_change_concerns():
    wrong = [change for *change, tasks in CHANGES if changed(*change) != tasks]
    at_load = ANSWERS.replace("size = 4", "size = helper(4)")  # it uses helper
    assert wrong == [] and changed("return x + 1", "return x + 2", at_load) == "9.1 9.2 9.3"
    by_name = ANSWERS.replace("helper(x)\n", "globals()['helper'](x)\n")  # depends on all
    assert changed("    pass", "    return 1", by_name) == "9.1 9.3"
    below = ANSWERS.replace("return helper(x)", "\n    return helper(x)")  # within a definition
    texts = (ANSWERS, GRADERS), (ANSWERS, GRADERS + "\n"), ("\n" + ANSWERS, GRADERS), (below, GRADERS)
    now, graders, moved, inner = (dependencies(*text, DEFINITIONS) for text in texts)
    assert all(now[task][0] != graders[task][0] for task in now)
    assert all(now[task][0] == moved[task][0] and now[task][1] != moved[task][1] for task in now)
    assert now["9.1"][0] == inner["9.1"][0] and now["9.1"][1] != inner["9.1"][1]


def test_which_tasks_an_answer_builds_on():
    """Directly, and through functions of its own."""
    text = """
def a(): return 1
def helper(x): return a() if x else helper(1)
def b(): return helper(0) + b()
class B:
    def method(self): return c()
def c(): return b()
"""
    uses = {task: tasks_used(text, USES, task) for task in USES}
    assert uses == {"9.1": [], "9.2": ["9.1", "9.3"], "9.3": ["9.2"]}  # what b uses is said where b fails
    assert tasks_used("def a(:", USES, "9.1") == []  # no Python


@pytest.mark.long
def test_the_task_list_is_what_pytest_collects():
    for result in run_graders("solutions", [], "--collect-only"):
        read = {task.number: task for task in tasks_of(result.task.chapter)}
        result.task.tests = 0
        assert read[result.task.number] == result.task
