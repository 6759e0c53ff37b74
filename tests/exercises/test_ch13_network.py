"""Graders of chapter 13: recorded runs, bytes between nodes, the cluster's clock, brute force, exact fractions."""

from fractions import Fraction
from itertools import combinations, pairwise, permutations, product
from math import ceil, isinf, log2, prod

import numpy as np
import pytest

from minidist.analysis.replay import replay
from minidist.course.authoring.assertions import (
    FLOAT64,
    LARGE,
    brief,
    bytes_sent,
    check_numbers,
    in_steps,
    is_sum,
    number,
    peak_bytes,
    same,
    trained,
)
from minidist.course.sandbox.values import generator, many_digits, nbytes, numbers, working_dtype
from minidist.plan.cluster.topology import Link, Topology
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.trainer import run

H100 = 989.4e12, 3.35e12  # FLOP/s in bf16, bytes/s
CONFIG = TrainConfig(layers=2, heads=2, width=16, context=8, global_batch=8, micro_batch=1, steps=3, warmup=1)


def answers(*forbidden):
    """Answers may not call these parts of the library."""
    return pytest.mark.answers("ch13_network", forbidden=forbidden)


pytestmark = answers()


def on_nodes(world, module, run, nodes, *args):
    """Place the ranks on nodes, in any order, and run a function in a rank."""
    world.transport.nodes = tuple(nodes)
    return run(world, module, *args)


def blocks(nodes: int, per_node: int) -> tuple[int, ...]:
    """The node of each rank, in the usual order."""
    return tuple(rank // per_node for rank in range(nodes * per_node))


def trained_on_nodes(world, module, nodes, names, config, layout):
    world.transport.nodes = tuple(nodes)
    return trained(world, module, names, config, layout)


def check_training(student, warm_ranks, name: str, *layouts: tuple[str, int]) -> None:
    """Assert that a run with this function ends on the bits of one process."""
    right = run(warm_ranks(1), CONFIG, Layout()).fingerprint
    for text, per_node in layouts:
        layout = Layout.parse(text)
        nodes = blocks(layout.world_size // per_node, per_node)
        seen = student.on_ranks(layout.world_size, trained_on_nodes, nodes, [name], CONFIG, layout)
        for rank, one in enumerate(seen):
            found, calls = one.value
            assert calls.get(name), f"{text}: the run never calls {name}"
            assert found == right, (
                f"{text}, nodes of {per_node}, rank {rank}: with your {name} the fingerprint is {found[:8]}, in one "
                f"process {right[:8]}"
            )


# 13.1


@answers("minidist.plan.cluster.roofline")
@pytest.mark.task(
    "13.1",
    points=2,
    kind="worksheet",
)
class TestPeak:
    """Where 989 TFLOP/s comes from, and what memory would have to deliver"""

    def test_tensor_core(self, student):
        """Counted: the multiplications and additions of a product."""
        cases = {}
        for m, k, n in ((16, 4, 8), (4, 4, 4), (1, 1, 1), (3, 5, 2), (16, 16, 16), (2, 7, 1)):
            cases[m, k, n] = sum(2 for _ in product(range(m), range(k), range(n)))
        check_numbers(student, "tensor_core_flops", cases, "a multiplication and an addition for each (m, k, n)")

    def test_peak(self, student):
        cases = {
            (132, 4, 1024, 1.83e9): 132 * 4 * 1024 * 1.83e9,  # H100, bf16
            (132, 128, 2, 1.98e9): 132 * 128 * 2 * 1.98e9,  # its other cores, fp32
            (80, 8, 128, 1.53e9): 80 * 8 * 128 * 1.53e9,  # V100
            (1, 1, 1, 1.0): 1.0,
            (3, 5, 7, 11.0): 1155.0,
        }
        check_numbers(student, "peak_flops", cases, "all cores of all SMs in every cycle")

    def test_of_the_h100(self, student):
        """All together: within 0.1 % of the data sheet."""
        ((one,),) = [student.call_each("tensor_core_flops", [(16, 4, 8)])]
        found = student.call("peak_flops", 132, 4, number(one, "tensor_core_flops"), 1.83e9)
        assert found == pytest.approx(989.4e12, rel=1e-3), f"an H100: expected 989.4e12 FLOP/s, got {found:g}"

    def test_dense(self, student):
        cases = {(1978.9e12, True): 989.45e12, (989.4e12, False): 989.4e12, (7.0, True): 3.5, (7.0, False): 7.0}
        check_numbers(student, "dense_flops", cases, "half of the products of a sparse matrix are skipped")

    def test_needed(self, student):
        """The ratio is that of the whole chip: its FLOP/s over its bytes/s."""
        cases = {}
        for per_cycle, bandwidth, sms, clock in (
            (4096, 3.35e12, 132, 1.83e9), (256, 3.35e12, 132, 1.98e9), (1024, 900e9, 80, 1.53e9), (2, 8.0, 4, 3.0),
        ):  # fmt: skip
            cases[per_cycle, bandwidth, sms, clock] = per_cycle * sms * clock / bandwidth
        check_numbers(student, "flops_needed_per_byte", cases, "the chip's FLOP/s over its bytes/s")


# 13.2

# parameters, layers, width, kv_width, itemsize
MODELS = (
    (70_000_000_000, 80, 8192, 1024, 2),  # like Llama 3 70B: 8 heads of keys and values for 64 of queries
    (6_700_000_000, 32, 4096, 4096, 2),
    (1000, 2, 8, 4, 4),
    (7, 1, 2, 2, 1),
)


def decode_by_hand(parameters, layers, width, kv_width, itemsize, batch, context) -> tuple[int, int]:
    """FLOPs and bytes, token by token and layer by layer."""
    flops = sum(2 * parameters + sum(4 * width * context for _ in range(layers)) for _ in range(batch))
    elements = parameters + sum(2 * kv_width * context for _ in range(layers)) * batch
    return flops, elements * itemsize


@answers("minidist.plan.cluster.roofline")
@pytest.mark.task(
    "13.2",
    points=4,
    kind="worksheet",
)
class TestPrefillAndDecode:
    """Prefill and decode on the roofline: the batch from which decode no longer waits for memory"""

    def test_prefill(self, student):
        cases = {}
        for parameters, layers, width, _, _ in MODELS:
            for tokens in (1, 2, 7, 100):
                attention = sum(4 * width * layers * seen for seen in range(1, tokens + 1))
                cases[parameters, layers, width, tokens] = 2 * parameters * tokens + attention
        check_numbers(student, "prefill_flops", cases, "token t attends to t tokens")

    def test_decode(self, student):
        flops, moved = {}, {}
        for (parameters, layers, width, kv_width, itemsize), batch, context in product(
            MODELS, (1, 3, 64), (0, 1, 1000)
        ):
            found = decode_by_hand(parameters, layers, width, kv_width, itemsize, batch, context)
            flops[parameters, layers, width, batch, context] = found[0]
            moved[parameters, layers, kv_width, itemsize, batch, context] = found[1]
        check_numbers(student, "decode_flops", flops, "each sequence's new token")
        check_numbers(student, "decode_bytes", moved, "weights once, the KV cache of each sequence")

    def test_speed(self, student):
        cases = {}
        for flops, moved, batch in ((1e15, 1e9, 7), (1e9, 1e12, 64), (989.4e12, 3.35e12, 5), (12.0, 6.0, 1)):
            for peak, bandwidth in (H100, (3.0, 2.0)):
                cases[flops, moved, batch, peak, bandwidth] = min(batch * peak / flops, batch * bandwidth / moved)
        check_numbers(student, "tokens_per_second", cases, "what takes longer decides")

    def test_least_batch(self, student):
        """Tried out, batch after batch."""
        cases = []
        for model in MODELS:
            for context in (0, 1, 100, 1000, 8192):
                for peak, bandwidth in (H100, (100.0, 3.0), (5.0, 5.0)):
                    cases.append((*model, context, peak, bandwidth))
        cases.append((8, 1, 2, 2, 2, 2, 2.0, 1.0))  # a sequence takes as long to compute as its cache to read
        found = student.call_each("least_batch", cases)
        for case, batch in zip(cases, found, strict=True):
            *model, context, peak, bandwidth = case
            number(batch, f"least_batch{case}")

            def limited_by_arithmetic(size, model=model, context=context, peak=peak, bandwidth=bandwidth):
                flops, moved = decode_by_hand(*model, size, context)
                return Fraction(flops) / Fraction(peak) >= Fraction(moved) / Fraction(bandwidth)

            if isinf(batch):
                largest = 10_000_000
                flops, moved = (
                    b - a
                    for a, b in zip(decode_by_hand(*model, 1, context), decode_by_hand(*model, 2, context), strict=True)
                )
                never = Fraction(flops) / Fraction(peak) <= Fraction(moved) / Fraction(bandwidth)
                assert never, f"least_batch{case}: expected a number, got inf; at {largest:,} arithmetic takes longer"
                continue
            assert batch == int(batch) >= 1, f"least_batch{case}: expected a whole number or inf, got {batch}"
            batch = int(batch)
            assert limited_by_arithmetic(batch), (
                f"least_batch{case}: with a batch of {batch} decode is still limited by memory"
            )
            assert batch == 1 or not limited_by_arithmetic(batch - 1), (
                f"least_batch{case}: got {batch}, but with a batch of {batch - 1} arithmetic already takes as long"
            )


# 13.3


def least_cut(topology: Topology) -> float:
    """Over all ways to put vertices on two sides, with half of the chips on each, as rows of bits."""
    vertices = list(dict.fromkeys([*topology.chips, *(end for edge in topology.links for end in edge)]))
    chips, count = len(topology.chips), len(vertices)
    sides = (np.arange(1 << count)[:, None] >> np.arange(count)) & 1  # (cuts, vertices)
    sides = sides[np.isin(sides[:, :chips].sum(axis=1), (chips // 2, chips - chips // 2))].astype(bool)
    capacity = np.zeros(len(sides))
    for (start, end), link in topology.links.items():
        capacity += link.bandwidth * (sides[:, vertices.index(start)] & ~sides[:, vertices.index(end)])
    return float(capacity.min())


def network(chips: int, edges, both: bool = True) -> Topology:
    """Return a network of (start, end, bandwidth): numbers are chips, names are switches."""
    links = {}
    for start, end, bandwidth in edges:
        one, other = (f"chip{v}" if isinstance(v, int) else v for v in (start, end))
        links[one, other] = Link(float(bandwidth))
        if both:
            links[other, one] = Link(float(bandwidth))
    return Topology(tuple(f"chip{n}" for n in range(chips)), (0,) * chips, links)


def fat_tree(nodes: int, per_node: int, bandwidth: float, oversubscription: float) -> Topology:
    edges = [(chip, f"leaf{chip // per_node}", bandwidth) for chip in range(nodes * per_node)]
    edges += [(f"leaf{node}", "spine", per_node * bandwidth / oversubscription) for node in range(nodes)]
    return network(nodes * per_node, edges)


def grid(shape: tuple[int, ...], bandwidth: float, wraps: bool) -> Topology:
    places = list(product(*map(range, shape)))
    edges = []
    for place, (axis, side) in product(places, enumerate(shape)):
        if place[axis] + 1 < side or wraps:
            neighbour = (*place[:axis], (place[axis] + 1) % side, *place[axis + 1 :])
            edges.append((places.index(place), places.index(neighbour), bandwidth))
    return network(len(places), edges)


NETWORKS = {
    "a switch": network(4, [(n, "switch", 3) for n in range(4)]),
    "a switch and 5 chips": network(5, [(n, "switch", 3) for n in range(5)]),
    "a line of 6": network(6, [(n, n + 1, 2) for n in range(5)]),
    "a line of 7": network(7, [(n, n + 1, 2 + n) for n in range(6)]),
    "a ring of 6": network(6, [(n, (n + 1) % 6, 1.5) for n in range(6)]),
    "a ring in one direction": network(6, [(n, (n + 1) % 6, 1.5) for n in range(6)], both=False),
    "chips that are not numbered side by side": network(4, [(0, 2, 9), (1, 3, 9), (0, 1, 2), (2, 3, 2)]),
    "everyone to everyone": network(6, [(*pair, 1) for pair in combinations(range(6), 2)]),
    "a hypercube": network(8, [(n, n ^ bit, 1) for n in range(8) for bit in (1, 2, 4) if n < n ^ bit]),
    "a mesh of 2 x 4": grid((2, 4), 1.0, wraps=False),
    "a slow uplink": network(4, [(0, "a", 9), (1, "a", 9), (2, "b", 9), (3, "b", 9), ("a", "b", 4)]),
    "two switches that all chips are on": network(4, [(n, name, 2) for n in range(4) for name in "ab"]),
    "a fat tree": fat_tree(2, 3, 2.0, 1.0),
    "a fat tree, oversubscribed": fat_tree(4, 2, 2.0, 2.5),
    "two chips": network(2, [(0, 1, 7)]),
    "faster in one direction": network(2, [(0, 1, 7), (1, 0, 3)], both=False),
    "two that send little to a third": network(
        3, [(0, 2, 1), (1, 2, 1), (0, 1, 10), (1, 0, 10), (2, 0, 10), (2, 1, 10)], both=False
    ),
    "two that a third sends little to": network(
        3, [(2, 0, 1), (2, 1, 1), (0, 1, 10), (1, 0, 10), (0, 2, 10), (1, 2, 10)], both=False
    ),
    "no link between": network(4, [(0, 1, 1), (2, 3, 1)]),
    "switches nobody needs": network(2, [(0, 1, 2), (0, "x", 5), ("x", "y", 5)]),
}


def run_bisection(world, module, topologies):
    return [module.bisection_bandwidth(topology) for topology in topologies]


@answers("minidist.plan.cluster.topologies:bisection_bandwidth", "minidist.plan.cluster.topology:max_flow")
@pytest.mark.task(
    "13.3",
    points=4,
)
class TestBisection:
    """bisection_bandwidth: the narrowest place of a network, counted and by formula"""

    def check(self, student, networks) -> None:
        seen = student.on_ranks(1, run_bisection, list(networks.values()))[0].value
        for (name, topology), found in zip(networks.items(), seen, strict=True):
            right = least_cut(topology)
            assert number(found, name) == pytest.approx(right, rel=FLOAT64, abs=0), (
                f"{name}: expected {right:g} bytes/s, the least of all cuts, got {found:g}"
            )

    @pytest.mark.parametrize("name", NETWORKS)
    def test_network(self, student, name):
        self.check(student, {name: NETWORKS[name]})

    def test_random_networks(self, student):
        rng = generator(13)
        found = {}
        for case in range(6):
            chips, switches = int(rng.integers(2, 7)), int(rng.integers(0, 4))
            vertices = [*range(chips), *"abc"[:switches]]
            pairs = [pair for pair in permutations(vertices, 2) if rng.random() < 0.5]
            found[f"random network {case}"] = network(chips, [(*p, rng.integers(1, 20)) for p in pairs], both=False)
        self.check(student, {name: topology for name, topology in found.items() if topology.links})

    def test_fat_tree(self, student):
        """Small ones against all cuts, large ones against what an oversubscription means."""
        cases = {
            (nodes, per_node, 2.0, factor): least_cut(fat_tree(nodes, per_node, 2.0, factor))
            for nodes, per_node in ((2, 1), (2, 3), (4, 2), (2, 4)) for factor in (1.0, 2.0, 4.0)
        }  # fmt: skip
        cases[32, 8, 50e9, 1.0] = 16 * 8 * 50e9  # 6.4 TB/s
        cases[32, 8, 50e9, 7.0] = 16 * 8 * 50e9 / 7
        check_numbers(student, "fat_tree_bisection", cases, "what the uplinks of half of the nodes carry")

    def test_torus(self, student):
        cases = {((side,), 3.0): least_cut(grid((side,), 3.0, wraps=True)) for side in (4, 6, 8, 10)}
        cases[(4, 4), 1.0] = 8.0
        cases[(16, 4), 2.0] = 2 * 4 * 2.0
        cases[(4, 4, 4), 45e9] = 2 * 16 * 45e9
        cases[(8, 16, 16), 45e9] = 2 * 8 * 16 * 45e9
        cases[(12, 4, 8), 1.0] = 2 * 4 * 8 * 1.0
        check_numbers(student, "torus_bisection", cases, "links across the middle, and those around")


# 13.4


def fill(routes, bandwidths) -> list[float]:
    """Progressive filling: all rates grow together until a link is full; its messages stop. In exact fractions."""
    rates = [Fraction(0)] * len(routes)
    growing = set(range(len(routes)))
    while growing:
        room = {}
        for edge, bandwidth in bandwidths.items():
            on = [message for message, route in enumerate(routes) if edge in route]
            count = sum(message in growing for message in on)
            if count:
                room[edge] = (Fraction(bandwidth) - sum(rates[message] for message in on)) / count
        step = min(room.values())
        for message in growing:
            rates[message] += step
        full = {edge for edge, left in room.items() if left == step}
        growing -= {message for message in growing if full & set(routes[message])}
    return [float(rate) for rate in rates]


def run_fair_rates(world, module, cases):
    seen = []
    for routes, bandwidths in cases:
        before = repr((routes, bandwidths))
        found = module.fair_rates(routes, bandwidths)
        seen.append((found, repr((routes, bandwidths)) == before))
    return seen


def replayed_with(world, module, logs, topology):
    """The seconds of a recorded run on a clock that shares links with the answer's function."""
    from minidist import overrides

    overrides.override({"fair_rates": module.fair_rates})
    try:
        return replay(logs, topology, None).seconds, overrides.calls["fair_rates"]
    finally:
        overrides.override({})


def all_at_once(world, nodes, elements):
    """Every rank sends to every other rank, and an all-reduce on top."""
    from minidist import irecv, isend, trace

    world.transport.nodes = tuple(nodes)
    trace.start()
    peers = [rank for rank in range(world.size) if rank != world.rank]
    arrays = {peer: np.empty(elements * (peer + 1), np.float32) for peer in peers}
    works = [irecv(arrays[peer], peer, world) for peer in peers]
    works += [isend(np.ones(elements * (world.rank + 1), np.float32), peer, world) for peer in peers]
    for work in works:
        work.wait()
    all_reduced(world, None, elements, "ring")
    return trace.stop()


@answers("minidist.analysis.networks:fair_rates")
@pytest.mark.task(
    "13.4",
    points=4,
)
class TestFairRates:
    """fair_rates: how messages share links, max-min fair"""

    def check(self, student, cases) -> None:
        for (routes, bandwidths), (found, kept) in zip(
            cases, student.on_ranks(1, run_fair_rates, cases)[0].value, strict=True
        ):
            what = f"fair_rates, routes {routes!s:.120}, bandwidths {bandwidths!s:.120}"
            assert kept, f"{what}: expected the arguments unmodified"
            right = fill(routes, bandwidths)
            assert isinstance(found, list) and len(found) == len(right), (
                f"{what}: expected a list of {len(right)} rates, got {found!r:.60}"
            )
            for message, (rate, expected) in enumerate(zip(found, right, strict=True)):
                # shares are subtracted from links again and again: 1e-9 for the roundings
                assert number(rate, what) == pytest.approx(expected, rel=1e-9), (
                    f"{what}: message {message}: expected {expected:g} bytes/s, got {rate:g}"
                )

    def test_one_link(self, student):
        link = ("a", "b")
        self.check(student, [([[link]] * count, {link: 12.0}) for count in (1, 2, 3, 5)])
        self.check(student, [([], {link: 12.0})])

    def test_several_links(self, student):
        self.check(student, [([["x", "y", "z"]], {"x": 5.0, "y": 2.0, "z": 9.0})])
        self.check(student, [([["x"], ["y"], ["x"]], {"x": 5.0, "y": 2.0, "unused": 0.5})])

    def test_what_one_leaves_others_share(self, student):
        """The textbook's line of links: a long message over all of them, and short ones on each."""
        self.check(student, [([["x", "y"], ["x"], ["y"]], {"x": 10.0, "y": 4.0})])
        self.check(student, [([["x", "y"], ["x"], ["x"], ["y"]], {"x": 12.0, "y": 2.0})])
        long = [f"link{n}" for n in range(5)]
        self.check(student, [([long, *([each] for each in long)], {each: 3.0 + n for n, each in enumerate(long)})])

    def test_links_that_fill_one_after_another(self, student):
        routes = [["a", "b"], ["b", "c"], ["c", "d"], ["d"], ["a"], ["d", "a"]]
        self.check(student, [(routes, {"a": 3.0, "b": 1.0, "c": 2.0, "d": 10.0})])
        self.check(student, [(routes, {"a": 1e12, "b": 50e9, "c": 450e9, "d": 1.0})])

    def test_routes_are_tuples_or_lists(self, student):
        ab, bc = ("a", "b"), ("b", "c")
        self.check(student, [(((ab, bc), (bc,)), {ab: 3.0, bc: 4.0}), ([(ab,), (ab, bc)], {bc: 1.0, ab: 4.0})])

    def test_random(self, student):
        rng = generator(8)
        cases = []
        for _ in range(30):
            links = [f"link{n}" for n in range(int(rng.integers(1, 8)))]
            routes = [
                [str(each) for each in rng.choice(links, int(rng.integers(1, len(links) + 1)), replace=False)]
                for _ in range(int(rng.integers(1, 12)))
            ]
            cases.append((routes, {each: float(rng.integers(1, 100)) for each in links}))
        self.check(student, cases)

    def test_on_the_clock(self, student, warm_ranks):
        """A real run's messages on two nodes with an oversubscribed uplink, with the answer's rates."""
        for nodes, per_node, factor in ((2, 2, 4.0), (2, 3, 2.0)):
            where = blocks(nodes, per_node)
            logs = warm_ranks(nodes * per_node).run(all_at_once, where, 600, timeout=10)
            topology = fat_tree(nodes, per_node, 50e9, factor)
            right = replay(logs, topology, None).seconds
            found, calls = student.on_ranks(1, replayed_with, strip(logs), topology)[0].value
            assert calls, "the clock has not called fair_rates"
            assert found == pytest.approx(right, rel=1e-9), (
                f"{nodes} nodes of {per_node}, uplinks oversubscribed {factor:g}-fold: the run takes {right * 1e6:.3f} "
                f"us, with your rates {found * 1e6:.3f} us"
            )


def strip(logs: list[list]) -> list[list]:
    return [list(log) for log in logs]


# 13.5

COUNTED = ((1, 2), (1, 4), (2, 1), (2, 2), (2, 4), (4, 2), (3, 2), (2, 3), (4, 1), (8, 1), (1, 1))


def all_reduced(world, module, elements, algorithm):
    """The library's all-reduce."""
    import minidist as md

    md.all_reduce(np.ones(elements, np.float32), group=world, algorithm=algorithm)


def recorded_on_nodes(world, nodes, elements, algorithm):
    """The traffic and the log of the library's all-reduce."""
    from minidist import trace

    world.transport.nodes = tuple(nodes)
    before = world.traffic
    trace.start()
    try:
        all_reduced(world, None, elements, algorithm)
    finally:
        log = trace.stop()
    return (world.traffic - before).sent[:, 0], log


def rails(nodes: int, per_node: int, inside: tuple[float, float], between: tuple[float, float]) -> Topology:
    """Each rank has a port to its node's switch and one to the network. (alpha, beta) from rank to rank."""
    links = {}
    for rank in range(nodes * per_node):
        for switch, (alpha, beta) in ((f"node{rank // per_node}", inside), ("network", between)):
            links[f"gpu{rank}", switch] = links[switch, f"gpu{rank}"] = Link(1 / beta, alpha / 2)
    chips = tuple(f"gpu{rank}" for rank in range(nodes * per_node))
    topology = Topology(chips, blocks(nodes, per_node), links)
    topology.routes = {
        (a, b): tuple(pairwise((f"gpu{a}", f"node{a // per_node}" if a // per_node == b // per_node else "network",
                                f"gpu{b}")))
        for a, b in permutations(range(nodes * per_node), 2)
    }  # fmt: skip
    return topology


@answers("minidist.comm.cost")
@pytest.mark.task(
    "13.5",
    points=5,
    kind="worksheet",
)
class TestBytesBetweenNodes:
    """Bytes between nodes: ring, direct, tree, two levels; and the time of two levels"""

    def check(self, student, warm_ranks, name: str, algorithm: str, grids, node_of=None) -> None:
        """Against a recorded run of the library's algorithm."""
        right = {}
        for nodes, per_node in grids:
            size, elements = nodes * per_node, 840
            where = np.array([node_of(rank, nodes) for rank in range(size)] if node_of else blocks(nodes, per_node))
            runs = warm_ranks(size).run(recorded_on_nodes, where.tolist(), elements, algorithm, timeout=10)
            crossing = [int(sent[where != where[rank]].sum()) for rank, (sent, _) in enumerate(runs)]
            right[nodes, per_node, float(4 * elements)] = sum(crossing), max(crossing)
        for args, found in zip(right, student.call_each(name, list(right)), strict=True):
            is_pair = isinstance(found, tuple | list) and len(found) == 2
            assert is_pair, f"{name}{args}: expected two numbers, got {found!r:.60}"
            for one, expected, what in zip(found, right[args], ("all ranks", "the busiest rank"), strict=True):
                assert number(one, name) == pytest.approx(expected, rel=FLOAT64), (
                    f"{name}{args}: of {what} expected {expected:,}, as counted in a real run, got {one:,.6g}"
                )

    def test_ring(self, student, warm_ranks):
        self.check(student, warm_ranks, "ring_crossing", "ring", COUNTED)

    def test_ring_of_ranks_that_were_dealt_out(self, student, warm_ranks):
        self.check(student, warm_ranks, "dealt_ring_crossing", "ring", COUNTED, lambda rank, nodes: rank % nodes)

    def test_two_shot(self, student, warm_ranks):
        self.check(student, warm_ranks, "two_shot_crossing", "two_shot", COUNTED)

    def test_tree(self, student, warm_ranks):
        powers = [(n, per_node) for n, per_node in COUNTED if n.bit_count() == per_node.bit_count() == 1]
        self.check(student, warm_ranks, "tree_crossing", "tree", powers)

    def test_hierarchical(self, student, warm_ranks):
        self.check(student, warm_ranks, "hierarchical_crossing", "hierarchical", COUNTED)

    def test_hierarchical_seconds(self, student, warm_ranks):
        """Recorded, and replayed on the cluster's clock."""
        right, elements = {}, 840
        for nodes, per_node in COUNTED:
            runs = warm_ranks(nodes * per_node).run(
                recorded_on_nodes, blocks(nodes, per_node), elements, "hierarchical", timeout=10
            )
            for inside, between in (
                ((1e-6, 1 / 450e9), (5e-6, 1 / 50e9)),
                ((1e-6, 1e-9), (1e-6, 1e-9)),
                ((1e-9, 1e-6), (2e-9, 1e-5)),
            ):
                topology = rails(nodes, per_node, inside, between)
                seconds = replay([log for _, log in runs], topology, None).seconds if nodes * per_node > 1 else 0.0
                right[nodes, per_node, 4.0 * elements, inside, between] = seconds
        for args, found in zip(right, student.call_each("hierarchical_seconds", list(right)), strict=True):
            # the clock adds up thousands of roundings, and its log is in whole nanoseconds
            assert number(found, "hierarchical_seconds") == pytest.approx(right[args], rel=1e-6, abs=1e-12), (
                f"hierarchical_seconds{args}: expected {right[args]:.6g} s, the time of a real run on the cluster's "
                f"clock, got {found:.6g}"
            )


# 13.6

GRIDS = ((2, 2), (2, 3), (3, 2), (1, 4), (4, 1), (2, 4))
SHUFFLED = ((0, 1, 0, 1), (1, 0, 0, 1, 1, 0), (2, 0, 1, 1, 2, 0), (7, 7, 3, 3), (0, 1, 1, 0))


def run_hierarchical(group, module, elements, combine="add", dtype=None):
    flat = as_dtype(group.rank, elements, dtype)
    module.all_reduce_hierarchical(flat, getattr(np, combine), group)
    return flat


def as_dtype(rank: int, elements: int, dtype: str | None) -> np.ndarray:
    return many_digits(rank, elements) if dtype is None else (numbers(rank, elements) % 64).astype(dtype)


def in_a_group(world, module, run, nodes, ranks, *args):
    """Run in a group of some of the ranks; each rank is in one group."""
    world.transport.nodes = tuple(nodes)
    group = world.new_group(next(each for each in ranks if world.rank in each))
    return run(group, module, *args)


def peak_of_hierarchical(world, module, elements):
    flat = np.ones(elements)
    return peak_bytes(lambda: module.all_reduce_hierarchical(flat, np.add, world))


@answers(
    "minidist.comm.two_level:all_reduce_hierarchical",
    "minidist.comm.placement:two_levels",
)
@pytest.mark.task(
    "13.6",
    points=5,
    dtypes=("float64", "float32", "int32"),
)
class TestAllReduceHierarchical:
    """all_reduce_hierarchical: as few bytes between nodes as possible, over all links between nodes at once"""

    def check(self, student, nodes, elements: int, *more) -> list:
        seen = student.on_ranks(len(nodes), on_nodes, run_hierarchical, nodes, elements, *more)
        dtype = more[1] if len(more) == 2 else None
        parts = [as_dtype(rank, elements, dtype) for rank in range(len(nodes))]
        for rank, one in enumerate(seen):
            where = f"{elements} elements on rank {rank}, nodes {nodes}, {dtype or working_dtype()}"
            is_sum(one.value, parts, where)
        return seen

    def test_values(self, student):
        for nodes, per_node in GRIDS if working_dtype() == np.float64 else GRIDS[:2]:
            for elements in (24, 11, 1, 0) if per_node * nodes < 7 else (11,):
                self.check(student, blocks(nodes, per_node), elements)

    @pytest.mark.one_dtype
    def test_one_rank(self, student):
        self.check(student, (0,), 5)

    @pytest.mark.one_dtype
    def test_ranks_of_a_node_that_do_not_follow_each_other(self, student):
        for nodes in SHUFFLED:
            self.check(student, nodes, 13)

    @pytest.mark.one_dtype
    def test_groups(self, student):
        """Six ranks are on three nodes; the groups have theirs on other nodes, in other orders."""
        nodes, groups = (0, 0, 1, 1, 2, 2), ([4, 2, 3, 5], [1, 0])
        for elements in (9, 24):
            seen = student.on_ranks(6, in_a_group, run_hierarchical, nodes, groups, elements)
            for rank, one in enumerate(seen):
                group = next(each for each in groups if rank in each)
                parts = [many_digits(place, elements) for place in range(len(group))]
                is_sum(one.value, parts, f"rank {rank} in the group {group}")
        for group in groups:
            self.check_bytes(seen, nodes, elements, group)

    def test_other_operations(self, student):
        for op in ("maximum", "minimum"):
            right = getattr(np, op).reduce([many_digits(rank, 9) for rank in range(4)])
            for rank, one in enumerate(student.on_ranks(4, on_nodes, run_hierarchical, blocks(2, 2), 9, op)):
                same(one.value, right, f"np.{op} on rank {rank} of 4, nodes of 2, {working_dtype()}")

    @pytest.mark.one_dtype
    def test_other_dtypes(self, student):
        for dtype in ("complex128", "float16"):
            self.check(student, blocks(2, 2), 7, "add", dtype)

    @pytest.mark.one_dtype
    def test_large(self, student):
        self.check(student, blocks(2, 2), LARGE)

    @pytest.mark.one_dtype
    def test_memory(self, student):
        """The sum is in place: there is room for what arrives, not for another buffer."""
        for one in student.on_ranks(4, on_nodes, peak_of_hierarchical, blocks(2, 2), LARGE):
            assert one.value < LARGE * 8 * 0.75, (
                f"{LARGE * 8:,} bytes on 2 nodes of 2 ranks: the answer takes {one.value:,} bytes of memory on top: "
                "work in views of the array, such as np.array_split gives"
            )

    def check_bytes(self, results, nodes, elements: int, ranks=None) -> None:
        """Check the bytes that each rank of a group sent to other nodes, and inside its own."""
        ranks = list(ranks or range(len(nodes)))
        sent, nodes = bytes_sent(results)[np.ix_(ranks, ranks)], [nodes[rank] for rank in ranks]
        count, per_node, mine = len(set(nodes)), len(nodes) // len(set(nodes)), nbytes(elements)
        between, inside = 2 * (count - 1) * mine // len(nodes), 2 * (per_node - 1) * mine // per_node
        local = [nodes[:rank].count(node) for rank, node in enumerate(nodes)]
        for rank, node in enumerate(nodes):
            others = {peer: int(sent[rank, peer]) for peer in range(len(nodes)) if nodes[peer] != node}
            where = f"rank {rank}, nodes {tuple(nodes)}, an array of {mine} bytes"
            assert sum(others.values()) == between, (
                f"{where}: bytes to other nodes: expected {between}, 2 (n-1)/n M/L, got {sum(others.values())}"
            )
            to = [peer for peer, nonzero in others.items() if nonzero]
            assert all(local[peer] == local[rank] for peer in to), (
                f"{where}: sends to ranks {to}; only those with its own local index have the same part"
            )
            assert len(to) <= 1, f"{where}: sends to ranks {to} of other nodes; in a ring it is one"
            found = int(sent[rank].sum()) - between
            assert found == inside, f"{where}: bytes inside the node: expected {inside}, 2 (L-1)/L M, got {found}"

    def test_bytes(self, student):
        places = [blocks(*grid) for grid in GRIDS] + list(SHUFFLED)
        for nodes in places if working_dtype() == np.float64 else places[:1]:
            elements = 24 * len(nodes)
            self.check_bytes(self.check(student, nodes, elements), nodes, elements)

    @pytest.mark.one_dtype
    def test_steps(self, student):
        for nodes, per_node in GRIDS:
            seen = student.on_ranks(nodes * per_node, on_nodes, run_hierarchical, blocks(nodes, per_node), 24)
            in_steps(seen, 2 * (per_node - 1) + 2 * (nodes - 1))

    @pytest.mark.one_dtype
    def test_on_the_clock(self, student):
        """It is as fast as its closed form; links between nodes are ten times as slow as the others."""
        inside, between, elements = (1e-6, 1 / 500e9), (5e-6, 1 / 50e9), 24_000
        for nodes, per_node in ((2, 3), (3, 2), (2, 4)):
            seen = student.on_ranks(nodes * per_node, on_nodes, run_hierarchical, blocks(nodes, per_node), elements)
            found = replay([one.log for one in seen], rails(nodes, per_node, inside, between), None).seconds
            part = 8 * elements / per_node
            right = 2 * (per_node - 1) * (inside[0] + inside[1] * part)
            right += 2 * (nodes - 1) * (between[0] + between[1] * part / nodes)
            assert found <= right * 1.001, (
                f"{nodes} nodes of {per_node}, on the cluster's clock: expected {right:.3g} s, got {found:.3g} s"
            )

    @pytest.mark.one_dtype
    def test_trains_a_transformer(self, student, warm_ranks):
        name = "all_reduce_hierarchical"
        check_training(
            student, warm_ranks, name, ("dp=4,algorithm=hierarchical", 2), ("dp=2,tp=2,algorithm=hierarchical", 2)
        )


# 13.7

TREE_SIZES = (*range(1, 34), 63, 64, 65, 100, 127, 128, 129, 1000)


def run_double_tree(world, module, sizes):
    return [list(module.double_tree(size)) if size >= 0 else None for size in sizes]


def all_reduced_on_trees(world, module, elements):
    """The library's all-reduce and broadcast on the answer's trees."""
    import minidist as md
    from minidist import overrides

    overrides.override({"double_tree": module.double_tree})
    try:
        flat, copied = many_digits(world.rank, elements), many_digits(world.rank, 7)
        md.all_reduce(flat, group=world, algorithm="double_tree")
        md.broadcast(copied, world.size - 1, world, algorithm="double_tree")
        return flat, copied, overrides.calls["double_tree"]
    finally:
        overrides.override({})


@answers("minidist.comm.double_tree:double_tree", "minidist.comm.double_tree:binary_tree")
@pytest.mark.task(
    "13.7",
    points=4,
)
class TestDoubleTree:
    """double_tree: two trees over the same ranks, in which no rank is idle"""

    def trees(self, student, sizes=TREE_SIZES):
        """(what, size, tree) of each tree, checked to be a list of parents."""
        for size, found in zip(sizes, student.on_ranks(1, run_double_tree, sizes)[0].value, strict=True):
            assert len(found) == 2, f"double_tree({size}): expected two trees, got {len(found)}"
            for number_, tree in enumerate(found):
                what = f"double_tree({size}), tree {number_}"
                is_list = isinstance(tree, list) and len(tree) == size
                assert is_list, f"{what}: expected a list of {size} parents, got {tree!r:.60}"
                for rank, parent in enumerate(tree):
                    assert parent is None or (type(parent) is int and 0 <= parent < size), (
                        f"{what}: the parent of rank {rank}: expected a rank (an int) or None, got {parent!r:.40}"
                    )
                yield what, size, tree

    def depth(self, tree, what: str) -> int:
        """The longest path to the root."""
        depths = {}
        for rank in range(len(tree)):
            path = [rank]
            while tree[path[-1]] is not None and path[-1] not in depths:
                path.append(tree[path[-1]])
                assert len(path) <= len(tree), f"{what}: from rank {rank} parents lead in a circle: {path[:8]}"
            known = depths.get(path[-1], 0)
            for distance, each in enumerate(reversed(path)):
                depths[each] = known + distance
        return max(depths.values())

    def test_trees(self, student):
        for what, _, tree in self.trees(student):
            roots = [rank for rank, parent in enumerate(tree) if parent is None]
            assert len(roots) == 1, f"{what}: expected one root, got {roots[:8]}"
            self.depth(tree, what)

    def test_two_children(self, student):
        for what, size, tree in self.trees(student):
            children = np.bincount([parent for parent in tree if parent is not None], minlength=size)
            most = int(children.argmax())
            assert children[most] <= 2, f"{what}: rank {most} has {children[most]} children, at most 2 are allowed"

    def test_depth(self, student):
        for what, size, tree in self.trees(student):
            right, found = ceil(log2(size)), self.depth(tree, what)
            assert found <= right, f"{what}: expected no path longer than {right} links, got {found}"

    def test_inner_in_one(self, student):
        found = list(self.trees(student))
        for (_, size, first), (_, _, second) in zip(found[::2], found[1::2], strict=True):
            both = sorted({parent for parent in first if parent is not None} & set(second) - {None})
            assert len(both) <= size % 2, (
                f"double_tree({size}): expected {'at most one rank' if size % 2 else 'no rank'} that is inner in both "
                f"trees, got {both[:8]}"
            )

    def test_no_ranks(self, student):
        (found,) = student.on_ranks(1, run_double_tree, [0])[0].value
        assert found == [[], []], f"double_tree(0): expected two empty lists, got {found}"

    def test_carries_an_all_reduce(self, student):
        """The library's all-reduce and broadcast on these trees."""
        for size in (2, 3, 5, 6, 8):
            elements = 96
            seen = student.on_ranks(size, all_reduced_on_trees, elements)
            for rank, one in enumerate(seen):
                flat, copied, calls = one.value
                assert calls, "the library's all-reduce has not called double_tree"
                is_sum(flat, [many_digits(other, elements) for other in range(size)], f"rank {rank} of {size}")
                same(copied, many_digits(size - 1, 7), f"a broadcast to rank {rank} of {size}")

    def test_trains_a_transformer(self, student, warm_ranks):
        check_training(student, warm_ranks, "double_tree", ("dp=4,algorithm=double_tree", 4))


# 13.8


def mesh_by_hand(inside: tuple[int, ...], across: tuple[int, ...]) -> np.ndarray:
    shape = [a * b for a, b in zip(across, inside, strict=True)]
    found = np.empty(shape, np.int64)
    for place in product(*map(range, shape)):
        node = local = 0
        for coordinate, block, count in zip(place, inside, across, strict=True):
            node = node * count + coordinate // block
            local = local * block + coordinate % block
        found[place] = node * prod(inside) + local
    return found


def run_best_inside(world, module, cases):
    found = []
    for case in cases:
        try:
            block = module.best_inside(*case)
            found.append([int(side) for side in block])
        except ValueError:
            found.append("ValueError")
    return found


def two_level_seconds(size: int, inside: int, nbytes_: float, fast: float, slow: float) -> float:
    """Step by step, as the rings go."""
    near = 2 * sum(nbytes_ / inside / fast for _ in range(inside - 1))
    part, nodes = nbytes_ / inside, size // inside
    return near + 2 * sum(part / nodes / slow for _ in range(nodes - 1))


@answers("minidist.comm.cost")
@pytest.mark.task(
    "13.8",
    points=4,
)
class TestPlacingAMesh:
    """hybrid_mesh, best_inside: which block of a mesh belongs in a node"""

    def test_mesh(self, student):
        cases = [
            ((2, 2), (1, 1)), ((1, 4), (2, 1)), ((4, 1), (1, 2)), ((2, 2), (2, 3)), ((3,), (4,)), ((1,), (5,)),
            ((2, 1, 2), (1, 3, 2)), ((1, 2, 4), (2, 2, 1)), ((2, 2, 2, 1), (1, 2, 1, 3)), ((8, 1), (1, 4)),
        ]  # fmt: skip
        for case, found in zip(cases, student.call_each("hybrid_mesh", cases), strict=True):
            what, right = f"hybrid_mesh{case}", mesh_by_hand(*case)
            is_integers = isinstance(found, np.ndarray) and found.dtype.kind in "iu"
            assert is_integers, f"{what}: expected an array of integers, got {brief(found)}"
            assert found.shape == right.shape, f"{what}: expected shape {right.shape}, got {found.shape}"
            wrong = np.argwhere(found != right)
            assert not len(wrong), (
                f"{what}, place {tuple(wrong[0].tolist())}: expected GPU {right[tuple(wrong[0])]}, got "
                f"{found[tuple(wrong[0])]}"
            )

    def test_axis(self, student):
        cases = {}
        for size, inside in ((1, 1), (8, 8), (8, 1), (8, 4), (6, 3), (16, 2)):
            for count, fast, slow in ((1e9, 450e9, 50e9), (0.0, 1.0, 1.0), (7.0, 2.0, 3.0)):
                cases[size, inside, count, fast, slow] = two_level_seconds(size, inside, count, fast, slow)
        check_numbers(student, "axis_seconds", cases, "a ring inside, a ring across with a part, and back")

    def test_best(self, student):
        cases = [
            ((4, 8), 8, [1e9, 8e9], 450e9, 50e9),  # tensor parallelism inside
            ((4, 8), 8, [8e9, 1e6], 450e9, 50e9),  # most of the bytes along the first axis
            ((8, 2), 8, [1e9, 1e9], 450e9, 50e9),
            ((2, 2, 2), 4, [5e8, 1e9, 2e9], 450e9, 50e9),
            ((2, 2, 2), 4, [2e9, 1e9, 5e8], 450e9, 50e9),
            ((2, 3, 4), 6, [1e9, 1e9, 1e9], 450e9, 50e9),
            ((16, 4), 8, [3e9, 3e9], 450e9, 50e9),  # a part of both
            ((12, 2), 4, [1e9, 3e8], 450e9, 50e9),
            ((6, 2), 4, [1e9, 1e6], 450e9, 50e9),  # 4 does not divide 6
            ((4, 4), 16, [1.0, 1.0], 2.0, 1.0),
            ((4, 4), 1, [1.0, 1.0], 2.0, 1.0),
            ((5,), 5, [1.0], 2.0, 1.0),
            ((8, 4), 4, [1e9, 2e9], 1.0, 1.0),
            ((4, 4), 4, [1.0, 1.0], 1.0, 10.0),  # slow links are the fast ones
        ]
        for case, found in zip(cases, student.on_ranks(1, run_best_inside, cases)[0].value, strict=True):
            shape, size, counts, fast, slow = case
            what = f"best_inside{case}"
            assert found != "ValueError", f"{what}: expected a block, got ValueError"
            fits = len(found) == len(shape) and prod(found) == size
            fits = fits and all(one >= 1 and side % one == 0 for one, side in zip(found, shape, strict=True))
            assert fits, f"{what}: expected a block of {size} that divides {shape}, got {found}"
            seconds = {
                block: sum(
                    two_level_seconds(side, one, count, fast, slow)
                    for side, one, count in zip(shape, block, counts, strict=True)
                )
                for block in product(*(range(1, side + 1) for side in shape))
                if prod(block) == size and all(side % one == 0 for one, side in zip(block, shape, strict=True))
            }
            best = min(seconds, key=seconds.get)
            assert seconds[tuple(found)] <= seconds[best] * (1 + FLOAT64), (
                f"{what}: {tuple(found)} takes {seconds[tuple(found)]:.4g} s, {best} takes {seconds[best]:.4g} s"
            )

    def test_no_block(self, student):
        cases = [((3, 2), 4, [1.0, 1.0], 2.0, 1.0), ((4, 4), 32, [1.0, 1.0], 2.0, 1.0), ((5,), 2, [1.0], 2.0, 1.0)]
        for case, found in zip(cases, student.on_ranks(1, run_best_inside, cases)[0].value, strict=True):
            assert found == "ValueError", f"best_inside{case}: expected ValueError, got {found}"


# 13.9


def run_sync_shard(world, module, elements):
    gradient = many_digits(world.rank, elements) * world.size  # so that means are exact
    before = gradient.copy()
    shard, norm = module.sync_shard(gradient, world)
    return np.array(shard), norm, bool((gradient == before).all())


@answers("minidist.comm.collectives", "minidist.comm.two_level", "minidist.comm.placement:two_levels")
@pytest.mark.task(
    "13.9",
    points=3,
    kind="debugging",
)
class TestSyncShard:
    """sync_shard: hybrid sharding that was tested on two nodes of two GPUs. Find out why it fails, and fix it"""

    GRIDS = ((2, 2), (1, 2), (2, 1), (1, 1), (2, 3), (3, 2), (2, 4), (4, 2), (1, 4), (4, 1))

    def results(self, student, grids, elements=None):
        for nodes, per_node in grids:
            for count in (elements,) if elements else (12 * per_node, 7, 1):
                seen = student.on_ranks(nodes * per_node, on_nodes, run_sync_shard, blocks(nodes, per_node), count)
                mean = sum(many_digits(rank, count) for rank in range(nodes * per_node))
                yield nodes, per_node, count, mean, seen

    def test_shards(self, student):
        for nodes, per_node, count, mean, seen in self.results(student, self.GRIDS):
            for rank, one in enumerate(seen):
                what = f"{nodes} node{'s' * (nodes > 1)} of {per_node}, {count} elements, rank {rank}"
                same(one.value[0], np.array_split(mean, per_node)[rank % per_node], f"{what}: its shard of the mean")
                assert one.value[2], f"{what}: expected the gradient unmodified"

    def test_norm(self, student):
        for nodes, per_node, count, mean, seen in self.results(student, self.GRIDS):
            for rank, one in enumerate(seen):
                right = float(np.linalg.norm(mean))
                assert number(one.value[1], "the norm") == pytest.approx(right, rel=FLOAT64), (
                    f"{nodes} nodes of {per_node}, {count} elements, rank {rank}: the norm of the mean gradient: "
                    f"expected {right:.6g}, got {one.value[1]:.6g}"
                )

    def test_bytes_between_nodes(self, student):
        """One part of the gradient, and no squares."""
        for nodes, per_node, count, _, seen in self.results(student, ((2, 2), (2, 4), (3, 2)), elements=48):
            expected = 2 * (nodes - 1) * 8 * count // (nodes * per_node)
            for rank, row in enumerate(bytes_sent(seen)):
                found = sum(int(sent) for peer, sent in enumerate(row) if peer // per_node != rank // per_node)
                assert found == expected, (
                    f"{nodes} nodes of {per_node}, rank {rank}: bytes to other nodes: expected {expected}, got {found}"
                )


# 13.10


@answers("minidist.analysis.utilization")
@pytest.mark.task(
    "13.10",
    points=3,
    kind="worksheet",
)
class TestUtilization:
    """MFU: the share of the peak that the model's own FLOPs take, and how it is overstated"""

    MODELS = ((540_350_000_000, 118, 18432, 2048), (1000, 2, 8, 16), (7, 1, 2, 1))  # the first is PaLM

    def test_model_flops(self, student):
        cases = {
            (parameters, layers, width, length): sum(
                passes * (2 * parameters + layers * 2 * (2 * length * width)) for passes in (1, 2)
            )
            for parameters, layers, width, length in self.MODELS
        }
        check_numbers(student, "model_flops_per_token", cases, "forward, and backward with twice as many")

    def test_hardware_flops(self, student):
        cases = {}
        for parameters, layers, width, length in self.MODELS:
            forward, attention = 2 * parameters + 4 * layers * width * length, 4 * layers * width * length
            for recompute, again in (("none", 0), ("attention", attention), ("full", forward)):
                cases[parameters, layers, width, length, recompute] = 3 * forward + again
        check_numbers(student, "hardware_flops_per_token", cases, "and what backward repeats")

    def test_utilization(self, student):
        """PaLM's own numbers: 238.3K tokens/s on 6144 TPU v4 of 275 TFLOP/s are an MFU of 45.7 % by 6N alone
        (with attention it is 46.2 %); others by arithmetic."""
        cases = {
            (238_300.0, 1.0, 6 * 540.35e9, 6144, 275e12): 238_300 * 6 * 540.35e9 / 6144 / 275e12,
            (4096.0, 0.5, 1e9, 8, 989.4e12): 4096 / 0.5 * 1e9 / (8 * 989.4e12),
            (1.0, 2.0, 3.0, 1, 5.0): 0.3,
        }
        check_numbers(student, "utilization", cases, "FLOPs of the model in a second, over those of all GPUs")

    def test_another_peak(self, student):
        cases = {(0.3, 1978.9e12, 989.45e12): 0.6, (0.5, 312e12, 312e12): 0.5, (0.8, 1.0, 4.0): 0.2}
        check_numbers(student, "corrected_mfu", cases, "the same FLOP/s, over the peak of dense products")

    def test_of_a_step(self, student):
        """The oracle is a step laid out in time."""
        cases = {}
        for products, communication, hidden, other, efficiency in (
            (6.0, 2.0, 1.0, 0.0, 0.7), (6.0, 2.0, 0.0, 0.0, 0.7), (6.0, 2.0, 0.25, 1.0, 0.5), (1.0, 0.0, 0.0, 3.0, 1.0),
        ):  # fmt: skip
            seconds = products + other + sum(communication for _ in range(1)) - hidden * communication
            cases[products, communication, hidden, other, efficiency] = products * efficiency / seconds
        check_numbers(student, "step_mfu", cases, "useful seconds at full speed, of all seconds")
