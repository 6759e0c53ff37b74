"""docs/one_step.md follows the code: every stop is where it says, and there are not too many."""

import ast
import re
import sys
from collections import Counter
from unittest import mock

from minidist.course.answers import ROOT
from minidist.train import step as one_step
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RunOptions
from minidist.train.trainer import train_rank

PAGE = ROOT / "docs" / "one_step.md"
STOPS = re.findall(r"\| (\d+) \| \[`([\w.]+)`\]\(([^)]+)\)", PAGE.read_text(encoding="utf-8"))


def test_every_stop_is_where_the_page_says_and_both_ways_are_short():
    missing = []
    for _, name, link in STOPS:
        scope = ast.parse((PAGE.parent / link).read_text(encoding="utf-8"))
        for part in name.split("."):
            nodes = [node for node in scope.body if getattr(node, "name", "") == part] if scope else []
            scope = nodes[0] if nodes else None
        missing += [name] if scope is None else []
    assert STOPS and not missing
    numbers = [int(number) for number, *_ in STOPS]
    second = numbers.index(1, 1)  # where the second way begins
    for way in (numbers[:second], numbers[second:]):
        assert way == list(range(1, len(way) + 1)) and 10 <= len(way) <= 15


def test_a_step_is_plain_calls():
    """Nothing in it measures, prints or asks for the layout: no branch, no loop."""
    tree = ast.parse((ROOT / "minidist" / "train" / "step.py").read_text(encoding="utf-8"))
    (step,) = (node for node in tree.body if getattr(node, "name", "") == "train_step")
    assert not [node for node in ast.walk(step) if isinstance(node, ast.If | ast.For | ast.While | ast.With | ast.Try)]


def step_calls(world, config) -> Counter:
    """Count the library's calls in the second step of a run, by (file, function)."""
    calls, steps, train_step = Counter(), [], one_step.train_step

    def note(frame, event, _):
        if event == "call" and "minidist" in frame.f_code.co_filename:
            calls[frame.f_code.co_filename, frame.f_code.co_qualname] += 1

    def counted(*step):
        steps.append(step)
        sys.setprofile(note if len(steps) == 2 else None)
        try:
            return train_step(*step)
        finally:
            sys.setprofile(None)

    with mock.patch.object(one_step, "train_step", counted):
        train_rank(world, config, Layout(), RunOptions())
    return calls


def test_a_step_of_one_process_goes_through_few_functions(ranks):
    """No precision, recomputation or trace is in force. The numbers may only become less."""
    config = TrainConfig(layers=2, heads=4, width=64, context=16, global_batch=4, micro_batch=1, steps=2)
    (calls,) = ranks(1).run(step_calls, config)
    assert len(calls) <= 149 and len({file for file, _ in calls}) <= 25 and sum(calls.values()) <= 6_230
