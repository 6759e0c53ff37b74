"""Expert parallelism: whose experts, ranks without a token, and how many bytes."""

from dataclasses import replace
from unittest import mock

import numpy as np

from minidist import overrides
from minidist.plan.expert_traffic import all_to_all_elements
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.trainer import run, train_rank
from minidist.verify.comparison import agrees

BASE = TrainConfig(
    layers=2, heads=4, width=16, context=16, steps=1, global_batch=16, micro_batch=2, clip=0.05, warmup=1, lr=1e-2,
    dropout=0.1, experts=8, expert_hidden=16, aux_loss=0.02, bias_rate=0.0,
)  # fmt: skip


def first_experts(scores, k):
    """Every token chooses the same k experts: the others, and the ranks that hold them, get none."""
    return np.tile(np.arange(k), (len(scores), 1))


def in_turn(scores, k):
    """Tokens choose the experts in turn, so that all get the same number."""
    tokens, experts = scores.shape
    return (np.arange(tokens * k) % experts).reshape(tokens, k)


def choosing(choose):
    def train(*arguments):
        with mock.patch.dict(overrides._overrides, {"top_k_experts": choose}):
            return train_rank(*arguments)

    return train


def test_experts_and_ranks_without_a_token(ranks):
    """A rank has no token in a round for which it has no micro-batch, either."""
    for text, experts, batch in (("dp=4,ep=2,zero=3", 8, 16), ("dp=5,ep=5", 10, 16), ("dp=2,ep=2,tp=2", 8, 6)):
        config, layout = replace(BASE, steps=2, experts=experts, global_batch=batch), Layout.parse(text)
        expected = run(ranks(1), config, Layout(), rank_function=choosing(first_experts))
        found = run(ranks(layout.world_size), config, layout, rank_function=choosing(first_experts))
        assert agrees(expected, found)
        counts = found.ranks[0].expert_counts[-1][0]
        assert counts[:2].tolist() == [config.tokens_per_step] * 2 and not counts[2:experts].any()


def rows_sent(rank, size: int) -> int:
    """Return the rows that a rank sent to experts on others, or back from its own, in numbers of ``size`` bytes."""
    rows = [row for row in rank.collectives if row["axis"] == "ep" and row["dtype"] != "int64"]
    return sum(row["bytes_sent"] for row in rows) // (BASE.width * size)


def test_even_routing_sends_what_the_formula_says_and_each_rank_holds_its_experts_alone(ranks):
    """For n tokens a rank sends k n rows of C numbers each way, less the 1/N that stays; twice, and their gradients."""
    whole = BASE.layers * 8 * 2 * 16 * 16  # experts, two weights
    for text, share, size in (
        ("dp=2", 1, 4), ("dp=2,ep=2", 2, 4), ("dp=4,ep=2", 2, 2), ("dp=4,ep=4", 4, 4), ("dp=4,ep=2,zero=1", 4, 4),
    ):  # fmt: skip
        layout, config = Layout.parse(text), replace(BASE, precision="bf16" if size == 2 else "fp32")
        tokens = BASE.tokens_per_step // layout.dp
        rows = BASE.layers * tokens * BASE.top_k * (layout.ep - 1) // layout.ep
        planned = all_to_all_elements(tokens, BASE.width, BASE.top_k, layout.ep)
        for rank in run(ranks(layout.world_size), config, layout, rank_function=choosing(in_turn)).ranks:
            assert rows_sent(rank, size) == 4 * rows == 4 * BASE.layers * planned // BASE.width // 4, text
            assert rank.memory["experts"] == 4 * whole // share, text
    stages = run(ranks(2), replace(BASE, moe_every=2), Layout(pp=2)).ranks  # the first has no mixture
    assert [rank.memory["experts"] for rank in stages] == [0, 4 * whole // BASE.layers]
    assert "experts" not in run(ranks(1), BASE.without_experts(), Layout()).ranks[0].memory


def test_what_crosses_nodes_with_a_limit(ranks):
    """Four ranks on four nodes: copies cross one by one here; with a limit they are on fewer different nodes."""
    for limit in (0, 2, 1):
        config = replace(BASE, experts=16, top_k=4, expert_nodes=4, route_nodes=limit)
        found = run(ranks(4), config, Layout.parse("dp=4,ep=4")).ranks
        tokens = config.tokens_per_step * config.layers
        crossing = sum(rows_sent(rank, 4) for rank in found) // 4  # there and back, and gradients
        visits = int(found[0].expert_counts[-1][:, -1].sum())
        assert tokens <= visits <= tokens * (limit or 4) and (not limit or visits > 0.9 * tokens * limit)
        assert visits - tokens < crossing <= 4 * tokens  # at home on one node; another visit is a copy or more
