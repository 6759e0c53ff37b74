"""Expert parallelism: whose experts, which rows go where, and how many bytes."""

from dataclasses import replace
from unittest import mock

import numpy as np
import pytest

from minidist import overrides
from minidist.nn.tensor import Tensor
from minidist.parallel import expert
from minidist.parallel.expert import expert_groups
from minidist.parallel.tools.token_exchange import exchange_counts, from_experts, to_experts
from minidist.plan.expert_traffic import all_to_all_elements
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RunOptions
from minidist.train.trainer import run, train_rank
from minidist.verify.comparison import agrees

BASE = TrainConfig(
    layers=2, heads=4, width=16, context=16, steps=1, global_batch=16, micro_batch=2, clip=0.05, warmup=1, lr=1e-2,
    dropout=0.1, experts=8, expert_hidden=16, aux_loss=0.02, bias_rate=0.0,
)  # fmt: skip

# Groups


def test_groups_by_hand():
    mesh = np.arange(16).reshape(2, 4, 1, 2)  # pp, dp, cp, tp
    exchanging, same = expert_groups(mesh, 2)
    assert exchanging == [[0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9, 11], [12, 14], [13, 15]]
    assert same == [[0, 4], [1, 5], [2, 6], [3, 7], [8, 12], [9, 13], [10, 14], [11, 15]]


def test_groups_of_every_mesh():
    for shape in [(1, 1, 1, 1), (1, 6, 1, 1), (3, 4, 5, 2), (2, 12, 3, 1)]:
        mesh = np.arange(np.prod(shape)).reshape(shape)
        place = dict(zip(mesh.ravel().tolist(), np.ndindex(shape), strict=True))
        for ranks in (n for n in range(1, shape[1] + 1) if shape[1] % n == 0):
            exchanging, same = expert_groups(mesh, ranks)
            for groups, size in ((exchanging, ranks), (same, shape[1] // ranks * shape[2])):
                assert sorted(rank for group in groups for rank in group) == list(range(mesh.size))
                assert all(len(group) == size and group == sorted(group) for group in groups)
            for group in exchanging:  # all experts, in order, for the tokens of one pipeline stage, chunk and head
                assert [place[rank][1] % ranks for rank in group] == list(range(ranks))
                assert len({(p, d // ranks, c, t) for p, d, c, t in (place[rank] for rank in group)}) == 1
            for group in same:
                assert len({(p, d % ranks, t) for p, d, c, t in (place[rank] for rank in group)}) == 1


# The exchange


def exchange_by_hand(world, matrix, width):
    """Every row says who sent it, to which expert, and which of those it is. Runs in a rank."""
    counts = matrix[world.rank]
    rows = [(world.rank, expert, n) for expert, count in enumerate(counts) for n in range(count)]
    rows = np.array(rows, np.float32).reshape(-1, 3)
    rows = np.concatenate([rows, np.ones((len(rows), width - 3), np.float32)], 1)
    x = Tensor(rows, requires_grad=True)
    arrived, grains, send, receive = to_experts(x, counts, world)
    back = from_experts(arrived * 2.0, send, receive, world)
    back.backward(rows)
    return arrived.data[:, :3], grains, np.array_equal(back.data, 2 * rows), np.array_equal(x.grad, 2 * rows)


def test_rows_arrive_by_rank_and_expert_and_come_back(ranks):
    for matrix, width in (
        ([[1, 2], [3, 0]], 3),
        ([[0, 0, 0], [0, 0, 0], [0, 0, 0]], 3),
        ([[0, 0, 7], [0, 0, 0], [0, 0, 1]], 3),
        ([[2, 0, 1, 4, 0, 3], [0, 0, 0, 0, 0, 0], [5, 1, 1, 0, 0, 2]], 4),
        ([[n * e % 4 for e in range(10)] for n in range(5)], 3),
        ([[3000, 1], [2000, 2]], 200),  # more than a queue holds
    ):
        size = len(matrix)
        each = len(matrix[0]) // size
        for rank, (arrived, grains, there, back) in enumerate(ranks(size).run(exchange_by_hand, matrix, width)):
            mine = range(rank * each, (rank + 1) * each)
            expected = [(n, e, i) for n in range(size) for e in mine for i in range(matrix[n][e])]
            assert arrived.tolist() == [list(row) for row in expected]
            assert grains == [matrix[n][mine.start : mine.stop] for n in range(size)]
            assert there and back


def test_a_rank_that_skips_the_exchange_does_not_hang_the_others(ranks):
    """As one without tokens may be tempted to (Automodel #935)."""
    with pytest.raises(Exception, match="exchange_counts"):
        ranks(3).run(lambda world: exchange_counts([1, 1, 1], world) if world.rank else None, timeout=60)


# Routes


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
    for text, experts in (("dp=4,ep=2,zero=3", 8), ("dp=5,ep=5", 10)):
        config, layout = replace(BASE, steps=2, experts=experts), Layout.parse(text)
        expected = run(ranks(1), config, Layout(), rank_function=choosing(first_experts))
        found = run(ranks(layout.world_size), config, layout, rank_function=choosing(first_experts))
        assert agrees(expected, found)
        counts = found.ranks[0].expert_counts[-1][0]
        assert counts[:2].tolist() == [config.tokens_per_step] * 2 and not counts[2:experts].any()


def routes_of_a_step(world, config, layout, options):
    """How many rows this rank sends to others, both ways, beside what it brings back. Runs in a rank."""
    away = []

    def watching(x, counts, group):
        found = to_experts(x, counts, group)
        away.append([sum(splits) - splits[group.rank] for splits in found[2:]])
        return found

    with mock.patch.object(expert, "to_experts", watching):
        return train_rank(world, config, layout, options), np.array(away)


def test_bytes_are_what_the_routes_say(ranks):
    """Rows go there and come back, and so do their gradients; what stays on the rank is not sent."""
    for text, experts, precision in (("dp=4,ep=2,zero=2", 8, "fp32"), ("dp=5,ep=5", 10, "bf16")):
        config, layout = replace(BASE, precision=precision, experts=experts), Layout.parse(text)
        for result, away in ranks(layout.world_size).run(routes_of_a_step, config, layout, RunOptions()):
            of_axis = [row for row in result.collectives if row["axis"] == "ep"]
            rows = [row for row in of_axis if row["dtype"] != "int64"]
            sent = sum(row["bytes_sent"] for row in rows)
            assert sent == 2 * away.sum() * config.width * (4 if precision == "fp32" else 2) and sent > 0
            assert sum(row["calls"] for row in rows) == 4 * len(away)
            assert all(row["elements"] == 0 for row in rows)  # one row of the table, whatever the splits are
            (counts,) = (row for row in of_axis if row["dtype"] == "int64")
            assert counts["bytes_sent"] == len(away) * (layout.ep - 1) * experts // layout.ep * 8


def test_even_routing_sends_what_the_formula_says_and_each_rank_holds_its_experts_alone(ranks):
    """Of n tokens a rank sends k n rows of C numbers each way, less the 1/N that stays; twice, and their gradients."""
    whole = BASE.layers * 8 * 2 * 16 * 16 * 4  # experts, two weights, float32
    for text, share in (("dp=2", 1), ("dp=2,ep=2", 2), ("dp=4,ep=2", 2), ("dp=4,ep=4", 4), ("dp=4,ep=2,zero=1", 4)):
        layout = Layout.parse(text)
        tokens = BASE.tokens_per_step // layout.dp
        rows = BASE.layers * tokens * BASE.top_k * (layout.ep - 1) // layout.ep
        planned = all_to_all_elements(tokens, BASE.width, BASE.top_k, layout.ep)
        for rank in run(ranks(layout.world_size), BASE, layout, rank_function=choosing(in_turn)).ranks:
            sent = sum(r["bytes_sent"] for r in rank.collectives if r["axis"] == "ep" and r["dtype"] == "float32")
            assert sent == 4 * rows * BASE.width * 4 == 4 * BASE.layers * planned, text
            assert rank.memory["experts"] == whole // share, text
    assert "experts" not in run(ranks(1), BASE.without_experts(), Layout()).ranks[0].memory


def test_what_crosses_nodes_with_a_limit(ranks):
    """Four ranks on four nodes: copies cross one by one here; with a limit they are on fewer different nodes."""
    for limit in (0, 2, 1):
        config = replace(BASE, experts=16, top_k=4, expert_nodes=4, route_nodes=limit)
        found = ranks(4).run(routes_of_a_step, config, Layout.parse("dp=4,ep=4"), RunOptions())
        tokens, crossing = config.tokens_per_step * config.layers, sum(int(away[:, 0].sum()) for _, away in found)
        visits = int(found[0][0].expert_counts[-1][:, -1].sum())
        assert tokens <= visits <= tokens * (limit or 4) and (not limit or visits > 0.9 * tokens * limit)
        assert visits - tokens < crossing <= 4 * tokens  # at home on one node; another visit is a copy or more
