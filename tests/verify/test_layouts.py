"""The lists that minidist verify tries: nothing is missing, and everything fits."""

import pytest

from minidist.cli.main import main
from minidist.comm.tables import ALL_REDUCE
from minidist.nn.memory.recompute import MODES
from minidist.parallel.context import KINDS
from minidist.parallel.data import SYNCS
from minidist.parallel.tools.schedules import SCHEDULES
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.verify.layouts import DEFAULT_LAYOUTS, MORE_LAYOUTS


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("sync", SYNCS),
        ("algorithm", ALL_REDUCE),
        ("zero", range(4)),
        ("sp", range(2)),
        ("schedule", SCHEDULES),
        ("recompute", MODES),
        ("reshard_after_forward", range(2)),
        ("prefetch", range(2)),
    ],
)
def test_every_value_of_each_setting_is_tried(key, values):
    assert {getattr(layout, key) for layout in DEFAULT_LAYOUTS} >= set(values)


def test_every_two_axes_meet():
    assert any(min(layout.dp, layout.tp, layout.pp) > 1 for layout in DEFAULT_LAYOUTS)
    assert any(min(layout.cp, layout.tp) > 1 for layout in DEFAULT_LAYOUTS)
    assert any(min(layout.cp, layout.zero) > 1 for layout in DEFAULT_LAYOUTS)
    assert {layout.cp_kind for layout in MORE_LAYOUTS + DEFAULT_LAYOUTS} == set(KINDS)
    assert any(layout.ep > 1 and layout.zero for layout in DEFAULT_LAYOUTS)
    for key in ("tp", "sp", "cp", "pp"):
        assert any(layout.ep > 1 and getattr(layout, key) > getattr(Layout, key) for layout in MORE_LAYOUTS), key
    assert any(layout.shard for layout in DEFAULT_LAYOUTS)


def test_all_are_different_and_fit_the_usual_model():
    layouts = DEFAULT_LAYOUTS + MORE_LAYOUTS
    assert len(set(layouts)) == len(layouts)
    for layout in layouts:
        experts = 0 if layout.ep == 1 else 8 if layout.ep != 5 else 10
        TrainConfig(sequence_chunks=1 if layout.cp == 1 else 4, experts=experts).check(layout)


def test_the_long_list_stands_alone(capsys):
    assert main(["verify", "--all", "dp=2"]) == 2
    assert "--all chooses the layouts itself" in capsys.readouterr().err
    assert main(["verify", "--all", "--matrix"]) == 2
    assert "--matrix chooses the layouts itself" in capsys.readouterr().err
