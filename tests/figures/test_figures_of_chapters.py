"""What a figure of the chapters says and computes is right; that it is drawn, the chapters show.

The example of ``figures/ch04/drift.py`` is the function ``ch04_drift``.
"""

import re
from importlib import import_module
from math import inf

import numpy as np
import pytest
from drawn import widths, words
from samples import SP_MEETS_RECOMPUTE

from minidist.data.documents import Documents
from minidist.data.packing import Packing
from minidist.nn.precision.formats import BFLOAT16, E4M3, E5M2, FLOAT16
from minidist.nn.tensor import Tensor
from minidist.parallel.zero import shard_slice
from minidist.plan.memory import Memory
from minidist.verify.matrix import bad_and_all

pytestmark = pytest.mark.usefixtures("readable_figures")  # in a notebook


def test_a_figure_says_what_it_is_given():
    large = Memory(40e9, 40e9, 10e9, 0.0, fragmentation=1e9)
    wrong = [f"{bad}/{met}" for bad, met in bad_and_all(SP_MEETS_RECOMPUTE).values() if bad]
    rows = [
        {"axis": axis, "name": "all_reduce", "dtype": "float32", "elements": 1, "calls": calls, "bytes_sent": nbytes}
        for axis, calls, nbytes in (("dp", 1, 5000), ("tp", 4, 2000), ("tp", 2, 1000))
    ]
    busy = {"contiguous": 4 * np.tril(np.ones((4, 4), int)), "zigzag": np.tile([3, 2, 2, 2], (4, 1))}
    same, other = np.arange(4.0), np.array([0.0, 1.0, 2.0, 3.0 + 1e-15])
    costs = {"small": ({"parameters": 3, "gradients": 4}, {"tp": 2}), "large": ({"parameters": 90}, {"tp": 1})}
    shows = [  # figure, what it draws, what it says, and the lengths of its bars if there are any
        ("ch04.replicas", lambda f: f.draw({"w": [same, same.copy()], "g": [same, other]}, ["backward"]),
         ["w\nsame on all ranks", "g\ndifferent"], None),
        ("ch05.shards", lambda f: f.draw([("weight", 20), ("bias", 3)], [shard_slice(23, r, 4) for r in range(4)], "u"),
         ["padding 1", "rank 1\n6 to 11"], None),
        ("ch06.calls", lambda f: f.draw({"one": rows, "other": rows[:1]}), ["6 calls", "8 kB"], [3, 5, 5]),
        ("ch09.cost", lambda f: f.draw(costs, ("left", "right"), limits=(8, None), longest=(10, None)),
         ["7", "» 90"], [3, 4, 10]),  # a bar that is too long is cut, and says so
        ("ch09.suspects", lambda f: f.draw(SP_MEETS_RECOMPUTE), wrong, None),  # runs of a pair that had wrong bits
        ("ch10.ring_steps", lambda f: f.draw(busy), ["contiguous: 62.5% busy"], None),  # (4 + 1) / (2 * 4)
        ("ch14.memory_beside_limit", lambda f: f.draw({"other": large}, 80e9), ["91: 11 too much"], None),
        ("ch16.parts", lambda f: f.draw({"Llama": {"queries": 4, "gate": 8}}, 4, "C²"), ["gate", "3 C²"], [1, 2]),
        ("ch17.rank_work", lambda f: f.draw({"ring": [[0], [2, 1]]}, [2, 1, 3]), ["ring: 75% busy", "2"], [2, 3, 1]),
        ("ulp_histogram", lambda f: f.draw({"changed": np.array([0, 1])}),
         ["50% of the sums\nhave different bits"], None),
    ]  # fmt: skip
    for name, draw, texts, lengths in shows:
        drawn = draw(import_module(f"figures.{name}"))
        said = words(drawn)
        assert {*texts} <= {text.strip() for text in said} and lengths in (None, widths(drawn.axes[0])), (name, said)


def test_what_a_figure_computes_is_right():
    signed = [np.array([1.0, zero, np.nan, last], np.float32) for zero, last in ((0.0, 5), (-0.0, 5.0000005))]
    spread = np.array([0, 2.0**-26, -(2.0**-25), 2.0**-20, -1, 1, 65504, -70000], np.float32)
    wrote, wants = [((0, 6),), ((6, 12),)], [((0, 5),), ((5, 8),), ((8, 12),)]
    waits, one = np.array([[1.0, 1.0, 1.0], [1.0, 3.0, 3.0], [0.5, 1.0, 1.0]]), np.float32(1 / 3)
    sent = np.array([[0, 100, 10, 0], [0] * 4, [0] * 4, [0.01, 0, 0, 0]])  # too little, or along two axes: white
    documents = Documents(np.zeros(17, np.uint8), np.array([[3, 0], [8, 0], [17, 0]]), None)  # of 2, 4 and 8 places
    cases = [  # figure, what it computes, and what that is
        ("ch04.drift", lambda f: [f.share_different(signed[0], each) for each in signed], [0, 0.5]),  # bits, not values
        ("ch05.moments", lambda f: f.most_unsharded([("", [f.UnitState("unsharded", "sharded")] * 2)]), 2),
        ("ch06.fused_qkv", lambda f: [[f.complete(part) for part in parts] for parts in (f.by_heads(4, 2),
                                                                                        f.contiguous(4, 2))],
         [[[0, 1], [2, 3]], [[], []]]),
        ("ch06.sharded_matmul", lambda f: f.parts(f.Matrix("W", 4, 6, "rows"), 2), [(0, 0, 6, 2), (0, 2, 6, 2)]),
        ("ch07.partition", lambda f: [cell.stage for cell in f.cells([2, 3, 3])], [0] * 3 + [1] * 3 + [2] * 4),
        ("ch08.bit_widths", lambda f: [f.bits_needed(x) for x in (one, BFLOAT16.round(one), np.float64(one))],
         [32, 16, 64]),
        ("ch08.magnitudes", lambda f: [round(7 * share, 9) for share in f.shares(spread, FLOAT16).values()],
         [2, 1, 1, 3]),
        ("ch09.mesh_groups", lambda f: [f.within_a_node(f.groups_of((4, 2, 2), dim), 4) for dim in range(3)],
         [0, 8, 8]),
        ("ch09.traffic_matrix", lambda f: f.image(sent, (2, 2), ("dp", "tp"))[3, 0].tolist(), [1, 1, 1, 1]),
        ("ch10.tile_grid", lambda f: [(f.states(6, 2) == kind).sum() for kind in (f.NEEDED, f.HIDDEN, f.SKIPPED)],
         [21, 3, 12]),
        ("ch12.array_slices", lambda f: f.reads(wrote, wants), [(0, 0, 5), (1, 0, 1), (1, 1, 2), (2, 1, 4)]),
        ("ch12.ballots", lambda f: [[(f.AGREED, f.ODD, f.SPLIT).index(colour) for colour in f.colours_of(votes)]
                                    for votes in ("aabca", "aabb")],
         [[0, 0, 1, 1, 0], [2] * 4]),  # only a majority names anybody
        ("ch12.step_times", lambda f: (7 * f.waiting_share(waits)).round(9).tolist(), [4, 0, 4.5]),
        ("ch16.distances", lambda f: [f.share_right(places, 2) for places in ((0, 1), (0, 0), (5, 6))],
         [1, 0.6, 1]),  # of ten pairs four are between the chunks
        ("ch16.key_heads", lambda f: [[[*keys] for _, keys in f.holdings(4, groups, 4)] for groups in (4, 2)],
         [[[0], [1], [2], [3]], [[0], [0], [1], [1]]]),
        ("ch17.packs", lambda f: [f.waste(Packing(documents, 5, kind)) for kind in ("cut", "padding", "first-fit")],
         [(pytest.approx(1 / 15), 0.5), (pytest.approx(6 / 20), 0), (pytest.approx(1 / 15), 0)]),
        ("ch17.seen_pairs", lambda f: [(f.states(np.array([[0, 1, 1, 1]]), 2) == kind).sum()
                                       for kind in (f.SKIPPED, f.HIDDEN, f.SEEN)], [4, 5, 7]),
        ("ch17.rank_work", lambda f: f.busy(np.array([[1, 3], [2, 1]])), 0.7),
        ("ulp_histogram", lambda f: f.shares(np.array([-9, -2, -1, 0, 0, 0, 1, 1, 3, 70]), 2).tolist(),
         [0.2, 0.1, 0.3, 0.2, 0.2]),
    ]  # fmt: skip
    for name, compute, expected in cases:
        assert compute(import_module(f"figures.{name}")) == expected, name


def a1_links(figure):
    """A large message that takes a tenth longer does not carry the latency away."""
    assert figure.fit({size: 1e-5 + size * 1e-9 for size in (8, 1 << 22)}) == pytest.approx(figure.Line(1e-5, 1e-9))
    measured = {8: 1e-5, 1 << 10: 1.1e-5, 1 << 16: 7.5e-5, 1 << 22: 4.6e-3}
    assert figure.fit(measured).alpha == pytest.approx(1e-5, 0.1)


def ch01_graph(figure):
    w = Tensor(3.0, requires_grad=True)
    a = w * w
    found = figure.capture(a * (a + w), {w: "w"}, backward=True)
    flowed = sorted((edge, float(gradient)) for edge, gradient in zip(found.edges, found.gradients, strict=True))
    assert flowed == [((1, 0), 12), ((1, 2), 9), ((2, 0), 9), ((3, 1), 63), ((3, 1), 63), ((3, 2), 9)]
    assert w.grad == 9 + 63 + 63 and found.order == [0, 2, 1]  # w * w last, although the loss uses it: Add does too


def ch04_straggler(figure):
    """The slowest of N is distributed as the maximum of N numbers: of uniform ones, N/(N+1) on average."""
    for ranks in (1, 3, 99):
        times = figure.slowest_of(lambda u: u, ranks, 20_000, np.random.default_rng(0))
        assert times.mean() == pytest.approx(ranks / (ranks + 1), abs=0.01)


def ch08_spacing(figure):
    for format in (FLOAT16, E5M2, E4M3, BFLOAT16):
        (smallest, _), (normal, spacing), (end, _) = figure.corners(format)
        numbers = figure.numbers_between(format, 0, format.largest).astype(float)
        place = np.searchsorted(numbers, 2.0**normal)
        assert (np.log2(numbers[1]), np.log2(numbers[-1])) == (smallest, end)
        assert np.log2((numbers[place + 1] - numbers[place]) / numbers[place]) == spacing


def ch15_bigrams(figure):
    """The curve falls; a synchronous round is one step with the gradients of all workers."""
    curve = figure.train([1.0, 1.0], 100, inf, 8.0, seed=0)
    assert curve[-1][1] < curve[0][1] < np.log(256)
    weights, rng = np.zeros((len(figure.text()[1]),) * 2), np.random.default_rng(3)
    for _ in range(2):
        weights = weights - 4.0 * sum(figure.gradient(weights, rng) for _ in range(3))
    assert figure.train([1.0] * 3, 6, 0, 4.0, seed=3, every=6)[0][1] == figure.loss(weights)
    mean = np.mean([figure.gradient(weights, rng) for _ in range(400)], axis=0)
    way = 1e-4 * mean / np.linalg.norm(mean)
    slope = (figure.loss(weights + way) - figure.loss(weights - way)) / 2e-4
    assert slope == pytest.approx(np.linalg.norm(mean), rel=0.2)  # 400 samples of the gradient, with this seed


def ch15_stability(figure):
    """The largest root is what a long run does."""
    for lr, delay in ((0.3, 0), (0.9, 1), (1.05, 1), (0.3, 4)):
        x = [1.0] * (delay + 1)
        while len(x) < 4000 and 1e-100 < max(map(abs, x[-delay - 1 :])) < 1e100:
            x.append(x[-1] - lr * x[-1 - delay])
        factor = max(map(abs, x[-delay - 1 :])) ** (1 / (len(x) - delay - 1))
        assert factor == pytest.approx(figure.largest_root(lr, delay), rel=0.01)  # of a run that is not infinite


def ch15_worker_lanes(figure):
    """No step is lost, and no worker is ahead by more than the bound."""
    for bound in (0, 1, inf):
        spans = figure.spans([1.0, 1.0, 3.0], 12, bound)
        assert [sum(span.worker == worker for span in spans) for worker in range(3)] == [12] * 3
        for number, span in enumerate(spans):
            ended = [sum(other.worker == worker and other.end <= span.begin for other in spans) for worker in range(3)]
            assert ended[span.worker] - min(ended) <= bound
            assert span.read == (sum(ended) if bound else number // 3)


EXAMPLES = [name for name in [*globals()] if re.match(r"(ch|a)\d+_", name)]


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_a_figure_computes_from_an_example_is_true(name):
    globals()[name](import_module(f"figures.{name.replace('_', '.', 1)}"))
