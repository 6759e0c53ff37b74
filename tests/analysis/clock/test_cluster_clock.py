"""The cluster's clock beside closed forms: rings, trees, pipelines, overlap, shared links."""

from itertools import permutations
from math import ceil, log2

import numpy as np
import pytest

from minidist import trace
from minidist.analysis.clock.replay import replay
from minidist.analysis.clock.report import report
from minidist.comm import all_reduce, broadcast
from minidist.comm.point_to_point import irecv, isend, recv, send
from minidist.plan.cluster.topology import Link, Topology
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RunOptions
from minidist.train.trainer import run

ALPHA, BETA = 3e-6, 1 / 40e9  # of every pair of ranks
EXACT = 1e-9  # relative: thousands of float64 additions, each of 1e-16


def star(ranks: int, shared: dict | None = None) -> Topology:
    """Ranks around a switch: a port out and a port in for each, half of the latency in each of them."""
    links = {}
    for rank in range(ranks):
        links[f"gpu{rank}", "switch"] = links["switch", f"gpu{rank}"] = Link(1 / BETA, ALPHA / 2)
    return Topology(tuple(f"gpu{rank}" for rank in range(ranks)), (0,) * ranks, links | (shared or {}))


def two_nodes(size: int, uplink: float) -> Topology:
    """Two nodes of so many ranks, with one shared link in each direction between their switches."""
    links = {}
    for rank in range(2 * size):
        links[f"gpu{rank}", f"node{rank // size}"] = links[f"node{rank // size}", f"gpu{rank}"] = Link(1 / BETA, 0)
    links["node0", "node1"] = links["node1", "node0"] = Link(uplink, 0)
    return Topology(
        tuple(f"gpu{rank}" for rank in range(2 * size)), tuple(rank // size for rank in range(2 * size)), links
    )


def free(ranks: int) -> Topology:
    """A network that takes no time."""
    chips = tuple("abcdefgh"[:ranks])
    return Topology(chips, (0,) * ranks, {pair: Link(1e30, 0.0) for pair in permutations(chips, 2)})


def traced(world, fn, *args) -> list:
    """The log of this rank while it runs a function."""
    trace.start()
    try:
        fn(world, *args)
    finally:
        log = trace.stop()
    return log


@pytest.fixture
def recorded(ranks):
    """``recorded(fn, size, ...)`` runs a function on so many ranks; the log of each."""
    return lambda fn, size, *args: ranks(size).run(traced, fn, *args)


def reducing(world, elements, algorithm):
    all_reduce(np.ones(elements, np.float32), group=world, algorithm=algorithm)


@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_rings_trees_and_halving_doubling(recorded, size):
    for nbytes in (0, 4 * 840, 4 * 840_000):
        rounds, share = 2 * ceil(log2(size)), 2 * (size - 1) / size
        expected = {"ring": (2 * (size - 1), share)}
        if size.bit_count() == 1 and nbytes > 4 * 840:
            expected |= {"tree": (rounds, rounds), "halving_doubling": (rounds, share)}
        for algorithm, (latencies, moved) in expected.items():
            seconds = replay(recorded(reducing, size, nbytes // 4, algorithm), star(size), None).seconds
            assert seconds == pytest.approx(latencies * ALPHA + moved * nbytes * BETA, rel=EXACT), (algorithm, nbytes)


def sending_all_at_once(world, elements):
    peers = [rank for rank in range(world.size) if rank != world.rank]
    arrays = {peer: np.empty(elements, np.float32) for peer in peers}
    works = [irecv(arrays[peer], peer, world) for peer in peers]
    works += [isend(np.ones(elements, np.float32), peer, world) for peer in peers]
    for work in works:
        work.wait()


def crossing(world, elements):
    half = world.size // 2
    array = np.ones(elements, np.float32)
    if world.rank < half:
        send(array, world.rank + half, world)
    else:
        recv(array, world.rank - half, world)


@pytest.mark.parametrize("size", [2, 6])
def test_messages_between_nodes_share_the_uplink(recorded, size):
    logs = recorded(crossing, size, 100_000)
    topology = two_nodes(size // 2, 10e9)
    found = replay(logs, topology, None)
    assert found.seconds == pytest.approx(size // 2 * 400_000 / 10e9, rel=EXACT)
    told = report(found)
    assert told.links[0].edge == ("node0", "node1") and told.links[0].utilization == pytest.approx(1)
    assert told.slowed == pytest.approx(max(1, size // 2))
    assert told.bytes_between_nodes == size // 2 * 400_000


def test_messages_share_ports_pay_the_latency_once_and_both_directions_work_at_the_same_time(recorded):
    for size in (2, 5):
        seconds = replay(recorded(sending_all_at_once, size, 10_000), star(size), None).seconds
        assert seconds == pytest.approx(ALPHA + (size - 1) * 40_000 * BETA, rel=EXACT)


def overlapping(world, elements, flops):
    work = all_reduce(np.ones(elements, np.float32), group=world, async_op=True, algorithm="ring")
    trace.kernel("product", flops, 0)
    work.wait()
    trace.kernel("product", flops, 0)


@pytest.mark.parametrize("flops", [0, 10, 1000])
def test_asynchronous_collectives_run_beside_kernels(recorded, flops):
    """max(compute, communication) + compute; one FLOP takes a microsecond."""
    logs = recorded(overlapping, 4, 84_000, flops)
    topology = star(4)
    found = replay(logs, topology, lambda kernel: kernel.flops * 1e-6)
    ring = 2 * 3 * (ALPHA + 84_000 * BETA)
    assert found.seconds == pytest.approx(max(ring, flops * 1e-6) + flops * 1e-6, rel=EXACT)
    told = report(found)
    assert told.ranks[0].hidden_share == pytest.approx(min(1, flops * 1e-6 / ring), rel=1e-6)


def two_groups(world, elements):
    """Two collectives of different groups at the same time share the ports."""
    groups = [world.new_group([0, 1]), world.new_group([0, 1])]
    arrays = [np.ones(elements, np.float32) for _ in groups]
    works = [broadcast(a, 0, g, async_op=True, algorithm="naive") for a, g in zip(arrays, groups, strict=True)]
    for work in works:
        work.wait()


def test_streams_of_one_rank_use_one_connection_in_turn(recorded):
    assert replay(recorded(two_groups, 2, 10_000), star(2), None).seconds == pytest.approx(ALPHA + 80_000 * BETA)


CONFIG = TrainConfig(layers=4, heads=2, width=8, context=8, global_batch=8, micro_batch=1, steps=2)


def attention_only(kernel) -> float:
    """One second for the forward of a block, two for its backward: every stage has one block."""
    return {"CausalAttention": 1.0, "CausalAttention.backward": 2.0}.get(kernel.name, 0.0)


@pytest.mark.parametrize("schedule", ["naive", "gpipe", "1f1b"])
def test_pipeline_bubble(ranks, schedule):
    """(m + p - 1) (f + b) for GPipe and 1F1B, p m (f + b) for one micro-batch at a time (Narayanan et al., 2021)."""
    stages, micro_batches = 4, 8
    found = run(ranks(stages), CONFIG, Layout(pp=stages, schedule=schedule), RunOptions(trace=True))
    replayed = replay([rank.log for rank in found.ranks], free(stages), attention_only)
    slots = stages * micro_batches if schedule == "naive" else micro_batches + stages - 1
    told = report(replayed)
    assert told.seconds == pytest.approx(3 * slots, rel=EXACT)
    assert [rank.computing for rank in told.ranks] == pytest.approx([3 * micro_batches] * stages, rel=EXACT)


def test_data_parallel_is_as_fast_as_one_rank_on_a_free_network(ranks):
    seconds = []
    for size in (1, 4):
        found = run(ranks(size), CONFIG, Layout(dp=size), RunOptions(trace=True))
        seconds.append(replay([rank.log for rank in found.ranks], free(size), attention_only).seconds)
    assert seconds[0] == pytest.approx(4 * seconds[1], rel=EXACT)


def test_a_replay_of_a_replay_has_the_same_events(ranks):
    """What comes out is a log: its steps and spans are those of the run."""
    found = run(ranks(2), CONFIG, Layout(dp=2), RunOptions(trace=True))
    logs = [rank.log for rank in found.ranks]
    replayed = replay(logs, star(2), lambda kernel: 1e-6)
    for before, after in zip(logs, replayed.logs, strict=True):
        names = [
            sorted(
                (e.name, e.track) for e in log if isinstance(e, trace.Event) and e.track in ("step", "communication")
            )
            for log in (before, after)
        ]
        assert names[0] == names[1] != []
        kernels = [[e for e in log if isinstance(e, trace.Kernel)] for log in (before, after)]
        assert kernels[0] == kernels[1] != []
        assert sum(isinstance(e, trace.Message) for e in before) == sum(isinstance(e, trace.Message) for e in after)


def test_missing_logs_and_links_are_named(recorded):
    logs, topology = recorded(reducing, 3, 100, "ring"), star(3)
    with pytest.raises(ValueError, match="the run has 2 ranks, and the topology 3"):
        replay(logs[:2], topology, None)
    with pytest.raises(ValueError, match="rank 0 waits for something that is in no log"):
        replay([logs[0], logs[1], []], topology, None)
    del topology.links["switch", "gpu2"]
    broken = Topology(topology.chips, topology.nodes, topology.links)
    with pytest.raises(ValueError, match=r"no path from rank 1 \(gpu1\) to rank 2 \(gpu2\).*Add a link"):
        replay(logs, broken, None)
