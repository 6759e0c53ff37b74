"""Shares and buckets: that overlap really overlaps, and that misuse is refused."""

from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest

import minidist as md
from minidist.nn.gpt import GPT, GPTConfig
from minidist.nn.tensor import Tensor
from minidist.parallel import data
from minidist.parallel.compression.hook import Compressor
from minidist.parallel.data import BucketedDataParallel, fill_buckets, share_of
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RunOptions
from minidist.train.trainer import train_rank

LIMIT = 30
TINY = GPTConfig(layers=1, heads=2, width=8, context=4)


def test_shares_are_consecutive_and_complete():
    for size in range(1, 9):
        for count in (0, 1, 5, 8, 24):
            shares = [share_of(rank, size, count) for rank in range(size)]
            assert [i for share in shares for i in share] == list(range(count))
            assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_buckets_keep_the_order_and_their_size():
    parameters = [SimpleNamespace(size=size) for size in (3, 3, 3, 100, 1, 1, 5, 5)]
    assert [[p.size for p in bucket] for bucket in fill_buckets(parameters, 7)] == [[3, 3], [3], [100], [1, 1, 5], [5]]


def misuse(world, kind):
    model, tokens = GPT(TINY), np.arange(8).reshape(2, 4)
    replicas = BucketedDataParallel(model.parameters(), world, overlap=kind != "two steps without zero_grad")
    replicas.zero_grad()
    if kind == "model.zero_grad":
        model.zero_grad()
    model(tokens, tokens).backward()
    if kind == "two steps without zero_grad":
        replicas.wait_for_gradients()
    if kind != "model.zero_grad":
        model(tokens, tokens).backward()
    replicas.wait_for_gradients()


def test_misuse_that_would_leave_replicas_apart_is_refused(ranks):
    for kind, message in (
        ("model.zero_grad", "begin each step with zero_grad"),
        ("two steps without zero_grad", "begin each step with zero_grad"),
        ("two backwards", "but the last under no_sync"),
    ):
        with pytest.raises(md.RankFailed, match=message):
            ranks(2).run(misuse, kind, timeout=LIMIT)


def when_buckets_are_sent(world, text):
    """Return for each bucket whether backward was still going on when its sum was started."""
    during, inside = [], []
    all_reduce, compress, backward = data.all_reduce, Compressor.__call__, Tensor.backward

    def noticing(function):
        def noticed(*arguments, **options):
            during.append(bool(inside))
            return function(*arguments, **options)

        return noticed

    def noted(self, *arguments):
        inside.append(True)
        backward(self, *arguments)
        inside.pop()

    with (
        mock.patch.object(data, "all_reduce", noticing(all_reduce)),
        mock.patch.object(Compressor, "__call__", noticing(compress)),
        mock.patch.object(Tensor, "backward", noted),
    ):
        config = TrainConfig(layers=3, width=32, global_batch=8, micro_batch=2, steps=1)
        train_rank(world, config, Layout.parse(text), RunOptions())
    return during


def test_when_gradients_are_sent(ranks):
    """Overlapped: all buckets go out from within backward. The others wait for its end."""
    for text, expected in (
        ("dp=2,bucket_mb=0.05", True), ("dp=2,sync=bucketed,bucket_mb=0.05", False), ("dp=2,sync=naive", False),
        ("dp=2,bucket_mb=0.05,compress=int8", True), ("dp=2,bucket_mb=0.05,compress=int8,sync=bucketed", False),
    ):  # fmt: skip
        for during in ranks(2).run(when_buckets_are_sent, text, timeout=LIMIT):
            assert len(during) > 3 and set(during) == {expected}, text
