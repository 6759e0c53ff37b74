"""Buckets, hooks and sums: that overlap really overlaps, and that no_sync really keeps silent."""

from contextlib import nullcontext

import numpy as np
import pytest

import minidist as md
from minidist.parallel.data import fill_buckets, share_of
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RunOptions
from minidist.train.trainer import run

LIMIT = 30


@pytest.mark.parametrize("size", range(1, 9))
@pytest.mark.parametrize("count", [0, 1, 5, 8, 24])
def test_shares_are_consecutive_and_complete(size, count):
    shares = [share_of(rank, size, count) for rank in range(size)]
    assert [i for share in shares for i in share] == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


class Sized:
    def __init__(self, size):
        self.size = size


def test_buckets_keep_the_order_and_their_size():
    parameters = [Sized(size) for size in (3, 3, 3, 100, 1, 1, 5, 5)]
    assert [[p.size for p in bucket] for bucket in fill_buckets(parameters, 7)] == [[3, 3], [3], [100], [1, 1, 5], [5]]


def gradients_of(world, kind, micro_batches):
    """The gradients of a tiny model: the summed ones of all ranks, and what one process finds for the same samples."""
    from minidist.nn.gpt import GPT, GPTConfig
    from minidist.parallel.data import BucketedDataParallel, NaiveDataParallel

    model = GPT(GPTConfig(layers=1, heads=2, width=8, context=4), seed=3)
    parameters = model.parameters()
    if kind == "naive":
        replicas = NaiveDataParallel(parameters, world)
    else:
        replicas = BucketedDataParallel(parameters, world, bucket_mb=0.002, overlap=kind == "overlapped")

    def backward(index):
        tokens = np.random.default_rng(index).integers(0, 256, (2, 5))
        model(tokens[:, :-1], tokens[:, 1:]).backward()

    sent = []
    for _step in range(2):  # the second step must not see the first one's gradients
        replicas.zero_grad()
        before = world.traffic
        mine = share_of(world.rank, world.size, micro_batches)
        for index in mine[:-1]:
            with replicas.no_sync():
                backward(index)
        sent.append((world.traffic - before).sent[:, 1].sum())  # messages during accumulation
        for index in mine[-1:]:
            backward(index)
        replicas.wait_for_gradients()
    summed = {name: parameter.grad.copy() for name, parameter in model.named_parameters()}

    alone = GPT(GPTConfig(layers=1, heads=2, width=8, context=4), seed=3)
    model = alone
    for index in range(micro_batches):
        backward(index)
    expected = {name: parameter.grad for name, parameter in alone.named_parameters()}
    for name, found in summed.items():
        assert found.dtype == np.float64
        assert np.array_equal(found.astype(np.float32), expected[name].astype(np.float32)), name
    return sent


@pytest.mark.parametrize("kind", ["naive", "bucketed", "overlapped"])
@pytest.mark.parametrize(("size", "micro_batches"), [(1, 2), (2, 4), (3, 5), (3, 2), (5, 7)])
def test_summed_gradients_are_those_of_one_process(ranks, kind, size, micro_batches):
    """Also where a rank has more micro-batches than another, or none."""
    for sent in ranks(size).run(gradients_of, kind, micro_batches, timeout=LIMIT):
        assert sent == [0, 0]  # no_sync


def misuse(world, kind):
    from minidist.nn.gpt import GPT, GPTConfig
    from minidist.parallel.data import BucketedDataParallel

    model = GPT(GPTConfig(layers=1, heads=2, width=8, context=4))
    replicas = BucketedDataParallel(model.parameters(), world, overlap=kind != "two steps without zero_grad")
    tokens = np.zeros((1, 5), int)
    replicas.zero_grad()
    if kind == "model.zero_grad":
        model.zero_grad()
    model(tokens[:, :-1], tokens[:, 1:]).backward()
    if kind == "two steps without zero_grad":
        replicas.wait_for_gradients()
    if kind != "model.zero_grad":
        model(tokens[:, :-1], tokens[:, 1:]).backward()
    replicas.wait_for_gradients()


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("model.zero_grad", "begin each step with zero_grad"),
        ("two steps without zero_grad", "begin each step with zero_grad"),
        ("two backwards", "but the last under no_sync"),
    ],
)
def test_misuse_that_would_leave_replicas_apart_is_refused(ranks, kind, message):
    with pytest.raises(md.RankFailed, match=message):
        ranks(2).run(misuse, kind, timeout=LIMIT)


def test_buckets_fill_in_the_order_of_backward(ranks):
    """From the last layer to the first, or nothing could be sent before backward has ended."""

    def main(world):
        from minidist.nn.gpt import GPT, GPTConfig
        from minidist.parallel.data import BucketedDataParallel

        model = GPT(GPTConfig(layers=2, heads=2, width=8, context=4))
        replicas = BucketedDataParallel(model.parameters(), world, bucket_mb=1e-6)
        return [parameter.name for bucket in replicas.buckets for parameter in bucket.parameters]

    names = ranks(1).run(main, timeout=LIMIT)[0]
    assert names[0] == "head.norm.bias" and names[-1] == "embeddings.token.weight"


def when_buckets_are_sent(world, layout):
    """For each all-reduce of a bucket, whether backward was still going on when it was started."""
    import minidist.parallel.data as data
    from minidist.nn.tensor import Tensor
    from minidist.train.trainer import train_rank

    sent_during_backward, inside = [], []
    all_reduce, backward = data.all_reduce, Tensor.backward

    def noticed(*arguments, **options):
        sent_during_backward.append(bool(inside))
        return all_reduce(*arguments, **options)

    def noted(self, *arguments):
        inside.append(True)
        backward(self, *arguments)
        inside.pop()

    data.all_reduce, Tensor.backward = noticed, noted
    try:
        config = TrainConfig(layers=3, width=32, global_batch=8, micro_batch=2, steps=1)
        train_rank(world, config, Layout.parse(layout), RunOptions())
    finally:
        data.all_reduce, Tensor.backward = all_reduce, backward
    return sent_during_backward


@pytest.mark.parametrize(
    ("layout", "during"),
    [("dp=2,bucket_mb=0.05", True), ("dp=2,sync=bucketed,bucket_mb=0.05", False), ("dp=2,sync=naive", False)],
)
def test_when_gradients_are_sent(ranks, layout, during):
    """Overlapped: all buckets go out from within backward. The others wait for its end."""
    for sent in ranks(2).run(when_buckets_are_sent, layout, timeout=LIMIT):
        assert len(sent) > 5 and set(sent) == {during}


def test_traffic_of_a_step(ranks):
    """Ring: 2 (N-1)/N of the float64 gradients from each rank. Tree: a loss of eight bytes, 2 (N-1) times in all."""
    config = TrainConfig(layers=1, heads=2, width=16, context=16, global_batch=6, micro_batch=1, steps=3)
    parameters = sum(p.size for p in _parameters(config))
    for dp in (2, 3, 6):
        result = run(ranks(dp), config, Layout.parse(f"dp={dp},algorithm=ring,bucket_mb=100"))
        sent = [rank.traffic.as_dict()["bytes_sent"] for rank in result.ranks]
        assert sum(sent) == config.steps * 2 * (dp - 1) * 8 * (parameters + 1)


def _parameters(config):
    from minidist.nn.gpt import GPT

    return GPT(config.model).parameters()


def sent_for(world, micro_batches, every_micro_batch):
    """Bytes that a rank sends for one step's gradients, and bytes of gradients that it holds."""
    from minidist.nn.gpt import GPT, GPTConfig
    from minidist.parallel.data import BucketedDataParallel

    model = GPT(GPTConfig(layers=1, heads=2, width=8, context=4), seed=3)
    replicas = BucketedDataParallel(model.parameters(), world, "ring")
    before = world.traffic
    total = {}
    for index in range(micro_batches):
        if every_micro_batch or index == 0:
            replicas.zero_grad()
        tokens = np.random.default_rng((world.rank, index)).integers(0, 256, (2, 5))
        last = every_micro_batch or index == micro_batches - 1
        with nullcontext() if last else replicas.no_sync():
            model(tokens[:, :-1], tokens[:, 1:]).backward()
        if last:
            replicas.wait_for_gradients()
            for name, parameter in model.named_parameters():
                total[name] = total.get(name, 0) + parameter.grad
    held = sum(bucket.buffer.nbytes for bucket in replicas.buckets)
    return (world.traffic - before).as_dict()["bytes_sent"], held, total


@pytest.mark.parametrize("micro_batches", [1, 2, 5])
def test_what_accumulation_saves(ranks, micro_batches):
    """Bytes: one sum a step, however many micro-batches. Not memory: the accumulated gradient is as large as one."""
    accumulated, often = (ranks(2).run(sent_for, micro_batches, each, timeout=LIMIT) for each in (False, True))
    one, *_ = ranks(2).run(sent_for, 1, False, timeout=LIMIT)
    for rank in range(2):
        (sent, held, total), (more, as_much, again) = accumulated[rank], often[rank]
        assert (sent, held) == one[:2] and (more, as_much) == (micro_batches * one[0], one[1])
        assert all((total[name].astype(np.float32) == again[name].astype(np.float32)).all() for name in total)
