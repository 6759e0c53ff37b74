"""Expert parallelism: whose experts, whose bits, how many bytes, and faults of real systems that must be found."""

from collections.abc import Callable
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest

from minidist import overrides
from minidist.nn.moe import balance, permutation
from minidist.nn.precision.policy import POLICIES
from minidist.nn.tensor import Tensor
from minidist.parallel import balance as parallel_balance
from minidist.parallel import expert
from minidist.parallel.data import DataParallel
from minidist.parallel.expert import ExpertParallel, expert_groups
from minidist.parallel.tools import mappings
from minidist.parallel.tools.token_exchange import exchange_counts, from_experts, to_experts
from minidist.plan.expert_traffic import all_to_all_elements
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RunOptions
from minidist.train.trainer import run, train_rank
from minidist.verify.comparison import agrees, first_difference

BASE = TrainConfig(
    layers=2, heads=4, width=16, context=16, steps=2, global_batch=12, micro_batch=2, clip=0.05, warmup=1, lr=1e-2,
    dropout=0.1, experts=8, expert_hidden=16, aux_loss=0.02, bias_rate=0.0,
)  # fmt: skip
FULL = replace(BASE, shared_expert=8, z_loss=1e-3, bias_rate=0.01, capacity=1.0, aux_scope="global_batch")
NODES = replace(BASE, gate="sigmoid", top_k=3, expert_nodes=4, route_nodes=2, bias_rate=0.01, moe_every=2)
CHUNKS = replace(BASE, sequence_chunks=4, capacity=0.75, top_k=1)
ODD = replace(BASE, experts=15, top_k=4, global_batch=14)  # 7 micro-batches


# Groups


def test_groups_by_hand():
    mesh = np.arange(16).reshape(2, 4, 1, 2)  # pp, dp, cp, tp
    exchanging, same = expert_groups(mesh, 2)
    assert exchanging == [[0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9, 11], [12, 14], [13, 15]]
    assert same == [[0, 4], [1, 5], [2, 6], [3, 7], [8, 12], [9, 13], [10, 14], [11, 15]]


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (1, 6, 1, 1), (3, 4, 5, 2), (2, 12, 3, 1)])
def test_groups_of_every_mesh(shape):
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


@pytest.mark.parametrize(
    ("matrix", "width"),
    [
        ([[1, 2], [3, 0]], 3),
        ([[0, 0, 0], [0, 0, 0], [0, 0, 0]], 3),
        ([[0, 0, 7], [0, 0, 0], [0, 0, 1]], 3),
        ([[2, 0, 1, 4, 0, 3], [0, 0, 0, 0, 0, 0], [5, 1, 1, 0, 0, 2]], 4),
        ([[n * e % 4 for e in range(10)] for n in range(5)], 3),
        ([[3000, 1], [2000, 2]], 200),  # more than a queue holds
    ],
    ids=["two", "nobody", "one expert", "a rank without tokens", "five ranks", "large"],
)
def test_rows_arrive_by_rank_and_expert_and_come_back(ranks, matrix, width):
    size = len(matrix)
    each = len(matrix[0]) // size
    for rank, (arrived, grains, there, back) in enumerate(ranks(size).run(exchange_by_hand, matrix, width)):
        mine = range(rank * each, (rank + 1) * each)
        expected = [(n, e, i) for n in range(size) for e in mine for i in range(matrix[n][e])]
        assert arrived.tolist() == [list(row) for row in expected]
        assert grains == [matrix[n][mine.start : mine.stop] for n in range(size)]
        assert there and back


# One hash

LAYOUTS = {
    BASE: [
        "dp=2", "dp=2,ep=2", "dp=4,ep=4,sync=naive", "dp=4,ep=2,bucket_mb=0.001", "dp=3,zero=2", "zero=3,dp=2",
        "dp=4,ep=2,zero=1", "dp=4,ep=2,zero=2", "dp=4,ep=2,zero=3,prefetch=1", "dp=2,ep=2,zero=3,grad_sync=step",
        "tp=2", "tp=4,sp=1", "dp=2,ep=2,tp=2,sp=1,zero=3", "pp=2,schedule=zb-h1", "recompute=full",
        "dp=2,ep=2,pp=2,schedule=gpipe", "dp=2,ep=2,pp=2,zero=2,recompute=full",
    ],
    FULL: ["dp=4,ep=4,zero=2,recompute=full", "dp=2,ep=2,tp=2,sp=1", "pp=2,dp=2,ep=2", "dp=5,zero=1"],
    NODES: ["dp=4,ep=4", "dp=2,ep=2,pp=2", "dp=4,ep=2,zero=3,reshard_after_forward=0"],
    CHUNKS: ["cp=2,dp=2,ep=2", "cp=2,cp_kind=zigzag,dp=2,ep=2,zero=3", "cp=4,cp_kind=ulysses,recompute=full"],
    ODD: ["dp=5,ep=5", "dp=3,ep=3,zero=2", "dp=5,ep=5,zero=3,recompute=selective", "dp=3"],
}  # fmt: skip


NAMES = {"usual": BASE, "all settings": FULL, "nodes": NODES, "chunks": CHUNKS, "odd": ODD}


@pytest.fixture(scope="module")
def one_process(ranks):
    found: dict[TrainConfig, object] = {}

    def reference(config: TrainConfig):
        if config not in found:
            found[config] = run(ranks(1), config, Layout(), RunOptions(step_digests=True))
        return found[config]

    return reference


def layouts_to_try() -> list:
    """Every third layout of each config; the others are long."""
    return [
        pytest.param(config, text, id=f"{name} {text}", marks=pytest.mark.long if number % 3 else ())
        for name, config in NAMES.items()
        for number, text in enumerate(LAYOUTS[config])
    ]


@pytest.mark.parametrize(("config", "text"), layouts_to_try())
def test_every_layout_has_the_bits_of_one_process(ranks, one_process, config, text):
    layout = Layout.parse(text)
    assert agrees(one_process(config), run(ranks(layout.world_size), config, layout))


@pytest.mark.long
@pytest.mark.parametrize("precision", POLICIES)
@pytest.mark.parametrize(
    "text", ["dp=4,ep=2,zero=2", pytest.param("dp=2,ep=2,tp=2,sp=1,recompute=full", marks=pytest.mark.long)]
)
def test_every_precision(ranks, one_process, precision, text):
    config, layout = replace(FULL, precision=precision), Layout.parse(text)
    assert agrees(one_process(config), run(ranks(layout.world_size), config, layout))


def first_experts(scores, k):
    """Every token chooses the same k experts: the others, and the ranks that hold them, get none."""
    return np.tile(np.arange(k), (len(scores), 1))


def in_turn(scores, k):
    """Tokens choose the experts in turn, so that all get the same number."""
    tokens, experts = scores.shape
    return (np.arange(tokens * k) % experts).reshape(tokens, k)


def train_with(world, config, layout, options, choose: Callable):
    with mock.patch.dict(overrides._overrides, {"top_k_experts": choose}):
        return train_rank(world, config, layout, options)


def choosing(choose: Callable):
    return lambda *arguments: train_with(*arguments, choose)


@pytest.mark.long
@pytest.mark.parametrize(
    "text",
    [
        "dp=4,ep=2,zero=3",
        "dp=5,ep=5",
        *(pytest.param(text, marks=pytest.mark.long) for text in ("dp=4,ep=4", "dp=2,ep=2,pp=2,recompute=full")),
    ],
)
def test_experts_and_ranks_without_a_token(ranks, text):
    config, layout = replace(BASE, experts=10 if "5" in text else 8), Layout.parse(text)
    expected = run(ranks(1), config, Layout(), rank_function=choosing(first_experts))
    found = run(ranks(layout.world_size), config, layout, rank_function=choosing(first_experts))
    assert agrees(expected, found)
    counts = found.ranks[0].expert_counts[-1][0]
    assert counts[:2].tolist() == [config.tokens_per_step] * 2 and not counts[2 : config.experts].any()


def test_counts_are_those_of_all_ranks(ranks, one_process):
    expected = one_process(FULL).ranks[0].expert_counts
    assert len(expected) == FULL.steps and expected[0].shape == (2, 8 + 2)
    for counts in expected:
        assert (counts[:, :8].sum(axis=1) == FULL.tokens_per_step * FULL.top_k).all() and counts[:, 8].all()
    found = run(ranks(4), FULL, Layout.parse("dp=2,ep=2,pp=2"))
    assert all(np.array_equal(rank.expert_counts, expected) for rank in found.ranks)


# Bytes


def routes_of_a_step(world, config, layout, options):
    """How many rows this rank sends to others, both ways, beside what it brings back. Runs in a rank."""
    away = []

    def watching(x, counts, group):
        found = to_experts(x, counts, group)
        away.append([sum(splits) - splits[group.rank] for splits in found[2:]])
        return found

    with mock.patch.object(expert, "to_experts", watching):
        result = train_rank(world, replace(config, steps=1), layout, options)
    return result, np.array(away)


@pytest.mark.long
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("text", ["dp=4,ep=4", "dp=4,ep=2,zero=2", "dp=2,ep=2,pp=2,tp=2", "dp=5,ep=5"])
def test_bytes_are_what_the_routes_say(ranks, text, precision):
    """Rows go there and come back, and so do their gradients; what stays on the rank is not sent."""
    layout = Layout.parse(text)
    config = replace(BASE, precision=precision, experts=10 if "5" in text else 8)
    found = ranks(layout.world_size).run(routes_of_a_step, config, layout, RunOptions())
    itemsize = 4 if precision == "fp32" else 2
    for result, away in found:
        rows = [row for row in result.collectives if row["axis"] == "ep" and row["dtype"] != "int64"]
        sent = sum(row["bytes_sent"] for row in rows)
        assert sent == 2 * away.sum() * config.width * itemsize and sent > 0
        assert sum(row["calls"] for row in rows) == 4 * len(away)
        assert all(row["elements"] == 0 for row in rows)  # one row of the table, whatever the splits are
        (counts,) = (row for row in result.collectives if row["axis"] == "ep" and row["dtype"] == "int64")
        each = config.experts // layout.ep
        assert counts["bytes_sent"] == len(away) * (layout.ep - 1) * each * 8


@pytest.mark.parametrize("text", ["dp=2,ep=2", "dp=4,ep=4", "dp=4,ep=2"])
def test_even_routing_sends_what_the_formula_says(ranks, text):
    config, layout = replace(BASE, steps=1, global_batch=16), Layout.parse(text)
    result = run(ranks(layout.world_size), config, layout, rank_function=choosing(in_turn))
    tokens = config.tokens_per_step // layout.dp
    expected = config.layers * all_to_all_elements(tokens, config.width, config.top_k, layout.ep)
    for rank in result.ranks:
        sent = sum(r["bytes_sent"] for r in rank.collectives if r["axis"] == "ep" and r["dtype"] == "float32")
        assert sent == 4 * expected


@pytest.mark.parametrize("limit", [0, 2, 1])
def test_what_crosses_nodes_with_a_limit(ranks, limit):
    """Four ranks on four nodes: copies cross one by one here; with a limit they are on fewer different nodes."""
    config = replace(BASE, experts=16, top_k=4, expert_nodes=4, route_nodes=limit)
    found = ranks(4).run(routes_of_a_step, config, Layout.parse("dp=4,ep=4"), RunOptions())
    tokens, crossing = config.tokens_per_step * config.layers, sum(int(away[:, 0].sum()) for _, away in found)
    visits = int(found[0][0].expert_counts[-1][:, -1].sum())
    assert tokens <= visits <= tokens * (limit or 4) and (not limit or visits > 0.9 * tokens * limit)
    assert (
        visits - tokens < crossing <= 4 * tokens
    )  # a token is at home on one node; each other visit is a copy or more


def test_each_rank_trains_its_experts_alone(ranks):
    config, whole = replace(BASE, steps=1), 2 * 8 * 2 * 16 * 16 * 4  # layers, experts, two weights, float32
    for text, share in (("dp=2", 1), ("dp=2,ep=2", 2), ("dp=4,ep=2", 2), ("dp=4,ep=4", 4), ("dp=4,ep=2,zero=1", 4)):
        layout = Layout.parse(text)
        result = run(ranks(layout.world_size), config, layout)
        assert all(rank.memory["experts"] == whole // share for rank in result.ranks), text
    assert "experts" not in run(ranks(1), config.without_experts(), Layout()).ranks[0].memory


# Faults of real systems


def too_large():
    """Experts' gradients times the ranks that exchange tokens (torch #160285, DeepSpeed #5259, Megatron-LM #5956)."""
    sync = DataParallel.sync_gradients

    def wrong(self):
        sync(self)
        for parameter in self.sums.parameters if self.group.axis == "edp" else []:
            parameter.grad *= 2

    return mock.patch.object(DataParallel, "sync_gradients", wrong)


def norm_without_experts():
    """Only rank 0 of the data-parallel ranks counts experts (Megatron-LM #5916)."""
    return mock.patch.object(ExpertParallel, "owner", lambda self, name: 0)


def counts_of_one_rank():
    return mock.patch.object(parallel_balance, "all_reduce", lambda *arguments: None)


def combine_in_order_of_rows():
    """An unordered scatter-add (torchtitan #1974)."""

    def unordered(rows, weights, places):
        total = np.zeros((len(weights), rows.shape[1]), rows.dtype)
        kept = np.argwhere(places >= 0)
        for token, choice in kept[np.argsort(places[places >= 0])]:
            total[token] += weights[token, choice] * rows[places[token, choice]]
        return total

    return mock.patch.object(permutation, "combine_rows", unordered)


def router_gradient_times_tp():
    """A sum over ranks that all have the whole gradient already."""
    return mock.patch.object(
        mappings.GatherCopies,
        "backward",
        staticmethod(lambda ctx, gradient: (mappings.sum_and_split(gradient, ctx.group, ctx.axis), None, None)),
    )


def counted_in_forward():
    """Recomputation then counts twice (Automodel #3247)."""
    forward, backward = balance.AddBalanceLoss.forward, balance.AddBalanceLoss.backward

    def counting(ctx, scores, chosen, layer, shared):
        shared.tally[layer] += balance.tally_of(chosen, shared.config, len(scores))
        return forward(ctx, scores, chosen, layer, shared)

    def not_counting(ctx, gradient):
        before = ctx.balance.tally.copy()
        found = backward(ctx, gradient)
        ctx.balance.tally[:] = before
        return found

    return mock.patch.multiple(
        balance.AddBalanceLoss, forward=staticmethod(counting), backward=staticmethod(not_counting)
    )


FAULTS = {
    "gradients too large": (too_large, "dp=2,ep=2", BASE),
    "norm without experts": (norm_without_experts, "dp=2,ep=2", BASE),
    "counts of one rank": (counts_of_one_rank, "dp=2,ep=2", FULL),
    "combine in order of rows": (combine_in_order_of_rows, "dp=2,ep=2", replace(BASE, top_k=4)),
    "router's gradient times tp": (router_gradient_times_tp, "tp=2,sp=1", BASE),
    "counted in forward": (counted_in_forward, "recompute=full", FULL),
}


def train_with_a_fault(world, config, layout, options, name):
    with FAULTS[name][0]():
        return train_rank(world, config, layout, options)


@pytest.mark.long
@pytest.mark.parametrize("name", FAULTS)
def test_faults_of_real_systems_are_found(ranks, one_process, name):
    _, text, config = FAULTS[name]
    layout = Layout.parse(text)
    with_fault = lambda *arguments: train_with_a_fault(*arguments, name)  # noqa: E731
    options = RunOptions(step_digests=True)
    found = run(ranks(layout.world_size), config, layout, options, rank_function=with_fault)
    assert not agrees(one_process(config), found)
    assert first_difference(one_process(config), found, with_fault) is not None


def test_a_rank_that_skips_the_exchange_does_not_hang_the_others(ranks):
    """As one without tokens may be tempted to (Automodel #935)."""
    with pytest.raises(Exception, match="exchange_counts"):
        ranks(3).run(lambda world: exchange_counts([1, 1, 1], world) if world.rank else None, timeout=60)


# Bad input


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "dp=4,ep=3",
            "ep=3 data-parallel ranks share the experts, and do not divide dp=4: choose ep from 1, 2, 4",
        ),
        ("dp=2,ep=0", "ep=0: the number of expert-parallel ranks must be from 1"),
        ("dp=4,ep=2,zero=1,shard=2", "shard=2 is one number of ranks, and with ep=2 experts have fewer replicas"),
    ],
)
def test_layouts_that_no_run_has(text, message):
    with pytest.raises(ValueError, match=message):
        Layout.parse(text)


@pytest.mark.parametrize(
    ("changes", "text", "message"),
    [
        (None, "dp=2,ep=2", "this model has none: set experts to a multiple of 2"),
        ({"experts": 6}, "dp=4,ep=4", "ep=4 does not divide the 6 experts: choose ep from 1, 2, or a multiple of 4"),
        (
            {"global_batch": 14},
            "dp=2,ep=2,pp=2",
            "in a pipeline all of them need as many: dp=2 does not divide the 7 of",
        ),
    ],
)
def test_layouts_that_do_not_fit_the_run(changes, text, message):
    with pytest.raises(ValueError, match=message):
        config = BASE.without_experts() if changes is None else replace(BASE, **changes)
        config.check(Layout.parse(text))


def test_a_setting_of_experts_needs_experts():
    with pytest.raises(ValueError, match="top_k is about experts, and there are none: set experts to 2 or more"):
        TrainConfig(top_k=1)
    with pytest.raises(ValueError, match="top_k 3 is more than the number of experts, 2"):
        TrainConfig(experts=2, top_k=3)
