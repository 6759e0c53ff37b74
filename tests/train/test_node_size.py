"""Layouts on several nodes: which groups their algorithm meets."""

from unittest import mock

from minidist.comm import collectives
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.rules import gradient_groups
from minidist.train.trainer import run, train_rank

CONFIG = TrainConfig(
    layers=2, heads=2, width=8, context=8, global_batch=4, micro_batch=1, steps=1, sequence_chunks=2, experts=4,
    expert_hidden=8, moe_every=2,
)  # fmt: skip


def recording(world, config, layout, options):
    """Train, and bring back the groups whose collectives were given the layout's algorithm."""
    seen, run_call = set(), collectives.run

    def watched(call, *arguments, **keywords):
        if call.algorithm == layout.algorithm and call.group.size > 1:
            seen.add(call.group.ranks)
        return run_call(call, *arguments, **keywords)

    with mock.patch.object(collectives, "run", watched):
        result = train_rank(world, config, layout, options)
    result.log = sorted(seen)
    return result


def test_the_groups_that_are_checked_are_those_that_sum_gradients(ranks):
    for text in (
        "dp=2,tp=2,node_size=2", "dp=2,cp=2,node_size=2", "dp=2,pp=2,node_size=2", "dp=4,ep=2,node_size=2",
        "dp=4,zero=3,shard=2,node_size=2", "dp=2,cp=2,zero=2,node_size=1", "dp=4,ep=2,zero=1,node_size=1",
    ):  # fmt: skip
        layout = Layout.parse(f"{text},algorithm=hierarchical")
        result = run(ranks(4), CONFIG, layout, rank_function=recording)
        found = {group for rank in result.ranks for group in rank.log}
        assert found == {tuple(group) for group in gradient_groups(layout) if len(group) > 1}, text
