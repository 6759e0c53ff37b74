"""Parameter servers: an asynchronous run is one process that applies old gradients, and it repeats to the bit."""

import itertools
from dataclasses import replace
from math import inf
from types import SimpleNamespace

import numpy as np
import pytest
from parallel.plain import Plain

import minidist as md
from minidist.nn.gpt import GPT
from minidist.parallel.data import share_of
from minidist.parallel.loosened import server as server_module
from minidist.parallel.loosened.arrivals import may_begin, seeded_order
from minidist.parallel.loosened.server import AsynchronousServer, shard_map
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.resilience.faults import Fault
from minidist.train.result import RunOptions
from minidist.train.trainer import run

CONFIG = TrainConfig(
    layers=2, heads=2, width=16, context=8, steps=4, global_batch=10, micro_batch=1, clip=0.05, warmup=1, dropout=0.1
)


def trained(ranks, text, config=CONFIG, **options):
    layout = Layout.parse(text)
    return run(ranks(layout.world_size), config, layout, **options)


def slow(text: str) -> RunOptions:
    return RunOptions(faults=(Fault.parse(text),))


# The parts


def test_a_worker_may_be_as_far_ahead_as_the_bound_says():
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


def test_of_the_workers_that_are_ready_the_next_in_turn_is_served(monkeypatch):
    """Otherwise a quick worker is served again and again, and the others starve."""
    monkeypatch.setattr(server_module, "wait_any", lambda works: works.index(True))
    asynchronous = AsynchronousServer(SimpleNamespace(), 4, 100, inf, None)
    asynchronous.pushes, served = [True] * 4, []
    for _ in range(12):
        asynchronous.last = asynchronous.first_to_come()
        served.append(asynchronous.last)
    assert served == [1, 2, 3, 0] * 3
    asynchronous.pushes[1], asynchronous.waiting, asynchronous.last = False, [2], 0
    assert asynchronous.first_to_come() == 3


# Runs


def one_process_in_that_order(config, workers, order):
    """Train without servers and messages: gradients of old weights, applied in an order.

    Returns the weights, by name, and how stale each gradient was.
    """
    one = Plain(config)

    def weights_now() -> dict:
        return {name: parameter.data.copy() for name, parameter in one.parameters.items()}

    computing = {worker: (0, weights_now()) for worker in range(workers)}  # the version that each has, its weights
    stale = []
    for version, (worker, step) in enumerate(order):
        (read, weights), newest = computing[worker], weights_now()
        for name, parameter in one.parameters.items():
            parameter.data[...] = weights[name]
        mine = share_of(worker, workers, config.micro_batches)
        one.compute(step, mine)
        for name, parameter in one.parameters.items():
            parameter.data[...] = newest[name]
        one.update(version // workers, len(mine), workers)
        stale.append(version - read)
        computing[worker] = version + 1, weights_now()
    return weights_now(), stale


@pytest.mark.long
def test_it_is_training_with_gradients_of_old_weights(ranks):
    """However many servers there are, and whatever the real speeds: one of the workers is slow."""
    for text, seconds in (("dp=3,sync=async,arrivals=1+1+4", [1, 1, 4]), ("dp=2,sync=async,arrivals=seeded", [1, 1])):
        order = [(each.worker, each.step) for each in seeded_order(seconds, CONFIG.steps, inf, CONFIG.seed)]
        weights, stale = one_process_in_that_order(CONFIG, len(seconds), order)
        for servers in (1, 2):
            options = replace(slow("rank=0,step=1,kind=slow:5"), stop_after=CONFIG.steps - 1)
            result = trained(ranks, f"{text},servers={servers}", options=options)
            for name, expected in weights.items():
                assert np.array_equal(expected.view("u4"), result.ranks[0].arrays[name].view("u4")), name
            for server in result.ranks[len(seconds) :]:
                assert [(push.worker, push.step) for push in server.pushes] == order
                assert [push.staleness for push in server.pushes] == stale


@pytest.mark.long
def test_no_worker_runs_ahead_further_than_it_may_and_servers_may_be_more_than_parameters(ranks):
    """Staleness 0 leaves no gradient old. A server without parameters flips no bit."""
    faults = Fault.parse("rank=2,step=1,kind=slow:9"), Fault.parse("rank=26,step=1,kind=flip:moments")
    config = replace(CONFIG, steps=8, layers=1, global_batch=3)
    assert len(GPT(config.model, seed=0).parameters()) < 24
    for staleness, arrivals, servers in ((0, "live", 24), (1, "live", 1), (1, "1+1+9", 1), (2, "1+1+9", 2)):
        text = f"dp=3,sync=server,staleness={staleness},arrivals={arrivals},servers={servers}"
        clocks, ahead = [0, 0, 0], []
        pushes = trained(ranks, text, config, options=RunOptions(faults=faults)).ranks[3].pushes
        for push in pushes:
            assert push.step == clocks[push.worker]
            ahead.append(push.step - min(clocks))
            clocks[push.worker] += 1
        assert max(ahead) <= staleness and clocks == [8, 8, 8]
        assert arrivals == "live" or max(ahead) == staleness
        assert staleness or not any(push.staleness for push in pushes)


def test_a_worker_that_fails_or_diverges_ends_the_run(ranks):
    for text in ("dp=3,sync=async", "dp=3,sync=server,staleness=1,arrivals=1+1+4"):
        with pytest.raises(md.RankFailed, match="rank 1 of 4 failed"):
            trained(ranks, text, options=slow("rank=1,step=2,kind=raise"))
    with pytest.raises(md.RankFailed, match=r"training diverged in step \d"):
        trained(ranks, "dp=2,sync=async,arrivals=seeded", replace(CONFIG, lr=1e30, clip=inf, warmup=0, steps=8))


def test_a_bit_that_flips_in_a_workers_weights_is_told_and_shows(ranks):
    events, options = [], slow("rank=0,step=1,kind=flip:weights")
    struck = trained(ranks, "dp=2,sync=server", options=options, on_event=lambda *event: events.append(event))
    ((rank, (_, name, *_)),) = [event for event in events if event[1][0] == "flipped"]
    assert rank == 0 and name in {parameter.name for parameter in GPT(CONFIG.model, seed=0).parameters()}
    whole = trained(ranks, "dp=2,sync=server").fingerprint
    assert struck.fingerprint != whole
    late = replace(slow("rank=2,step=3,kind=flip:message"), validate=True)  # the server's last step, which sends none
    assert trained(ranks, "dp=2,sync=server", options=late).fingerprint == whole
