"""Parameter servers: synchronous ones keep the bits of one process; asynchronous ones repeat an order to the bit."""

import itertools
from dataclasses import replace
from functools import cache
from math import inf
from types import SimpleNamespace

import numpy as np
import pytest

import minidist as md
from minidist.nn.data import load_corpus
from minidist.nn.gpt import GPT
from minidist.nn.optim.clip import clip_grad_norm
from minidist.nn.optim.optimizers import AdamW, average_gradients, warmup_cosine
from minidist.parallel.data import share_of
from minidist.parallel.loosened import server as server_module
from minidist.parallel.loosened.arrivals import Arrival, seeded_order
from minidist.parallel.loosened.server import AsynchronousServer
from minidist.parallel.loosened.shards import shard_map
from minidist.parallel.loosened.staleness import may_begin
from minidist.parallel.tools.accumulation import forward_backward
from minidist.train.batches import batch_of
from minidist.train.checks.loosened import why_it_differs
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.resilience.faults import Fault
from minidist.train.result import RunOptions
from minidist.train.trainer import run, train_rank
from minidist.verify.comparison import agrees
from minidist.verify.matrix import covering

CONFIG = TrainConfig(
    layers=2, heads=2, width=16, context=8, steps=4, global_batch=10, micro_batch=1, clip=0.05, warmup=1, dropout=0.1
)
LIMIT = 60


@pytest.fixture(scope="module")
def one_process(ranks):
    return cache(lambda config: run(ranks(1), config, Layout()))


def trained(ranks, text, config=CONFIG, **options):
    layout = Layout.parse(text)
    return run(ranks(layout.world_size), config, layout, **options)


# Synchronous: staleness 0


def settings_that_meet():
    """Every two values of two settings meet in some run."""
    settings = {
        "dp": [1, 2, 3, 5],
        "servers": [1, 2, 3],
        "precision": ["fp32", "bf16"],
        "optimizer": ["adamw", "lamb"],
        "micro_batch": [1, 2],
        "arrivals": ["live", "seeded"],
        "recompute": ["none", "full"],
    }
    rows = [dict(zip(settings, row, strict=True)) for row in itertools.product(*settings.values())]
    return [rows[place] for place in covering(rows)]


@pytest.mark.parametrize("row", settings_that_meet(), ids=lambda row: ",".join(map(str, row.values())))
def test_without_staleness_it_keeps_the_bits_of_one_process(ranks, one_process, row):
    keys = ("dp", "servers", "arrivals", "recompute")
    layout = Layout(sync="server", **{key: row[key] for key in keys})
    config = replace(CONFIG, **{key: row[key] for key in row if key not in keys})
    result = run(ranks(layout.world_size), config, layout)
    assert agrees(one_process(config), result) and result.losses == one_process(config).losses
    assert all(push.staleness == 0 for rank in result.ranks for push in rank.pushes)


@pytest.mark.long
def test_more_servers_than_parameters(ranks, one_process):
    small = replace(CONFIG, layers=1, global_batch=4, steps=2)
    assert len(GPT(small.model, seed=0).parameters()) < 24
    assert agrees(one_process(small), trained(ranks, "dp=2,sync=server,servers=24", small))
    assert trained(ranks, "dp=2,sync=async,servers=24,arrivals=seeded", small).ranks[25].pushes


# Asynchronous


def one_process_in_that_order(config, workers, order):
    """The same training without servers and messages: gradients of old weights, applied in an order.

    Returns the weights, by name, and how stale each gradient was.
    """
    corpus = load_corpus(config.text, config.context)
    model = GPT(config.model, seed=config.seed)
    optimizer = AdamW(model.parameters(), config.lr, weight_decay=config.weight_decay)
    start = {name: parameter.data.copy() for name, parameter in model.named_parameters()}
    computing = {worker: (0, start) for worker in range(workers)}  # the version that each has, and its weights
    stale = []
    for version, (worker, step) in enumerate(order):
        read, weights = computing[worker]
        newest = {name: parameter.data.copy() for name, parameter in model.named_parameters()}
        for name, parameter in model.named_parameters():
            parameter.data[...] = weights[name]
            parameter.grad = np.zeros(parameter.shape, np.float64)
            parameter.grad_dtype = np.float64
        mine = share_of(worker, workers, config.micro_batches)
        for index in mine:
            forward_backward(model, batch_of(corpus, config, step, index), 1.0, index)
        for name, parameter in model.named_parameters():
            parameter.data[...] = newest[name]
        average_gradients(model.parameters(), len(mine))
        clip_grad_norm(model.parameters(), config.clip)
        optimizer.lr = warmup_cosine(version // workers, config.steps, config.lr, config.warmup, config.lr / 10)
        optimizer.lr /= workers
        optimizer.step()
        stale.append(version - read)
        computing[worker] = version + 1, {name: p.data.copy() for name, p in model.named_parameters()}
    return {name: parameter.data for name, parameter in model.named_parameters()}, stale


@pytest.mark.long
@pytest.mark.parametrize("text", ["dp=3,sync=async,arrivals=1+1+4", "dp=2,sync=async,arrivals=seeded,servers=2"])
def test_it_is_training_with_gradients_of_old_weights(ranks, text):
    layout = Layout.parse(text)
    seconds = [1.0, 1.0, 4.0] if layout.dp == 3 else [1.0, 1.0]
    order = [(each.worker, each.step) for each in seeded_order(seconds, CONFIG.steps, inf, CONFIG.seed)]
    weights, stale = one_process_in_that_order(CONFIG, layout.dp, order)
    result = trained(ranks, text, options=RunOptions(stop_after=CONFIG.steps - 1))
    for name, expected in weights.items():
        assert np.array_equal(expected.view("u4"), result.ranks[0].arrays[name].view("u4")), name
    for server in result.ranks[layout.dp :]:
        assert [(push.worker, push.step) for push in server.pushes] == order
        assert [push.staleness for push in server.pushes] == stale


@pytest.mark.long
def test_a_seeded_order_repeats_to_the_bit_however_many_servers_there_are(ranks):
    """And whatever the real speeds: one of the workers is slow in some runs."""
    config = replace(CONFIG, steps=6)
    slow = RunOptions(faults=(Fault.parse("rank=0,step=1,kind=slow:20"),))
    for text in ("dp=3,sync=server,staleness=1,arrivals=1+2+3", "dp=3,sync=async,arrivals=1+2+3"):
        results = [trained(ranks, f"{text},servers={n}", config) for n in (1, 2, 3)]
        results.append(trained(ranks, text, config, options=slow))
        assert len({result.fingerprint for result in results}) == 1
        assert all(agrees(results[0], result) for result in results)
        assert len({result.fingerprint for result in results} | {trained(ranks, "dp=3", config).fingerprint}) == 2
    assert results[0].fingerprint != trained(ranks, text, replace(config, seed=1)).fingerprint


def replayed(world, order, config, layout, options):
    """Train with an order of arrivals that was recorded."""
    from unittest import mock

    with mock.patch("minidist.train.served.seeded_order", lambda *_: order):
        return train_rank(world, config, layout, options)


def test_of_the_workers_that_are_ready_the_next_in_turn_is_served(monkeypatch):
    """Else a quick worker is served again and again, and the others starve."""
    monkeypatch.setattr(
        server_module, "wait_any", lambda works: next(place for place, ready in enumerate(works) if ready)
    )
    asynchronous = AsynchronousServer(SimpleNamespace(), 4, 100, inf, None)
    asynchronous.pushes, served = [True] * 4, []
    for _ in range(12):
        asynchronous.last = asynchronous.first_to_come()
        served.append(asynchronous.last)
    assert served == [1, 2, 3, 0] * 3
    asynchronous.pushes[1], asynchronous.waiting, asynchronous.last = False, [2], 0
    assert asynchronous.first_to_come() == 3


def test_a_live_run_can_be_played_again(ranks):
    slow = RunOptions(faults=(Fault.parse("rank=1,step=1,kind=slow:30"),))
    live = trained(ranks, "dp=3,sync=async", options=slow)
    pushes = live.ranks[3].pushes
    assert sorted((push.worker, push.step) for push in pushes) == [(w, s) for w in range(3) for s in range(4)]
    order = [Arrival(push.worker, push.step, 0.0) for push in pushes]

    def again(world, *arguments):
        return replayed(world, order, *arguments)

    repeated = trained(ranks, "dp=3,sync=async,arrivals=seeded", rank_function=again)
    assert agrees(live, repeated) and repeated.ranks[3].pushes == pushes


@pytest.mark.long
@pytest.mark.parametrize("staleness", [1, 2, 3])
def test_no_worker_runs_ahead_further_than_it_may(ranks, staleness):
    config = replace(CONFIG, steps=8)
    for arrivals in ("live", "1+1+9"):
        text = f"dp=3,sync=server,staleness={staleness},arrivals={arrivals}"
        slow = RunOptions(faults=(Fault.parse("rank=2,step=1,kind=slow:9"),))
        clocks, ahead = [0, 0, 0], []
        for push in trained(ranks, text, config, options=slow).ranks[3].pushes:
            assert push.step == clocks[push.worker]
            ahead.append(push.step - min(clocks))
            clocks[push.worker] += 1
        assert max(ahead) <= staleness and clocks == [8, 8, 8]
        if arrivals != "live":
            assert max(ahead) == staleness


def test_what_travels(ranks):
    """Per step a worker pushes its gradients, and pulls weights but after the last one: 4 bytes each, or float64."""
    elements = sum(parameter.size for parameter in GPT(CONFIG.model, seed=0).parameters())
    for text, itemsize in (("dp=3,sync=server,servers=2", 8), ("dp=3,sync=async,servers=2", 4)):
        result = trained(ranks, text)
        sent = [rank.traffic.sent[:, 0] for rank in result.ranks]
        for worker in sent[:3]:
            assert worker[3:].sum() == CONFIG.steps * itemsize * elements
        pulled = sum(server[:3] for server in sent[3:])
        assert (pulled == (CONFIG.steps - 1) * 4 * elements).all()
        norms = 0 if itemsize == 4 else CONFIG.steps * 3 * 8  # two servers join largest, count and total
        assert sent[3][4] == sent[4][3] == norms
        joined = sum(worker[:3].sum() for worker in sent[:3])
        assert joined == 0  # workers do not talk to each other


def test_a_worker_that_fails_ends_the_run(ranks):
    for text in ("dp=3,sync=async", "dp=3,sync=server,staleness=1,arrivals=1+1+4"):
        with pytest.raises(md.RankFailed, match="rank 1 of 4 failed"):
            trained(ranks, text, options=RunOptions(faults=(Fault.parse("rank=1,step=2,kind=raise"),)))


def test_divergence_names_the_step(ranks):
    with pytest.raises(md.RankFailed, match=r"training diverged in step \d"):
        trained(ranks, "dp=2,sync=async,arrivals=seeded", replace(CONFIG, lr=1e30, clip=inf, warmup=0, steps=8))


# The parts


def test_ssp_rule():
    assert [may_begin([3, 1, 2], worker, 1) for worker in range(3)] == [False, True, True]
    assert [may_begin([3, 1, 2], worker, 2) for worker in range(3)] == [True, True, True]
    assert may_begin([0, 0], 0, 0) and not may_begin([1, 0], 0, 0) and may_begin([10**9, 0], 0, inf)


def test_the_shard_map_is_balanced_and_complete():
    assert shard_map({"a": 3, "b": 5, "c": 2, "d": 4}, 2) == [["b", "c"], ["d", "a"]]
    assert shard_map({"a": 1, "b": 1, "c": 1}, 2) == [["a", "c"], ["b"]]
    assert shard_map({"a": 1}, 3) == [["a"], [], []]
    sizes = {parameter.name: parameter.size for parameter in GPT(CONFIG.model, seed=0).parameters()}
    for servers in (1, 2, 3, 5, 7):
        shards = shard_map(sizes, servers)
        assert sorted(itertools.chain(*shards)) == sorted(sizes)
        held = [sum(sizes[name] for name in names) for names in shards]
        best = max(max(sizes.values()), -(-sum(sizes.values()) // servers))  # no division does better
        assert max(held) <= 4 / 3 * best


def test_seeded_orders_follow_the_rule_and_the_speeds():
    for seconds, staleness in itertools.product(([1, 1], [1, 1, 4], [2, 1, 3, 1, 1]), (0, 1, 3, inf)):
        order = seeded_order(seconds, 7, staleness, 0)
        assert [each.seconds for each in order] == sorted(each.seconds for each in order)
        assert order == seeded_order(seconds, 7, staleness, 0) != seeded_order(seconds, 7, staleness, 1)
        clocks = [0] * len(seconds)
        for arrival in order:
            assert arrival.step == clocks[arrival.worker] <= min(clocks) + staleness
            clocks[arrival.worker] += 1
        assert clocks == [7] * len(seconds)
        slowest = max(seconds)
        assert 7 * slowest <= order[-1].seconds <= 7 * slowest * 1.2  # the slowest never waits for others
    free = [each.seconds for each in seeded_order([1, 1, 4], 7, inf, 0) if each.worker == 0]
    assert free[-1] <= 7 * 1.2


def test_alike_workers_are_n_minus_1_updates_behind(ranks):
    """The mean over the middle of a run is N - 1 exactly if nobody overtakes; noise makes some gradients staler."""
    result = trained(ranks, "dp=4,sync=async,arrivals=seeded", replace(CONFIG, steps=10))
    stale = [push.staleness for push in result.ranks[4].pushes]
    assert stale[:4] == [0, 1, 2, 3] and sum(stale[4:]) / len(stale[4:]) == pytest.approx(3, abs=0.3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dp=2,sync=server,staleness=-1", "0 or more steps ahead"),
        ("dp=2,sync=async,staleness=2", "leaves unbounded"),
        ("dp=2,staleness=2", "staleness=2 is for sync=server or sync=async"),
        ("dp=2,servers=1", "servers=1 is for sync=server"),
        ("dp=2,sync=server,servers=-1", "at least one rank has to hold"),
        ("dp=2,sync=server,zero=1", "the servers have it"),
        ("dp=2,sync=server,tp=2", "each worker computes with all of it"),
        ("dp=2,sync=async,arrivals=1+x", "choose live, seeded, or how long"),
        ("dp=2,sync=async,arrivals=1+1+4", "times of 3 workers, and there are dp=2"),
        *(
            (f"dp=2,sync=async,arrivals=1+{time}", "above 0 and at most 1000")
            for time in ("0", "-1", "nan", "inf", "1e308")
        ),
        *((f"dp=2,sync=async,arrivals=1+{time}", "how long each worker takes") for time in ("", "1_0", "\u0663")),
        ("sync=server,dp=0", "must be from 1 to"),
        ("dp=64,sync=server", "ranks, and there may be"),
        ("dp=2,sync=server,algorithm=ring", "algorithm=ring"),
        ("dp=2,sync=server,bucket_mb=2", "bucket_mb=2.0 is for sync=bucketed or sync=overlapped"),
    ],
)
def test_what_cannot_be_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        Layout.parse(text)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"precision": "fp16"}, "not all of them have this sum"),
        ({"rampup_batch_size": "5,5,20"}, "leave rampup_batch_size out"),
        ({"experts": 2}, "train a dense model"),
        ({"global_batch": 2}, "needs at least 3 micro-batches"),
    ],
)
def test_runs_that_cannot_be_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        replace(CONFIG, **settings).check(Layout.parse("dp=3,sync=server"))


def test_what_needs_replicas_is_refused(ranks):
    for options, message in (
        (RunOptions(check_replicas=2), "--check-replicas"),
        (RunOptions(rebalance=True), "--rebalance with sync=server"),
        (RunOptions(resume="somewhere"), "checkpoints with sync=server: .* which no checkpoint holds"),
    ):
        with pytest.raises(ValueError, match=message):
            trained(ranks, "dp=2,sync=server", options=options)


@pytest.mark.parametrize(
    ("text", "reason"), [("sync=async", "of any age"), ("sync=server,staleness=3", "up to staleness=3 steps apart")]
)
def test_why_a_run_differs(text, reason):
    found = why_it_differs(CONFIG, Layout.parse(f"dp=2,{text}"))
    assert reason in found and found.endswith("; sync=server with staleness=0 has the bits of one process")
    assert not why_it_differs(CONFIG, Layout.parse("dp=2,sync=server"))


@pytest.mark.long
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_bit_flips_in_the_weights_of_a_worker(ranks, precision):
    """They are a copy: the run changes, and goes on with the weights that the worker pulls next."""
    config, flips = replace(CONFIG, precision=precision), []
    options = RunOptions(faults=(Fault(0, 1, "flip", place="weights"),))
    found = run(
        ranks(3), config, Layout.parse("dp=2,sync=server"), options,
        on_event=lambda rank, event: flips.append((rank, *event[1:])) if event[0] == "flipped" else None,
    )  # fmt: skip
    [(rank, name, _, before, after)] = flips
    assert rank == 0 and name in {parameter.name for parameter in GPT(config.model).parameters()} and before != after
    assert found.fingerprint != trained(ranks, "dp=2,sync=server", config).fingerprint
