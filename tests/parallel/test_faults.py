"""Every planted fault shows: the run differs from that of one process, or ends with an error that helps."""

import re
from dataclasses import replace
from functools import cache, partial

import pytest
from parallel.faults import BASE, FAULTS, train_with

from minidist.comm import Deadlock, RankFailed
from minidist.train.layout import Layout
from minidist.train.trainer import run
from minidist.verify.comparison import agrees


@pytest.fixture(scope="module")
def one_process(ranks):
    """``one_process(config)`` is the run on one process, the same one for every fault."""
    return cache(lambda config: run(ranks(1), config, Layout()))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        pytest.param(name, text, marks=pytest.mark.long if number else ())
        for name, fault in FAULTS.items()
        for number, text in enumerate(fault.layouts)
    ],
)
def test_a_fault_shows(ranks, one_process, name, text):
    fault, layout = FAULTS[name], Layout.parse(text)
    config = replace(BASE, **fault.changes)
    try:
        found = run(ranks(layout.world_size), config, layout, rank_function=partial(train_with, name))
    except (RankFailed, Deadlock) as error:
        assert fault.stops and re.search(fault.stops, str(error)), error
    else:
        assert not agrees(one_process(config), found)
