"""The best layout of what is left: always legal, never slower than plain data parallelism, the same every time."""

from dataclasses import replace
from fractions import Fraction
from itertools import filterfalse

import pytest

from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.resilience.shrink import best_layout, step_time
from minidist.train.rules import loosened_by
from minidist.verify.comparison import DEFAULT_LAYOUTS, MORE_LAYOUTS
from minidist.verify.matrix import every_combination

DENSE = TrainConfig(layers=3, heads=4, context=16, sequence_chunks=4, global_batch=14, micro_batch=2)
CONFIGS = [
    DENSE,
    replace(DENSE, sequence_chunks=1, heads=3, width=48, layers=2),
    replace(DENSE, experts=4, expert_hidden=32, global_batch=24),
]


@pytest.mark.long
@pytest.mark.parametrize("config", CONFIGS, ids=["chunks", "odd heads", "experts"])
def test_always_legal_and_never_slower_than_data_parallelism(config):
    """Tried for every layout on up to 4 ranks and some on up to 8, and all numbers of ranks that may be left."""
    small = {c.layout for c in every_combination(config, 4) if not loosened_by(c.layout)}  # those save nothing
    large = {c.layout for c in every_combination(config, 8) if not loosened_by(c.layout)} - small
    tried = sorted(small, key=str) + sorted(large, key=str)[:: max(1, len(large) // 80)]
    assert len(tried) > 200
    for layout in tried:
        for left in range(1, layout.world_size + 1):
            best = best_layout(config, layout, left)
            config.check(best)
            assert best.world_size <= left and best == best_layout(config, layout, left)
            assert step_time(config, best) <= step_time(config, Layout(dp=min(left, config.micro_batches)))
            assert best.recompute == layout.recompute
            assert best.zero == (layout.zero if best.replicas > 1 else 0)
            if left == layout.world_size and step_time(config, layout) == step_time(config, best):
                assert best == layout  # nothing is gained by another


def test_more_ranks_are_never_slower():
    for layout in filterfalse(loosened_by, (*DEFAULT_LAYOUTS, *MORE_LAYOUTS)):
        config = replace(CONFIGS[2] if layout.ep > 1 else DENSE, layers=4)
        times = [step_time(config, best_layout(config, layout, ranks)) for ranks in range(1, 9)]
        assert times == sorted(times, reverse=True)


def test_settings_and_experts_stay_where_they_can():
    dense = replace(DENSE, global_batch=24)
    for config, before, ranks, after in (
        (dense, "dp=2,tp=2,sp=1", 2, "tp=2,sp=1"),  # as fast as dp=2, and less is changed
        (dense, "dp=4,zero=3,shard=2,prefetch=1", 3, "dp=3,zero=3,prefetch=1"),
        (dense, "dp=2,zero=3,prefetch=1,algorithm=direct,recompute=full", 1, "algorithm=direct,recompute=full"),
        (dense, "cp=4,cp_kind=ulysses,zero=2", 2, "zero=2,cp=2,cp_kind=ulysses"),
        (dense, "cp=2,cp_kind=zigzag,pp=2", 3, "dp=3"),
        (dense, "dp=6,node_size=3,algorithm=hierarchical", 3, "dp=3,algorithm=hierarchical,node_size=3"),
        (dense, "dp=6,node_size=3,algorithm=hierarchical", 5, "dp=4,algorithm=hierarchical"),  # of no nodes
        (CONFIGS[2], "dp=4,ep=4", 3, "dp=3"),
        (CONFIGS[2], "dp=6,ep=2", 4, "dp=4,ep=2"),
    ):
        assert str(best_layout(config, Layout.parse(before), ranks)) == after, before


def test_step_time_of_a_pipeline_by_hand():
    config = replace(DENSE, layers=3, global_batch=12)  # 6 micro-batches
    assert step_time(config, Layout()) == 6
    assert step_time(config, Layout(dp=4)) == 2
    assert step_time(config, Layout(dp=2, tp=2, cp=2)) == Fraction(3, 4)
    assert step_time(config, Layout(pp=2)) == Fraction(6 * 2, 3) * (1 + Fraction(1, 6))
    assert step_time(config, Layout(pp=3, schedule="naive")) == 6  # nobody works beside another
    assert step_time(replace(config, layers=4), Layout(pp=2, virtual=2)) == 3 * (1 + Fraction(1, 12))
