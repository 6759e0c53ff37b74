"""Rebalancing: who gets how many micro-batches, and that no bit tells. Speeds are made up; nothing here is timed."""

from dataclasses import replace
from functools import cache
from itertools import product
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest

from minidist import overrides
from minidist.comm.failures import RankFailed
from minidist.parallel.data import share_of
from minidist.train import around
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.resilience.rebalance import GAIN, Rebalance, deal
from minidist.train.result import RunOptions
from minidist.train.trainer import run, train_rank
from minidist.verify.comparison import agrees

# Dealing


@pytest.mark.parametrize(
    ("speeds", "micro_batches", "expected"),
    [
        ([1, 1, 1, 1], 12, [3, 3, 3, 3]),
        ([3, 3, 1, 3], 12, [4, 4, 1, 3]),
        ([3, 3, 1, 3], 10, [3, 3, 1, 3]),
        ([1, 2], 3, [1, 2]),
        ([1, 1000], 7, [1, 6]),  # each has one at least
        ([0.5, 0.5, 0.25], 3, [1, 1, 1]),
        ([7.0], 5, [5]),
    ],
)
def test_dealing_by_hand(speeds, micro_batches, expected):
    assert deal(speeds, micro_batches) == expected


@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 2), (2, 9), (3, 8), (4, 7), (4, 11)])
def test_no_other_dealing_ends_earlier(ranks, micro_batches):
    random = np.random.default_rng(ranks * micro_batches)
    every = [counts for counts in product(range(1, micro_batches + 1), repeat=ranks) if sum(counts) == micro_batches]
    for _ in range(20):
        speeds = random.uniform(0.2, 3, ranks)
        counts = deal(speeds.tolist(), micro_batches)
        assert max(counts / speeds) == min(max(np.array(other) / speeds) for other in every)
        assert tuple(counts) in every


def test_ranks_of_one_speed_get_what_they_have_without_rebalancing():
    for ranks, count in product(range(1, 9), range(9, 40)):
        assert deal([0.3] * ranks, count) == [len(share_of(rank, ranks, count)) for rank in range(ranks)]


@pytest.mark.parametrize("speeds", [[1, 0], [1, -1], [float("nan"), 1]])
def test_speeds_are_positive(speeds):
    with pytest.raises(ValueError, match="positive"):
        deal(speeds, 5)


def test_every_rank_needs_a_micro_batch():
    with pytest.raises(ValueError, match="2 micro-batches are too few for 3 ranks"):
        deal([1, 1, 1], 2)


# One hash

CONFIG = TrainConfig(
    layers=2, heads=4, width=16, context=8, steps=6, global_batch=14, micro_batch=2, dropout=0.2, clip=0.05, warmup=2,
)  # fmt: skip  # 7 micro-batches
CHUNKS = replace(CONFIG, layers=1, sequence_chunks=4)
EXPERTS = replace(
    CONFIG, layers=1, experts=8, expert_hidden=16, aux_loss=0.02, bias_rate=0.01, aux_scope="global_batch"
)
HALF = replace(CONFIG, precision="bf16")
LAYOUTS = {
    CONFIG: [
        "dp=2", "dp=3", "dp=3,sync=naive", "dp=4,sync=bucketed,bucket_mb=0.001", "dp=4,bucket_mb=0.001,algorithm=ring",
        "dp=4,zero=1", "dp=3,zero=2", "dp=4,zero=2,shard=2", "dp=4,zero=2,grad_sync=step", "dp=3,zero=3",
        "dp=4,zero=3,prefetch=1", "dp=4,zero=3,reshard_after_forward=0,shard=2", "dp=4,zero=3,grad_sync=step",
        "dp=2,tp=2", "dp=2,tp=2,sp=1,zero=3", "dp=3,recompute=full",
    ],
    CHUNKS: ["dp=2,cp=2", "dp=2,cp=2,cp_kind=zigzag,zero=3"],
    EXPERTS: ["dp=2,ep=2", "dp=4,ep=2", "dp=4,ep=4,zero=2", "dp=4,ep=2,zero=3", "dp=2,ep=2,tp=2,zero=1"],
    HALF: ["dp=3,zero=2", "dp=4,zero=3"],
}  # fmt: skip


def made_up_seconds(rank: int, step: int) -> float:
    """Every rank has another time in every step, also ranks that work on the same micro-batches: 1 to 20."""
    return float(np.random.default_rng([rank, step]).choice([1, 3, 20]))


class MadeUp(Rebalance):
    """Rebalances after every step, by times that nobody has measured."""

    def __init__(self, *arguments):
        super().__init__(*arguments, every=1)
        self.step = 0

    def after_step(self, seconds):
        super().after_step(made_up_seconds(self.world.rank, self.step))
        self.step += 1


def train_by_made_up_times(*arguments):
    with mock.patch.object(around, "Rebalance", MadeUp):
        return train_rank(*arguments)


@pytest.fixture(scope="module")
def one_process(ranks):
    return cache(lambda config: run(ranks(1), config, Layout()))


def shares_of(result) -> list[tuple[int, ...]]:
    """How many micro-batches each data-parallel rank had, step by step. Ranks of tp and cp had as many."""
    layout = result.layout
    counts = np.array([rank.micro_batch_counts for rank in result.ranks])  # (ranks, steps)
    counts = counts.reshape(layout.dp, layout.cp * layout.tp, -1)
    assert (counts == counts[:, :1]).all()
    return list(map(tuple, counts[:, 0].T.tolist()))


@pytest.mark.parametrize(
    ("config", "text"),
    [
        pytest.param(config, text, marks=pytest.mark.long if number else ())
        for config, texts in LAYOUTS.items()
        for number, text in enumerate(texts)
    ],
)
def test_the_fingerprint_is_that_of_one_process(ranks, one_process, config, text):
    layout = Layout.parse(text)
    result = run(ranks(layout.world_size), config, layout, RunOptions(rebalance=True), None, train_by_made_up_times)
    assert agrees(one_process(config), result)
    shares = shares_of(result)
    assert len(set(shares)) > 1 and all(sum(share) == 7 and min(share) > 0 for share in shares)
    assert max(map(max, shares)) > -(-7 // layout.dp)  # somebody had more than without rebalancing


@pytest.mark.parametrize("text", ["dp=4", "dp=2,tp=2"])
def test_what_is_dealt_follows_the_times(ranks, text):
    """Of ranks that share micro-batches the slowest counts."""
    layout = Layout.parse(text)
    result = run(ranks(4), CONFIG, layout, RunOptions(rebalance=True), None, train_by_made_up_times)
    expected = [tuple(len(share_of(rank, layout.dp, 7)) for rank in range(layout.dp))]
    for step in range(CONFIG.steps - 1):
        times = np.array([made_up_seconds(rank, step) for rank in range(4)]).reshape(layout.dp, layout.tp).max(axis=1)
        dealt = deal((1 / times).tolist(), 7)
        is_better = max(dealt * times) < (1 - GAIN) * max(expected[-1] * times)
        expected.append(tuple(dealt) if is_better else expected[-1])
    assert shares_of(result) == expected and len(set(expected)) > 1


def test_ranks_of_like_speed_keep_what_they_have(ranks):
    """By real times, of which one in five steps would have to be odd to matter: whatever is dealt, the bits stay."""
    result = run(ranks(2), CONFIG, Layout(dp=2), RunOptions(rebalance=True))
    assert agrees(run(ranks(1), CONFIG, Layout()), result)
    assert shares_of(result)[:5] == [(4, 3)] * 5  # nothing before the first comparison


def train_with_a_wrong_deal(*arguments):
    overrides.override({"deal": lambda speeds, micro_batches: [micro_batches] + [0] * (len(speeds) - 1)})
    try:
        return train_by_made_up_times(*arguments)
    finally:
        overrides.override({})


def test_a_deal_that_leaves_out_a_rank_is_named(ranks):
    with pytest.raises(RankFailed, match=r"deal gave \[7, 0\]: 7 micro-batches for 2 ranks, each at least 1"):
        run(ranks(2), CONFIG, Layout(dp=2), RunOptions(rebalance=True), None, train_with_a_wrong_deal)


# Refused before any rank starts


@pytest.mark.parametrize(("text", "reason"), [("dp=2,pp=2", "set pp to 1"), ("tp=2", "set dp to 2")])
def test_what_cannot_be_rebalanced(text, reason):
    nobody = SimpleNamespace()  # a cluster that cannot even be asked for its size
    with pytest.raises(ValueError, match=reason):
        run(nobody, CONFIG, Layout.parse(text), RunOptions(rebalance=True))
