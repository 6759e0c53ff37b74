"""The cluster's clock beside closed forms: rings, trees, two levels, pipelines, overlap, shared links."""

import numpy as np
import pytest
from choosing import long

from minidist import trace
from minidist.analysis.networks import fair_rates
from minidist.analysis.replay import replay, steps
from minidist.analysis.report import report
from minidist.comm import all_reduce
from minidist.comm.cost import cheapest
from minidist.comm.placement import place_on_nodes
from minidist.comm.point_to_point import irecv, isend, recv, send
from minidist.plan.cluster.hardware import ClusterSpec
from minidist.plan.cluster.topologies import topology_of
from minidist.plan.cluster.topology import Link, Topology
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RunOptions
from minidist.train.trainer import run

ALPHA, BETA = 3e-6, 1 / 40e9  # of every pair of ranks
EXACT = 1e-9  # relative: thousands of float64 additions, each of 1e-16


def star(ranks: int, latency: float = ALPHA, bandwidth: float = 1 / BETA) -> Topology:
    """Ranks around a switch: a port out and a port in for each, half of the latency in each of them."""
    chips = tuple(f"gpu{rank}" for rank in range(ranks))
    links = {edge: Link(bandwidth, latency / 2) for chip in chips for edge in ((chip, "switch"), ("switch", chip))}
    return Topology(chips, (0,) * ranks, links)


def two_nodes(size: int, uplink: float) -> Topology:
    """Two nodes of so many ranks, with one shared link in each direction between their switches."""
    chips, nodes = tuple(f"gpu{rank}" for rank in range(2 * size)), tuple(rank // size for rank in range(2 * size))
    edges = {(chip, f"node{node}") for chip, node in zip(chips, nodes, strict=True)}
    links = {edge: Link(1 / BETA, 0) for one in edges for edge in (one, one[::-1])}
    return Topology(chips, nodes, links | {(f"node{a}", f"node{1 - a}"): Link(uplink, 0) for a in (0, 1)})


def traced(world, fn, *args) -> list:
    """The log of this rank while it runs a function."""
    trace.start()
    fn(world, *args)
    return trace.stop()


@pytest.fixture
def recorded(ranks):
    """``recorded(fn, size, ...)`` runs a function on so many ranks; the log of each."""
    return lambda fn, size, *args: ranks(size).run(traced, fn, *args)


def reducing(world, elements, algorithm, node_size=None):
    if node_size:
        place_on_nodes(world, node_size)
    all_reduce(np.ones(elements, np.float32), group=world, algorithm=algorithm)


@pytest.mark.parametrize("text", ["a100:3x2", *map(long, ("h100:2x4", "h100:4x3", "h100:4x2,oversubscription=4"))])
def test_hierarchical_wins_where_buffers_are_large_and_auto_takes_the_best_or_nearly(recorded, text):
    """The closed form has 2 (L-1) steps inside a node and 2 (n-1) steps between nodes. The cost model that chooses has
    no shared links, and a latency that keeps a port busy: so 10 percent."""
    spec = ClusterSpec.parse(text)
    n, size, topology, sizes = spec.nodes, spec.node_size, topology_of(spec), (64 << 10, 1 << 20, 8 << 20)
    for nbytes in sizes:
        found = {}
        for name in ("tree", "ring", "halving_doubling", "double_tree", "hierarchical"):
            told = report(replay(recorded(reducing, n * size, nbytes // 4, name, size), topology, None))
            found[name] = told.seconds
            between = {"ring": n * 2 * (n * size - 1) * nbytes / n / size, "hierarchical": 2 * (n - 1) * nbytes}
            assert name not in between or told.bytes_between_nodes == pytest.approx(between[name], rel=1e-3)
        chosen = cheapest("all_reduce", nbytes, topology.nodes, spec.links)
        assert found[chosen] <= 1.1 * min(found.values())
        if nbytes == sizes[0] or spec.oversubscription > 1:
            continue
        assert min(found, key=found.get) == "hierarchical"
        inside = (size - 1) * (spec.inside.latency + nbytes / size / spec.inside.bandwidth)
        across = (n - 1) * (spec.between.latency + nbytes / size / n / spec.between.bandwidth)
        whole = nbytes // 4 % (size * n) == 0  # else some chunks are an element larger than others
        assert found["hierarchical"] == pytest.approx(2 * (inside + across), rel=1e-9 if whole else 1e-3)


@pytest.mark.parametrize("size", [2, long(3), 4, long(5), long(8)])
def test_all_reduces_take_their_closed_forms(recorded, size):
    nbytes, log = 480_000, size.bit_length() - 1  # elements that all these sizes divide
    forms = {"ring": 2 * (size - 1) * (ALPHA + nbytes / size * BETA)}
    if size == 2**log:
        forms["tree"] = 2 * log * (ALPHA + nbytes * BETA)
        forms["halving_doubling"] = 2 * log * ALPHA + 2 * (size - 1) / size * nbytes * BETA
    for name, seconds in forms.items():
        found = replay(recorded(reducing, size, nbytes // 4, name), star(size), None).seconds
        assert found == pytest.approx(seconds, rel=EXACT), name


def sending_all_at_once(world, elements):
    peers = [rank for rank in range(world.size) if rank != world.rank]
    works = [irecv(np.empty(elements, np.float32), peer, world) for peer in peers]
    works += [isend(np.ones(elements, np.float32), peer, world) for peer in peers]
    for work in works:
        work.wait()


def crossing(world, elements):
    half, array = world.size // 2, np.ones(elements, np.float32)
    if world.rank < half:
        send(array, world.rank + half, world)
    else:
        recv(array, world.rank - half, world)


@pytest.mark.parametrize("size", [2, 6])
def test_messages_between_nodes_share_the_uplink(recorded, size):
    found = replay(recorded(crossing, size, 100_000), two_nodes(size // 2, 10e9), None)
    told = report(found)
    waits = [
        [entry.name for entry in log if isinstance(entry, trace.Event) and entry.track == "wait"] for log in found.logs
    ]
    assert waits == [[f"wait for rank {(rank + size // 2) % size}"] for rank in range(size)]
    assert found.seconds == pytest.approx(size // 2 * 400_000 / 10e9, rel=EXACT)
    assert told.links[0].edge == ("node0", "node1") and told.links[0].utilization == pytest.approx(1)
    assert told.slowed == pytest.approx(size // 2) and told.bytes_between_nodes == size // 2 * 400_000
    told = report(replay(recorded(crossing, size, 0), star(size), None))  # messages without a byte
    assert (told.slowed, told.links, told.ranks[0].hidden_share) == (1, [], 0)


def test_messages_share_ports_pay_the_latency_once_and_both_directions_work_at_the_same_time(recorded):
    for size in (2, 5):
        seconds = replay(recorded(sending_all_at_once, size, 10_000), star(size), None).seconds
        assert seconds == pytest.approx(ALPHA + (size - 1) * 40_000 * BETA, rel=EXACT)


def one_after_another(world, elements):
    if world.rank == 1:
        trace.kernel("product", 1, 0)
    if world.rank < 2:
        send(np.ones(elements, np.float32), 2, world)
    else:
        for peer in (0, 1):
            recv(np.empty(elements, np.float32), peer, world)


def test_a_message_moves_faster_while_it_has_a_link_for_itself(recorded):
    """The second begins when half of the first has passed, and ends alone."""
    alone = 40_000 * BETA
    found = replay(recorded(one_after_another, 3, 10_000), star(3, 0.0), lambda kernel: alone / 2)
    times = [[flow.source, flow.start / alone, flow.sent / alone] for flow in found.flows]
    assert np.allclose(times, [[0, 0, 1.5], [1, 0.5, 2]], rtol=EXACT)
    told = report(found)
    fullest = told.links[0]
    assert (fullest.edge, fullest.nbytes, told.slowed) == (("switch", "gpu2"), 80_000, pytest.approx(1.5))
    assert [fullest.seconds / alone, fullest.utilization] == pytest.approx([2, 1])


def overlapping(world, elements, flops):
    work = all_reduce(np.ones(elements, np.float32), group=world, async_op=True, algorithm="ring")
    trace.kernel("product", flops, 0)
    work.wait()
    trace.kernel("product", flops, 0)


def test_asynchronous_collectives_run_beside_kernels(recorded):
    """max(compute, communication) + compute; one FLOP takes a microsecond. What comes out is a log again."""
    ring = 2 * 3 * (ALPHA + 84_000 * BETA)
    for flops in (0, 10, 1000):
        found = replay(recorded(overlapping, 4, 84_000, flops), star(4), lambda kernel: kernel.flops * 1e-6)
        assert found.seconds == pytest.approx(max(ring, flops * 1e-6) + flops * 1e-6, rel=EXACT)
        names = [getattr(entry, "name", "").partition("(")[0] for entry in found.logs[0]]
        assert (names.count("product"), names.count("all_reduce")) == (2, 1)
        assert names.count("wait for a collective") == (flops * 1e-6 < ring)  # by the main stream alone
        assert not any(name.startswith("wait for rank") for name in names)
        assert report(found).ranks[0].hidden_share == pytest.approx(min(1, flops * 1e-6 / ring), rel=1e-6)


def test_what_began_before_the_log_is_not_waited_for_and_real_waits_last_as_long_as_here():
    log = [
        trace.Event("step 0", "step", 0, 9),
        *(trace.Task(call, 1, 0, stream) for call, stream in (("begin", 1), ("end", 1), ("wait", 0))),
        trace.Begin("wait for rank 1", "wait", 0), trace.Event("wait for rank 1", "wait", 0, 5),
        trace.Begin("sync gradients", "wait", 0), trace.Kernel("product", 1, 0, "fp32", 0),
        trace.Event("sync gradients", "wait", 0, 5),
    ]  # fmt: skip
    found = replay([log], star(1), lambda kernel: 2.0)
    assert (found.seconds, found.steps, steps([log])) == (2, {}, 0)
    events = [(one.name, one.start, one.end) for one in found.logs[0] if isinstance(one, trace.Event)]
    assert events == [("sync gradients", 0, 2_000_000_000)]


CONFIG = TrainConfig(layers=4, heads=2, width=8, context=8, global_batch=8, micro_batch=1, steps=2)


def attention_only(kernel) -> float:
    """One second for the forward of a block, two for its backward: every stage has one block."""
    return {"CausalAttention": 1.0, "CausalAttention.backward": 2.0}.get(kernel.name, 0.0)


def test_pipelines_have_their_bubble_and_data_parallel_ranks_none_on_a_free_network(ranks):
    """(m + p - 1) (f + b) for GPipe and 1F1B, p m (f + b) for one micro-batch at a time (Narayanan et al., 2021)."""
    layouts = {Layout(pp=4, schedule=name): 4 + 8 - 1 for name in ("gpipe", "1f1b")}
    for layout, slots in {**layouts, Layout(pp=4, schedule="naive"): 4 * 8, Layout(dp=4): 4 * 8 / 4}.items():
        found = run(ranks(4), CONFIG, layout, RunOptions(trace=True))
        told = report(replay([rank.log for rank in found.ranks], star(4, 0.0, 1e30), attention_only))
        assert told.seconds == pytest.approx(3 * slots, rel=EXACT)
        assert [rank.computing for rank in told.ranks] == pytest.approx([3 * 8] * 4, rel=EXACT)


def test_a_message_that_is_known_to_be_there_has_been_waited_for(recorded):
    def chain(world):
        """Asks until a message is there, passes it on, and waits only then."""
        x = np.ones(3)
        message = irecv(x, world.rank - 1, world) if world.rank else None
        while message and not message.is_completed():
            pass
        if world.rank < world.size - 1:
            send(x, world.rank + 1, world)
        if message:
            message.wait()

    assert steps(recorded(chain, 4)) == 3


@pytest.mark.parametrize("seed", range(20))
def test_rates_are_max_min_fair(seed):
    """Every message crosses a full link on which none is faster: the definition."""
    rng = np.random.default_rng(seed)
    bandwidths = {("link", str(i)): float(rng.integers(1, 20)) for i in range(6)}
    edges = list(bandwidths)
    routes = [[edges[i] for i in rng.choice(6, rng.integers(1, 4), replace=False)] for _ in range(9)]
    rates = fair_rates(routes, bandwidths)
    load = {edge: sum(r for r, route in zip(rates, routes, strict=True) if edge in route) for edge in edges}
    assert all(load[edge] <= bandwidths[edge] * (1 + 1e-12) for edge in edges)  # a few roundings
    for rate, route in zip(rates, routes, strict=True):
        assert any(
            load[edge] >= bandwidths[edge] * (1 - 1e-12)
            and rate >= (1 - 1e-12) * max(r for r, other in zip(rates, routes, strict=True) if edge in other)
            for edge in route
        )
