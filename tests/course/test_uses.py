"""Which tasks an answer builds on."""

from minidist.course.source.uses import tasks_used

DEFINITIONS = {"9.1": ["a"], "9.2": ["b", "B"], "9.3": ["c"]}
TEXT = """
def a(): return 1
def helper(x): return a() if x else helper(1)
def b(): return helper(0) + b()
class B:
    def method(self): return c()
def c(): return b()
"""


def test_directly_and_through_functions_of_its_own():
    assert tasks_used(TEXT, DEFINITIONS, "9.1") == []
    assert tasks_used(TEXT, DEFINITIONS, "9.2") == ["9.1", "9.3"]
    assert tasks_used(TEXT, DEFINITIONS, "9.3") == ["9.2"]  # what b uses is said where b fails


def test_a_file_that_is_not_python():
    assert tasks_used("def a(:", DEFINITIONS, "9.1") == []
