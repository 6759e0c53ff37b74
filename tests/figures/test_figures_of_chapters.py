"""Every figure of the chapters can be drawn and read, and what it computes is right.

The example of ``figures/ch04/drift.py`` is the function ``ch04_drift``.
"""

from importlib import import_module
from itertools import pairwise
from math import inf
from pathlib import Path

import figures
import numpy as np
import pytest
from drawn import arrows, bars, heights, widths, words
from samples import SP_MEETS_RECOMPUTE

from minidist.analysis.clock.replay import Replayed
from minidist.analysis.pairs import DIFFERENT, SAME, bad_and_all
from minidist.analysis.replay import Flight
from minidist.comm.nodes.double_tree import double_tree
from minidist.comm.transports.shared_memory.byte_queue import COUNTERS, ByteQueue
from minidist.nn.gpt import GPT, GPTConfig
from minidist.nn.precision.formats import BFLOAT16, E4M3, E5M2, FLOAT16
from minidist.nn.tensor import Tensor
from minidist.parallel.compression.feedback import feed_back
from minidist.parallel.compression.top_k import top_k
from minidist.parallel.tools.schedule_check import in_flight, timeline
from minidist.parallel.tools.schedules import schedule
from minidist.parallel.tools.units import shard_slice
from minidist.plan.cluster.hardware import ClusterSpec
from minidist.plan.cluster.topologies import topology_of
from minidist.plan.failures.goodput import daly_interval, goodput
from minidist.plan.layout import PlannedLayout
from minidist.plan.memory import Memory
from minidist.plan.models.library import model_of
from minidist.plan.planned_run import plan_run
from minidist.plan.scaling.experiment import Experiment
from minidist.plan.time import StepCosts
from minidist.trace import Event

FOLDER = Path(figures.__file__).parent
NAMES = [
    ".".join(path.relative_to(FOLDER).with_suffix("").parts)
    for path in sorted(FOLDER.rglob("*.py"))
    if path.name != "__init__.py"
]


def says(drawn, *texts: str) -> bool:
    return {*texts} <= {text.strip() for text in words(drawn)}


def test_a_figure_shows_what_it_is_given():
    """Those that compute nothing: what is drawn, and what is seen."""
    replayed = Replayed(None, [[], []], [], {}, [[(0.0, 1e-6), (3e-6, 4e-6)], [(1e-6, 2e-6)]], {"s": (0.0, 4e-6)}, 4e-6)
    fits, large = Memory(10e9, 20e9, 30e9, 5e9, reserved=2e9), Memory(40e9, 40e9, 10e9, 0.0, fragmentation=1e9)
    costs = {"small": ({"parameters": 3, "gradients": 4}, {"tp": 2}), "large": ({"parameters": 90}, {"tp": 1})}
    flights = [Flight(0, 1, 64, 7.0, 17.0), Flight(1, 0, 16, 18.0, 27.0)]
    wrong = [f"{bad}/{met}" for bad, met in bad_and_all(SP_MEETS_RECOMPUTE).values() if bad]
    chosen = {"first": np.array([[0, 2], [1, 0], [2, 0]])}
    times = {"8 ranks": {"ring": ({1e3: 1e-6, 1e6: 1e-3}, {1e6: 2e-3})}}
    loads = {"none": np.random.default_rng(0).integers(1, 9, (12, 4))}
    outcomes = {"killed": ["old", "old", "new"], "power": ["old", "nothing", "old or new"]}
    shows = [  # figure, what it draws, what it says, and the lengths or heights of its bars if there are any
        ("a1.bus_bandwidth", lambda f: f.draw([f.Published("whole", 50, 50), f.Published("half", 400, 200)]),
         ["200 of 400 GB/s"], [1, 1, 1, 0.5]),
        ("a1.layers", lambda f: f.draw([f.Layer("a", "aa")], [f.Layer("d", "dd")]), ["a", "d", "dd"], None),
        ("ch06.block", lambda f: f.draw(["LayerNorm", "Linear", "Linear"], [(1, 1), (1, 0.5), (0.5, 1)],
                                        {"forward": [f.Call("all_reduce", 2, 384)]}, 2), ["g: all-reduce"], None),
        ("ch09.cost", lambda f: f.draw(costs, ("left", "right"), limits=(8, None), longest=(10, None)),
         ["7", "» 90"], [3, 4, 10]),  # a bar that is too long is cut, and says so
        ("ch09.suspects", lambda f: f.draw(SP_MEETS_RECOMPUTE), wrong, None),  # runs of a pair that had wrong bits
        ("ch09.verdicts", lambda f: f.draw({"bug": [SAME, DIFFERENT, f.STOPS]}, ("a", "b", "c"), gaps=[2]),
         ["same", "different", "stops"], None),
        ("ch11.load_share", lambda f: f.draw(loads), ["none"], None),
        ("ch11.token_choices", lambda f: f.draw("aba", chosen, 3, {"a": "#0072B2"}), ["first"], None),
        ("ch12.cut_protocol", lambda f: f.draw(["write", "rename", "flush"], outcomes, {1: "commits"}),
         ["commits"], None),
        ("ch12.failure_times", lambda f: f.draw(1000.0, {"a run": (100, 10.0)}, {"a day": 24.0}), ["a day"], None),
        ("ch13.collective_times", lambda f: f.draw(times), ["8 ranks"], None),
        ("ch13.levels", lambda f: f.draw((f.Level("memory", 3e12, f.CHIP), f.Level("a link", 50e9, f.CLUSTER))),
         ["3 TB/s", "50 GB/s", "÷ 60"], None),
        ("ch13.step_bars", lambda f: f.draw({"tp=4": {"one": (2e-6, 1e-6), "two": (8e-6, 1e-6)}}),
         ["1.00x", "4.00x"], None),
        ("ch13.step_lanes", lambda f: f.draw({"a node": replayed}), ["a node: 4 µs"], None),
        ("ch14.memory_beside_limit", lambda f: f.draw({"one": fits, "other": large}, 80e9), ["67", "91: 11 too much"],
         None),
        ("ch14.published_mfu", lambda f: f.draw([f.Dot("A", 8, 0.5)], {"a run": f.Dot("H", 16, 0.4)}), ["a run"], None),
        ("space_time", lambda f: f.draw(flights, 2, "t", "µs", waiting=[(1, 1.0, 17.0)]), ["t"], [16]),
    ]  # fmt: skip
    missing = {*NAMES} - {name for name, *_ in shows} - {*EXAMPLES}
    assert not missing, f"write an example here of the figures {missing}"
    for name, draw, texts, lengths in shows:
        drawn = draw(import_module(f"figures.{name}"))
        assert says(drawn, *texts) and lengths in (None, widths(drawn.axes[0])), (name, words(drawn))


def memory_bars(figure):
    memories = {
        "dp=2": {"parameters": 4e6, "gradients": 12e6, "optimizer": 8e6, "activations": 1e6, "peak": 25e6},
        "zero=3": {"parameters": 2e6, "gradients": 6e6, "optimizer": 4e6, "activations": 1e6, "peak": 13e6},
    }
    assert figure.stacks(memories)["zero=3"][1:3] == [("gradients", 2e6, 8e6), ("optimizer", 8e6, 12e6)]
    assert sorted(heights(figure.draw(memories, "memory").axes[0])) == [1, 1, 2, 4, 4, 6, 8, 12]  # MB


def nodes(figure):
    """A message for the loss gets no arrow."""
    pairs = np.array([[0, 90, 10, 0], [90, 0, 0, 10], [10, 0, 0, 90], [0, 10, 90, 0]])
    noise = pairs * 100 + (pairs == 0)
    axes, _ = figure.draw({"hybrid": (noise, 2), "again": (noise, 2)}, 2, 100, "M").axes
    assert len(arrows(axes)) == 8


def ulp_histogram(figure):
    apart = np.array([-9, -2, -1, 0, 0, 0, 1, 1, 3, 70])
    assert figure.shares(apart, 2).tolist() == [0.2, 0.1, 0.3, 0.2, 0.2]
    drawn = figure.draw({"changed": np.array([0, 1]), "unchanged": np.zeros(4, np.int64)})
    assert says(drawn, "50 % of the sums\nhave different bits", "all bits the same")


def a1_links(figure):
    """A large message that takes a tenth longer does not carry the latency away."""
    sizes = (8, 1 << 10, 1 << 16, 1 << 22)
    found = figure.fit({size: 1e-5 + size * 1e-9 for size in sizes})
    assert found == pytest.approx(figure.Line(1e-5, 1e-9)) and found.seconds(0) == found.alpha
    assert figure.fit(dict(zip(sizes, (1e-5, 1.1e-5, 7.5e-5, 4.6e-3), strict=True))).alpha == pytest.approx(1e-5, 0.1)
    drawn = figure.draw({"left": {"one": ({8: 1e-5, 1 << 20: 1e-3}, {8: 2e-5, 1 << 20: 2e-3})}, "right": {}})
    line, points = drawn.axes[0].lines[:2]
    assert list(line.get_ydata()) == pytest.approx([20, 2000]) and list(points.get_ydata()) == [10, 1000]


def a1_requeued(figure):
    for steps, limit, startup, save_every, on_signal in ((100, 30, 2, 10, False), (57, 9, 2, 7, True)):
        jobs = figure.lives(steps, limit, startup, save_every, on_signal)
        assert sum(job.kept for job in jobs) == steps and all(job.done <= limit - startup for job in jobs)
        for job, following in pairwise(jobs):
            assert following.begin == job.begin + limit and following.first == job.first + job.kept
            assert job.kept == job.done if on_signal else following.first % save_every == 0
    with pytest.raises(ValueError, match="saves none of them: save more often than every 10"):
        figure.lives(100, 10, 2, 10)
    (axes,) = figure.draw({"every 10": figure.lives(50, 30, 2, 10)}, 2).axes
    assert widths(axes) == [2, 20, 8, 2, 20, 8, 2, 10]


def ch00_links(figure):
    assert [figure.seconds(one) for one in (2.8, 0.0418, 3e-5)] == ["2.8 s", "41.8 ms", "30 µs"]
    drawn = figure.draw({"memory": (3350e9, 3350e9), "wire": (450e9, 900e9)}, 140e9, "a title")
    assert says(drawn, "450 GB/s each way, 900 both:  311 ms")


def ch00_tiles(figure):
    assert all((loads == 8 // tile).all() for tile in (1, 2, 8) for loads in figure.loads(8, tile))
    figure.draw(8, (2,), row=3, column=5)


def ch01_graph(figure):
    w = Tensor(3.0, requires_grad=True)
    a = w * w
    loss = a * (a + w)
    assert figure.capture(loss).gradients == []  # it leaves the graph as it is
    found = figure.capture(loss, {w: "w"}, backward=True)
    flowed = sorted((edge, float(gradient)) for edge, gradient in zip(found.edges, found.gradients, strict=True))
    assert flowed == [((1, 0), 12), ((1, 2), 9), ((2, 0), 9), ((3, 1), 63), ((3, 1), 63), ((3, 2), 9)]
    assert w.grad == 9 + 63 + 63 and found.order == [0, 2, 1]  # w * w last, although the loss uses it: Add does too
    assert says(figure.draw(found, "a title"), "12", "63", "9", "w")
    model, tokens = GPT(GPTConfig(layers=1, width=8, heads=2, context=4)), np.zeros((1, 4), np.uint8)
    found = figure.capture(model(tokens, tokens), backward=True)
    tied = found.names.index("embeddings.token.weight")
    assert sorted(found.names[user] for one, user in found.edges if one == tied) == ["Embedding", "Linear"]


def ch02_byte_queue(figure):
    """A message wraps around, and the ring shows it."""
    queue = ByteQueue(memoryview(bytearray(COUNTERS + 8 * 64)), 8 * 64)
    for letter, nbytes in (("A", 192), ("B", 100), ("C", 320)):  # B has two lines, the second not full
        if letter == "C":
            queue.skip(192)
            queue.release()
        queue.write(np.full(nbytes, ord(letter), np.uint8))
        queue.publish()
    shot = figure.snapshot(queue, "full round")
    assert "".join(letter if shot.unread(i) else "." for i, letter in enumerate(shot.letters)) == "CC.BBCCC"
    figure.draw([shot], {"A": "#FF0000", "B": "#00FF00", "C": "#0000FF"})


def ch04_buckets(figure):
    panels = {"last first": [[3, 2], [1, 0]], "first first": [[0, 1], [2, 3]]}
    for axes in figure.draw(list("abcd"), [9.0, 6.0, 4.0, 1.0], panels, 10).axes:
        dots = [tuple(dot) for one in axes.collections if len(one.get_offsets()) == 2 for dot in one.get_offsets()]
        assert sorted(dots) == [(1, 3), (4, 2), (6, 1), (9, 0)]  # each gradient when it is complete


def ch04_drift(figure):
    one, other = (np.array([1.0, zero, np.nan, last], np.float32) for zero, last in ((0.0, 5), (-0.0, 5.0000005)))
    assert figure.share_different(one, other) == 0.5 and figure.share_different(one, one) == 0  # bits, not values
    assert figure.relative_distance(np.array([3.0, 4.0]), np.array([3.0, 4.5])) == pytest.approx(0.1)
    right = [np.array([1.0, 2.0]), np.array([3.0, 4.0])]
    left, _ = figure.draw({"same": (right, right), "other": (right, [right[0], np.array([3.0, 4.5])])}).axes
    assert [line.get_ydata().tolist() for line in left.lines] == [[0, 0], [0, 50]]


def ch04_replicas(figure):
    same, other = np.arange(4.0), np.array([0.0, 1.0, 2.0, 3.0 + 1e-15])
    drawn = figure.draw({"weights": [same, same.copy()], "gradients": [same, other]}, ["backward"])
    assert [axes.get_title().split("\n")[1] for axes in drawn.axes] == ["same on all ranks", "different"]
    with pytest.raises(ValueError, match="same length"):
        figure.draw({"a": [np.zeros(2)] * 2, "b": [np.zeros(3)] * 2})


def ch04_straggler(figure):
    """The slowest of N is distributed as the maximum of N numbers: of uniform ones, N/(N+1) on average."""
    for ranks in (1, 3, 99):
        times = figure.slowest_of(lambda u: u, ranks, 20_000, np.random.default_rng(0))
        assert times.mean() == pytest.approx(ranks / (ranks + 1), abs=0.01)
    (axes,) = figure.draw({"always 1": np.ones_like}, [1, 2, 4], 10, np.random.default_rng(0)).axes
    assert axes.lines[0].get_xydata().tolist() == [[1, 1], [2, 1], [4, 1]]


def ch05_gather_overlap(figure):
    def event(name, start, end, track="compute"):
        return Event(name, track, start, end)

    log = [event("Linear", 0, 10), event("Gelu.backward", 20, 30), event("all_gather x", 5, 25, "communication")]
    assert [figure.kind_of(one) for one in log] == ["forward", "backward", "all-gather"]
    others = ("backward 0", "compute"), ("BeforeBackward", "compute"), ("all_reduce(SUM)", "communication")
    assert {figure.kind_of(event(name, 0, 1, track)) for name, track in others} == {None}  # they contain the others
    assert figure.overlapped(log, "all-gather") == 0.5 and figure.overlapped(log, "reduce-scatter") == 0
    figure.draw({"a run": [[*log, event("step 0", 0, 30, "step")]]}, rank=0)


def ch05_model_states(figure):
    whole = dict.fromkeys(figure.KINDS, (0, 10))
    halves = [whole | {"optimizer": (0, 5)}, whole | {"optimizer": (5, 10)}]
    assert figure.share(halves, "optimizer", 10) == 0.5 and figure.share(halves, "gradients", 10) == 1
    figure.draw({"plain": [whole, whole], "stage 1": halves}, 10)


def ch05_moments(figure):
    rest, runs, comes = (figure.UnitState(now, "sharded") for now in ("sharded", "unsharded", "in flight"))
    moments = [("at rest", [rest, rest]), ("block 0", [runs, comes]), ("block 1", [rest, runs])]
    assert figure.most_unsharded(moments) == 1 and figure.most_unsharded([("", [runs, runs])]) == 2
    (axes,) = figure.draw(["block 0", "block 1"], moments, 1 / 4, "a step").axes
    filled = [one for one in axes.collections if len(one.get_facecolor())]
    shares = {round(float(one.get_paths()[0].get_extents().width) / 0.86, 6) for one in filled}
    assert shares == {0.25, 1}  # a shard has its share of the width


def ch05_shards(figure):
    assert figure.spans([3, 0, 4]) == [(0, 3), (3, 3), (3, 7)]
    shards = [shard_slice(23, rank, 4) for rank in range(4)]
    drawn = bars(figure.draw([("weight", 20), ("bias", 3)], shards, "a unit").axes[0])
    assert {(0, 6), (6, 6), (12, 6), (18, 6), (23, 1)} <= {*drawn}  # the last is padding


def ch06_calls(figure):
    rows = [
        {"axis": axis, "name": "all_reduce", "dtype": "float32", "elements": 1, "calls": calls, "bytes_sent": nbytes}
        for axis, calls, nbytes in (("dp", 1, 5000), ("tp", 4, 2000), ("tp", 2, 1000))
    ]
    assert figure.sums(rows) == {("tp", "all_reduce"): (6, 3000), ("dp", "all_reduce"): (1, 5000)}
    drawn = figure.draw({"one": rows, "other": rows[:1]})
    assert bars(drawn.axes[0]) == [(0, 3), (3, 5), (0, 5)] and says(drawn, "6 calls", "8 kB")


def ch06_fused_qkv(figure):
    """A contiguous split leaves no head complete; heads that are dealt out are."""
    assert figure.contiguous(2, 2) == [["q0", "q1", "k0"], ["k1", "v0", "v1"]]
    assert [figure.complete(part) for part in figure.by_heads(4, 2)] == [[0, 1], [2, 3]]
    assert not any(figure.complete(part) for part in figure.contiguous(8, 4))
    figure.draw(4, 2)


def ch06_sharded_matmul(figure):
    assert figure.parts(figure.Matrix("W", 4, 6, "columns"), 3) == [(0, 0, 2, 4), (2, 0, 2, 4), (4, 0, 2, 4)]
    assert figure.parts(figure.Matrix("W", 4, 6, "rows"), 2) == [(0, 0, 6, 2), (0, 2, 6, 2)]
    assert figure.parts(figure.Matrix("Y", 4, 6, "partial"), 2) == [(0, 0, 6, 4)] * 2
    matrices = figure.Matrix("X", 2, 2), figure.Matrix("W", 2, 4, "rows"), figure.Matrix("Y", 2, 4, "partial")
    chain = [matrices[0], "·", matrices[1], "=", matrices[2], "<all-reduce>"]
    assert says(figure.draw({"rows": chain}, 2, {"rows": "a note"}), "all-reduce")


def ch07_in_flight(figure):
    for name in ("naive", "gpipe", "1f1b", "zb-h1"):
        planned = schedule(name, 4, 8)
        for actions, slots in zip(planned, timeline(planned), strict=True):
            levels = [count for _, count in figure.over_time(slots)]
            assert max(levels) == in_flight(actions) and levels[-1] == 0
    figure.draw({name: timeline(schedule(name, 3, 4)) for name in ("gpipe", "1f1b")})


def ch07_mesh_traffic(figure):
    """Lines along an axis alone, thicker the more was sent; rank = 4 pp + 2 dp + tp."""
    sent = np.zeros((8, 8), int)
    for one, other, nbytes in ((0, 1, 100), (1, 0, 100), (0, 2, 30), (0, 4, 20), (4, 0, 20), (0, 7, 5)):
        sent[one, other] = nbytes
    thick = [line.get_linewidth() for line in arrows(figure.draw(sent, (2, 2, 2), 10, "x").axes[0])]
    assert len({*thick}) == len(thick) == 3


def ch07_partition(figure):
    row = figure.cells([2, 3, 3])
    assert [cell.name for cell in row] == ["embedding", *map(str, range(8)), "head"]
    assert [cell.stage for cell in row] == [0] * 3 + [1] * 3 + [2] * 4
    assert len(arrows(figure.draw([1, 1, 1, 1], 2).axes[0])) == 2 * 3 + 2  # across each border, and the tied weight's


def ch08_bit_widths(figure):
    values = np.random.default_rng(0).standard_normal(100).astype(np.float32)
    assert [figure.bits_needed(one) for one in (values, BFLOAT16.round(values), values.astype(float))] == [32, 16, 64]
    operations = figure.Operation("Linear", 16, 16, {16: 400}), figure.Operation("LayerNorm", 16, 16, {16: 200, 32: 99})
    assert says(figure.draw(operations), "99 (32 bits) + 200 (16 bits)")


def ch08_magnitudes(figure):
    values = np.array([0, 2.0**-26, -(2.0**-25), 2.0**-20, -1, 1, 65504, -70000], np.float32)
    shares = {"lost": 2 / 7, "subnormal": 1 / 7, "fits": 3 / 7, "too large": 1 / 7}
    assert figure.shares(values, FLOAT16) == pytest.approx(shares)
    assert figure.histogram(np.array([0, 1, 1.9, -2, 4, 1000]), 0, 3).tolist() == [2 / 5, 1 / 5, 2 / 5]
    assert heights(figure.draw({"some": np.float32([1, 1.9, -2, 4, 4])}, FLOAT16, 0, 3).axes[0]) == [40, 20, 40]


def ch08_spacing(figure):
    for format in (FLOAT16, E5M2, E4M3, BFLOAT16):
        (smallest, _), (normal, spacing), (end, _) = figure.corners(format)
        numbers = figure.numbers_between(format, 0, format.largest).astype(float)
        place = np.searchsorted(numbers, 2.0**normal)
        assert (np.log2(numbers[1]), np.log2(numbers[-1])) == (smallest, end)
        assert np.log2((numbers[place + 1] - numbers[place]) / numbers[place]) == spacing
    (axes,) = figure.draw_ticks([E4M3, E5M2], 0, 1).axes
    assert [len(lines.get_segments()) for lines in axes.collections] == [57, 61]  # a tick for each number


def ch09_mesh_groups(figure):
    def within(shape, dim):
        return figure.within_a_node(figure.groups_of(shape, dim), 4)

    assert [within((2, 2, 4), dim) for dim in range(3)] == [0, 0, 4]
    assert [within((4, 2, 2), dim) for dim in range(3)] == [0, 8, 8]
    panels = figure.draw((2, 2, 4), ("pp", "dp", "tp"), 4).axes
    assert [len(arrows(axes)) for axes in panels] == [8, 8, 4 * 3]


def ch09_traffic_matrix(figure):
    """Darker the more was sent along one axis; what is too little, or along two, stays white."""
    sent = np.zeros((4, 4))
    sent[0, 1], sent[0, 2], sent[3, 0] = 100, 10, 0.01
    alpha = figure.image(sent, (2, 2), ("dp", "tp"))
    assert 0 < alpha[0, 2, 3] < alpha[0, 1, 3] and alpha[3, 0].tolist() == [1, 1, 1, 1]
    drawn = figure.draw({"one": (sent, (2, 2), ("dp", "tp"))}, 2, 1, "bytes")
    assert "between nodes: 10.00 bytes" in " ".join(words(drawn))


def ch10_heads_tokens(figure):
    assert figure.owners(2, 4, 2, "tokens") == [[0, 0, 1, 1]] * 2
    assert figure.owners(2, 4, 2, "heads") == [[0] * 4, [1] * 4]
    assert words(figure.draw(4, 8, 2)).count("all-to-all") == 2


def ch10_ring_steps(figure):
    contiguous = np.tril(np.ones((4, 4), int))
    assert figure.efficiency(contiguous) == (4 + 1) / (2 * 4) and figure.efficiency(np.tile([3, 2], (3, 1))) == 1
    drawn = figure.draw({"contiguous": 4 * contiguous, "zigzag": np.tile([3, 2, 2, 2], (4, 1))})
    assert says(drawn, "contiguous: 62.5% busy") and words(drawn).count("idle") == 6
    ends = [max(left + width for left, width in bars(axes)) for axes in drawn.axes]
    assert ends == [16, 9] and len({axes.get_xlim() for axes in drawn.axes}) == 1


def ch10_tile_grid(figure):
    """Tiles above the diagonal are skipped."""
    found = figure.states(6, 2)
    assert [(found == one).sum() for one in (figure.NEEDED, figure.HIDDEN, figure.SKIPPED)] == [21, 3, 12]
    assert says(figure.draw([figure.Panel("one", 4, 2)]), "needed", "skipped")


def ch11_dispatch(figure):
    """Each copy goes once to the rank of its expert, in the order of expert, source and token."""
    chosen = np.random.default_rng(0).permuted(np.tile(np.arange(8), (4, 3, 1)), axis=2)[:, :, :2]
    rows = figure.rows_of(chosen, 8)
    assert len({*rows}) == 24 and all(row.expert in chosen[row.source, row.token] for row in rows)
    for rank in range(4):
        mine = [row for row in rows if row.expert // 2 == rank]
        assert mine == sorted(mine, key=lambda row: (row.expert, row.source, row.token))
        assert [(row.rank, row.place) for row in mine] == [(rank, place) for place in range(len(mine))]
    assert says(figure.draw(np.array([[[0], [1]], [[0], [1]]]), 4), "expert 3")  # it gets nothing


def ch12_array_slices(figure):
    """Every element is read by one and was written by one."""
    wrote, wants = [((0, 6),), ((6, 12),)], [((0, 5),), ((5, 8),), ((8, 12),)]
    assert figure.reads(wrote, wants) == [(0, 0, 5), (1, 0, 1), (1, 1, 2), (2, 1, 4)]
    assert figure.reads([((0, 2), (4, 6))], [((1, 5),)]) == [(0, 0, 2)]
    drawn = figure.draw(12, ["head 0", "head 1"], wrote, wants, ("tp=2", "dp=3"))
    assert says(drawn, "5", "1", "2", "4", "rank 1 reads\n5 to 8")


def ch12_ballots(figure):
    """Only a majority names anybody."""
    agreed, odd, split = figure.AGREED, figure.ODD, figure.SPLIT
    assert figure.colours_of("aba") == [agreed, odd, agreed] and figure.colours_of("aabb") == [split] * 4
    assert figure.colours_of("aabca") == [agreed, agreed, odd, odd, agreed] and figure.colours_of("abc") == [split] * 3
    figure.draw({"two": {"step 1": ["a", "b"]}}, {"two": ["first", "replay"]})


def ch12_run_timeline(figure):
    """Saves after steps 2, 4 and 6, each written for 1.5 steps: they count at 3.7, 5.9 and 8.1."""
    for failure, lost in ((5.7, [2, 3, 4, 5]), (7.3, [4, 5, 6]), (8.5, [6, 7])):
        spans = figure.history(8, figure.Saves(2, 0.2, 1.5), failure, 1.0)
        steps = {kind: [one.step for one in spans if one.kind == kind] for kind in ("step", "lost", "again")}
        assert steps["lost"] == steps["again"] == lost and sorted(steps["step"] + lost) == list(range(8))
        busy = sorted((span.start, span.stop) for span in spans if span.kind != "write")
        assert all(stop <= start + 1e-9 for (_, stop), (start, _) in pairwise(busy))
    figure.draw({"sync": figure.history(8, figure.Saves(4, 1.0, 0.0), 6.5, 1.0)}, 6.5)


def ch12_save_interval(figure):
    lines = figure.draw(11_124.0, (60,), {60: {600: 0.2, 1200: 0.1}}).axes[0].lines
    dot, best = next(line for line in lines if line.get_marker() == "o"), daly_interval(11_124.0, 60)
    assert (dot.get_xdata()[0], dot.get_ydata()[0]) == (best / 60, 1 - goodput(11_124.0, best, 60))
    assert dot.get_ydata()[0] == pytest.approx(min(lines[0].get_ydata()), abs=1e-4)  # the bottom of the valley


def ch12_step_times(figure):
    compute = np.array([[1.0, 1.0, 1.0], [1.0, 3.0, 3.0], [0.5, 1.0, 1.0]])
    assert figure.waiting_share(compute) == pytest.approx([4 / 7, 0, 4.5 / 7])
    waiting, computing = figure.draw(compute, first=5).axes[0].containers[:2]  # of rank 0
    assert [bar.get_width() for bar in waiting] == [1, 3, 3] and [bar.get_width() for bar in computing] == [1, 1, 1]


def ch13_double_trees(figure):
    """The inner ranks of one tree are the leaves of the other."""
    assert figure.depths([None, 0, 1, 0]) == [0, 1, 2, 1]
    shown = [[line.get_color() for line in axes.lines if line.get_marker() == "o"]
             for axes in figure.draw(double_tree(8)).axes]  # fmt: skip
    assert len(shown[0]) == 8 and all(one != other for one, other in zip(*shown, strict=True))


def ch13_networks(figure):
    for text in ("h100:1x8", "h100:2x4,network=rails", "h100:4x2"):
        topology = topology_of(ClusterSpec.parse(text))
        places = figure.positions(topology)
        assert len({*places.values()}) == len(places)  # no two vertices in one place
    assert len(figure.draw({"one": topology}, {"one": "a network"}).axes[0].patches) == len(topology.links)


def ch14_scaling_experiment(figure):
    experiment = Experiment.read()
    left, right = figure.draw(experiment).axes
    assert sum(len(points.get_offsets()) for points in left.collections) == len(experiment.runs)
    measured = [line for line in right.lines if line.get_marker() == "o" and len(line.get_xdata())]
    assert [line.get_ydata()[0] for line in measured] == [run.loss for run in experiment.next_runs]


def ch14_step_parts(figure):
    costs = StepCosts(model_of("llama3-8b"), ClusterSpec.parse("h100:16"), "bf16")
    run = plan_run(costs, PlannedLayout.parse("tp=2,sp=1,pp=4", 16), 64)
    assert sum(figure.parts(run).values()) == pytest.approx(run.step_seconds)
    ends = [left + width for left, width in bars(figure.draw({"a layout": run}).axes[0])]
    assert max(ends) == pytest.approx(run.step_seconds, rel=1e-6)


def ch15_bigrams(figure):
    """The curve is reproducible and falls; a synchronous round is one step with the gradients of all workers."""
    curve = figure.train([1.0, 1.0], 100, inf, 8.0, seed=0)
    assert curve == figure.train([1.0, 1.0], 100, inf, 8.0, seed=0) and curve[-1][1] < curve[0][1] < np.log(256)
    weights, rng = np.zeros((len(figure.text()[1]),) * 2), np.random.default_rng(3)
    for _ in range(2):
        weights = weights - 4.0 * sum(figure.gradient(weights, rng) for _ in range(3))
    assert figure.train([1.0] * 3, 6, 0, 4.0, seed=3, every=6)[0][1] == figure.loss(weights)
    weights = np.random.default_rng(0).standard_normal(weights.shape) / 4
    mean = np.mean([figure.gradient(weights, rng) for _ in range(400)], axis=0)
    way = 1e-4 * mean / np.linalg.norm(mean)
    slope = (figure.loss(weights + way) - figure.loss(weights - way)) / 2e-4
    assert slope == pytest.approx(np.linalg.norm(mean), rel=0.2)  # 400 samples of the gradient, with this seed


def ch15_kept_and_sent(figure):
    """What is sent and what stays are what came and what was there."""

    def send(values):
        indices, kept = top_k(values, 2)
        message = np.zeros_like(values)
        message[indices] = kept
        return message

    steps = figure.steps_of([np.array([5.0, 1.0, -2.0, 0.0])] * 6, send, feed_back)
    for step, following in pairwise(steps):
        assert np.array_equal(step.sent + following.old_residual, step.gradient + step.old_residual)
    figure.draw(steps, show=(0, 3))


def ch15_rounds(figure):
    """With one step in a round, they descend the mean."""
    goals, curvature, x = np.array([[1.0, 0.0], [-3.0, 2.0]]), np.array([1.0, 0.5]), np.array([4.0, 4.0])
    rounds = figure.rounds_of(goals, curvature, x, 1, 5, 0.25, 1.0, 0.0)
    for one in rounds:
        x = x - 0.25 * curvature * (x - goals.mean(axis=0))
        assert np.allclose(one.end, x)
    figure.draw([("title", rounds)], goals, curvature)


def ch15_stability(figure):
    """The largest root is what a long run does."""
    for lr, delay in ((0.3, 0), (0.9, 1), (1.05, 1), (0.3, 4)):
        x = [1.0] * (delay + 1)
        while len(x) < 4000 and 1e-100 < max(map(abs, x[-delay - 1 :])) < 1e100:
            x.append(x[-1] - lr * x[-1 - delay])
        factor = max(map(abs, x[-delay - 1 :])) ** (1 / (len(x) - delay - 1))
        assert factor == pytest.approx(figure.largest_root(lr, delay), rel=0.01)  # of a run that is not infinite
    drawn = figure.draw(range(4), [(1, 0.25)], lambda lr, delay, steps: [1.0] * (steps + 1))
    assert "delay 1, rate 0.25" in words(drawn)


def ch15_worker_lanes(figure):
    """No step is lost, and no worker is ahead by more than the bound."""
    for bound in (0, 1, inf):
        spans = figure.spans([1.0, 1.0, 3.0], 12, bound)
        assert [sum(span.worker == worker for span in spans) for worker in range(3)] == [12] * 3
        for number, span in enumerate(spans):
            ended = [sum(other.worker == worker and other.end <= span.begin for other in spans) for worker in range(3)]
            assert ended[span.worker] - min(ended) <= bound
            assert span.read == (sum(ended) if bound else number // 3)
    (axes,) = figure.draw({"asynchronous": spans}, until=6).axes
    assert [int(text.get_text()) for text in axes.texts] == [one.applied - one.read for one in spans if one.end < 6]


SLOW = ("ch14.scaling_experiment",)
EXAMPLES = [name for name in NAMES if name.replace(".", "_") in globals()]


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.long] if n in SLOW else []) for n in EXAMPLES])
def test_a_figure_can_be_read_and_says_what_is_true(name):
    globals()[name.replace(".", "_")](import_module(f"figures.{name}"))
