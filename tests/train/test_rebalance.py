"""Rebalancing: who gets how many micro-batches. Speeds are made up; nothing here is timed."""

from itertools import product

import numpy as np
import pytest
from verify.made_up import made_up_seconds, train_by_made_up_times

from minidist import overrides
from minidist.comm.failures import RankFailed
from minidist.parallel.data import share_of
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.resilience.rebalance import GAIN, deal
from minidist.train.result import RunOptions
from minidist.train.trainer import run

CONFIG = TrainConfig(
    layers=1, heads=2, width=8, context=4, steps=6, global_batch=7, micro_batch=1, dropout=0.2, clip=0.05, warmup=2
)
OPTIONS = RunOptions(rebalance=True)


def test_no_other_dealing_ends_earlier():
    """Each rank has one micro-batch at least."""
    for ranks, micro_batches in [(1, 5), (2, 2), (2, 9), (3, 8), (4, 7), (4, 11)]:
        random, every = np.random.default_rng(ranks * micro_batches), product(range(1, micro_batches + 1), repeat=ranks)
        every = np.array([counts for counts in every if sum(counts) == micro_batches])
        for scale in [1.0] * 20 + [1000.0]:
            speeds = random.uniform(0.2, 3, ranks) * np.where(np.arange(ranks) % 2, scale, 1)
            counts = deal(speeds.tolist(), micro_batches)
            assert max(counts / speeds) == (every / speeds).max(axis=1).min()
            assert counts in every.tolist()
    for ranks, count in product(range(1, 9), range(9, 40)):  # of one speed: what they have without rebalancing
        assert deal([0.3] * ranks, count) == [len(share_of(rank, ranks, count)) for rank in range(ranks)]


def shares_of(result) -> list[tuple[int, ...]]:
    """Return how many micro-batches each data-parallel rank had, step by step. Ranks of tp had as many."""
    counts = np.array([rank.micro_batch_counts for rank in result.ranks])  # (ranks, steps)
    counts = counts.reshape(result.layout.dp, result.layout.tp, -1)
    assert (counts == counts[:, :1]).all()
    return list(map(tuple, counts[:, 0].T.tolist()))


def test_what_is_dealt_follows_the_times(ranks):
    """The slowest of the ranks that share micro-batches counts."""
    for layout in (Layout(dp=4), Layout(dp=2, tp=2)):
        result = run(ranks(4), CONFIG, layout, OPTIONS, rank_function=train_by_made_up_times)
        expected = [tuple(len(share_of(rank, layout.dp, 7)) for rank in range(layout.dp))]
        for step in range(CONFIG.steps - 1):
            times = np.array([made_up_seconds(rank, step) for rank in range(4)])
            times = times.reshape(layout.dp, layout.tp).max(axis=1)
            dealt = deal((1 / times).tolist(), 7)
            is_better = max(dealt * times) < (1 - GAIN) * max(expected[-1] * times)
            expected.append(tuple(dealt) if is_better else expected[-1])
        assert shares_of(result) == expected and len(set(expected)) > 1


def test_a_deal_that_leaves_out_a_rank_is_named(ranks):
    def train_with_a_wrong_deal(*arguments):
        overrides.override({"deal": lambda speeds, micro_batches: [micro_batches] + [0] * (len(speeds) - 1)})
        try:
            return train_by_made_up_times(*arguments)
        finally:
            overrides.override({})

    with pytest.raises(RankFailed, match=r"deal must give 2 ranks at least 1 each of 7 micro-batches, got \[7, 0\]"):
        run(ranks(2), CONFIG, Layout(dp=2), OPTIONS, rank_function=train_with_a_wrong_deal)
