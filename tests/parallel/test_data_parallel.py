"""Buckets, hooks and sums: that overlap really overlaps, and that no_sync really keeps silent."""

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

import minidist as md
from minidist.nn.gpt import GPT, GPTConfig
from minidist.parallel.data import BucketedDataParallel, NaiveDataParallel, fill_buckets, share_of
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RunOptions

LIMIT = 30
TINY = GPTConfig(layers=1, heads=2, width=8, context=4)


def test_shares_are_consecutive_and_complete():
    for size in range(1, 9):
        for count in (0, 1, 5, 8, 24):
            shares = [share_of(rank, size, count) for rank in range(size)]
            assert [i for share in shares for i in share] == list(range(count))
            assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_buckets_keep_the_order_and_their_size(ranks):
    """They fill from the last layer to the first, or nothing could be sent before backward has ended."""
    parameters = [SimpleNamespace(size=size) for size in (3, 3, 3, 100, 1, 1, 5, 5)]
    assert [[p.size for p in bucket] for bucket in fill_buckets(parameters, 7)] == [[3, 3], [3], [100], [1, 1, 5], [5]]

    def main(world):
        replicas = BucketedDataParallel(GPT(TINY).parameters(), world, bucket_mb=1e-6)
        return [parameter.name for bucket in replicas.buckets for parameter in bucket.parameters]

    names = ranks(1).run(main, timeout=LIMIT)[0]
    assert names[0] == "head.norm.bias" and names[-1] == "embeddings.token.weight"


def backward(model, *names) -> None:
    tokens = np.random.default_rng(names).integers(0, 256, (2, 5))
    model(tokens[:, :-1], tokens[:, 1:]).backward()


def gradients_of(world, kind, micro_batches):
    """Messages during accumulation; and the summed gradients must be what one process finds for the same samples."""
    model, alone = GPT(TINY, seed=3), GPT(TINY, seed=3)
    if kind == "naive":
        replicas = NaiveDataParallel(model.parameters(), world)
    else:
        replicas = BucketedDataParallel(model.parameters(), world, bucket_mb=0.002, overlap=kind == "overlapped")
    sent, mine = [], share_of(world.rank, world.size, micro_batches)
    for _step in range(2):  # the second step must not see the first one's gradients
        replicas.zero_grad()
        before = world.traffic
        for index in mine[:-1]:
            with replicas.no_sync():
                backward(model, index)
        sent.append((world.traffic - before).sent[:, 1].sum())
        for index in mine[-1:]:
            backward(model, index)
        replicas.wait_for_gradients()
    for index in range(micro_batches):
        backward(alone, index)
    for (name, found), one in zip(model.named_parameters(), alone.parameters(), strict=True):
        assert found.grad.dtype == np.float64
        assert np.array_equal(found.grad.astype(np.float32), one.grad.astype(np.float32)), name
    return sent


def test_summed_gradients_are_those_of_one_process(ranks):
    """Also where a rank has more micro-batches than another, or none."""
    for kind in ("naive", "bucketed", "overlapped"):
        for size, micro_batches in [(1, 2), (2, 4), (3, 5), (3, 2), (5, 7)]:
            for sent in ranks(size).run(gradients_of, kind, micro_batches, timeout=LIMIT):
                assert sent == [0, 0], kind  # no_sync


def misuse(world, kind):
    model = GPT(TINY)
    replicas = BucketedDataParallel(model.parameters(), world, overlap=kind != "two steps without zero_grad")
    replicas.zero_grad()
    if kind == "model.zero_grad":
        model.zero_grad()
    backward(model, 0)
    if kind == "two steps without zero_grad":
        replicas.wait_for_gradients()
    if kind != "model.zero_grad":
        backward(model, 0)
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
    """For each bucket, whether backward was still going on when its sum was started."""
    from unittest import mock

    from minidist.nn.tensor import Tensor
    from minidist.parallel import data
    from minidist.parallel.compression.hook import Compressor
    from minidist.train.trainer import train_rank

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


def sent_for(world, micro_batches, every_micro_batch):
    """Bytes that a rank sends for one step's gradients, bytes of gradients that it holds, and the gradients."""
    model, total, before = GPT(TINY, seed=3), {}, world.traffic
    replicas = BucketedDataParallel(model.parameters(), world, "ring")
    for index in range(micro_batches):
        if every_micro_batch or index == 0:
            replicas.zero_grad()
        last = every_micro_batch or index == micro_batches - 1
        with nullcontext() if last else replicas.no_sync():
            backward(model, world.rank, index)
        if last:
            replicas.wait_for_gradients()
            for name, parameter in model.named_parameters():
                total[name] = total.get(name, 0) + parameter.grad
    held = sum(bucket.buffer.nbytes for bucket in replicas.buckets)
    return (world.traffic - before).as_dict()["bytes_sent"], held, total


def test_what_accumulation_saves(ranks):
    """Bytes: one sum a step, however many micro-batches. Not memory: the accumulated gradient is as large as one."""
    one, *_ = ranks(2).run(sent_for, 1, False, timeout=LIMIT)
    accumulated, often = (ranks(2).run(sent_for, 3, each, timeout=LIMIT) for each in (False, True))
    for (sent, held, total), (more, as_much, again) in zip(accumulated, often, strict=True):
        assert (sent, held) == one[:2] and (more, as_much) == (3 * one[0], one[1])
        assert all((total[name].astype(np.float32) == again[name].astype(np.float32)).all() for name in total)
