"""docs/one_step.md follows the code: every stop is where it says, and there are not too many."""

import ast
import re

from minidist.course.answers import ROOT

PAGE = ROOT / "docs" / "one_step.md"
STOPS = re.findall(r"\| (\d+) \| \[`([\w.]+)`\]\(([^)]+)\)", PAGE.read_text(encoding="utf-8"))


def names_in(path) -> set[str]:
    """The functions, classes and methods that a file defines, methods as ``Class.method``."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
    return found


def test_every_stop_is_where_the_page_says():
    assert STOPS and [stop for stop in STOPS if stop[1] not in names_in((PAGE.parent / stop[2]).resolve())] == []


def test_both_ways_are_short():
    numbers = [int(number) for number, *_ in STOPS]
    second = numbers.index(1, 1)  # where the second way begins
    for way in (numbers[:second], numbers[second:]):
        assert way == list(range(1, len(way) + 1)) and 10 <= len(way) <= 15


def test_a_step_is_one_screen():
    """Nothing in it measures, prints or asks for the layout: plain calls, without a branch, in under 60 lines."""
    (step,) = (
        node
        for node in ast.parse((ROOT / "minidist" / "train" / "step.py").read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name == "train_step"
    )
    assert not [node for node in ast.walk(step) if isinstance(node, ast.If | ast.For | ast.While | ast.With | ast.Try)]
    assert len((ROOT / "minidist" / "train" / "step.py").read_text(encoding="utf-8").splitlines()) < 60
