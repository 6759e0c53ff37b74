"""The demonstration of clusters: the same step on several networks, and tensor parallelism across nodes."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
from frames import boxes, check_inside, labels, told

from minidist.analysis.clock.network import Flow
from minidist.plan.cluster.topologies import topology_of
from minidist.plan.cluster.topology import Link, Topology
from minidist.show.demos import DEMONSTRATIONS, cluster
from minidist.show.demos.cluster import lanes, run, wires
from minidist.show.demos.cluster.bug import across
from minidist.show.demos.cluster.colours import COMPUTES, DATA_PARALLEL, FULL, GROUPS, PARTLY, USED, WAITS
from minidist.show.demos.cluster.load import Load
from minidist.show.demos.cluster.scene import FASTER, phase, uplink_full
from minidist.show.demos.cluster.verdict import harm, verdict
from minidist.show.player.scene import Box, Label

RANKS = 8  # the default, which lectures show
EXACT = 1e-9  # relative: sums of some hundred float64 numbers


@pytest.fixture(scope="module")
def found():
    """The demonstration, and its steps made again from the logs that it recorded."""
    recorded = []

    def steps_of(logs, layout):
        recorded.append((logs, layout))
        return run.steps_of(logs, layout)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster, "steps_of", steps_of)
        animation = DEMONSTRATIONS["cluster"]()
    ((logs, layout),) = recorded
    steps, spec = run.steps_of(logs, layout), run.clusters_of(RANKS)[run.CONGESTED]
    bad = run.step_on(run.ACROSS, logs, spec, across(topology_of(spec), layout), layout)
    return SimpleNamespace(animation=animation, logs=logs, layout=layout, steps=steps, bad=bad, all=[*steps, bad])


@pytest.fixture(scope="module")
def animation(found):
    return found.animation


def cells(frame, row: int) -> list[Box]:
    """The cells of a cluster's lanes."""
    top = lanes.TOP + row * lanes.PITCH
    return [box for box in boxes(frame) if top <= box.y < top + 4 and box.fill in (COMPUTES, PARTLY, WAITS)]


def messages(frame) -> list[Box]:
    return [box for box in boxes(frame) if (box.w, box.h) == (1.2, 0.6)]


def uplink(frame) -> list[Box]:
    return [box for box in boxes(frame) if box.h == 0.4 and wires.NODE <= box.x < wires.SECOND]


# ── the clock ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_step_takes_longer_from_cluster_to_cluster(found):
    one, two, congested = (step.seconds for step in found.steps)
    assert 1.1 < two / one < 1.6 < 2 < congested / one < 3.5
    assert found.bad.seconds > 2.5 * congested


def test_all_clusters_compute_and_send_the_same(found):
    """Only times differ."""
    sent = [Counter((f.source, f.destination, f.nbytes) for f in step.replayed.flows) for step in found.all]
    assert sent == [sent[0]] * 4
    for step in found.all:
        for rank in range(RANKS):
            assert step.report.ranks[rank].computing == pytest.approx(found.steps[0].report.ranks[rank].computing)


def test_what_leaves_a_node(found):
    """Of tensor parallelism nothing, and all of data parallelism; in the broken run it is the other way around."""
    one, two, congested = found.steps
    assert one.report.bytes_between_nodes == 0
    gradients, activations = two.crossing_bytes(tensor_parallel=False), found.bad.crossing_bytes(tensor_parallel=True)
    assert 0 < gradients < activations / 3
    for step, tp, dp in ((two, 0, gradients), (congested, 0, gradients), (found.bad, activations, 0)):
        assert (step.crossing_bytes(True), step.crossing_bytes(False)) == (tp, dp)
        assert step.report.bytes_between_nodes == tp + dp
        assert sum(step.load.mean(edge, step.start, step.start + step.seconds) * step.topology.links[edge].bandwidth
                   * step.seconds for edge in wires.uplinks(step)) == pytest.approx(tp + dp, rel=EXACT)  # fmt: skip


def test_every_message_is_of_one_group(found):
    pairs = {(flow.source, flow.destination) for flow in found.steps[0].replayed.flows}
    tp = {(a, b) for a in range(RANKS) for b in range(RANKS) if a // 4 == b // 4}
    dp = {(a, b) for a in range(RANKS) for b in range(RANKS) if a % 4 == b % 4}
    assert pairs <= tp | dp and pairs & tp and pairs & dp
    assert run.is_tensor_parallel(Flow(1, 3, 0, 0, 0.0), found.layout)
    assert not run.is_tensor_parallel(Flow(1, 5, 0, 0, 0.0), found.layout)


def test_ranks_are_dealt_to_the_nodes_in_turn(found):
    topology = found.steps[-1].topology
    moved = across(topology, found.layout)
    assert topology.nodes == (0, 0, 0, 0, 1, 1, 1, 1) and moved.nodes == (0, 0, 1, 1, 0, 0, 1, 1)
    assert moved.chips[:3] == ("node0.gpu0", "node0.gpu2", "node1.gpu0") and moved.chips[4] == "node0.gpu1"
    assert sorted(moved.chips) == sorted(topology.chips) and moved.links == topology.links
    for rank in range(RANKS):
        assert moved.chips[rank].startswith(f"node{moved.nodes[rank]}.")


def test_in_one_node_the_places_of_the_ranks_do_not_matter(found):
    one = found.steps[0]
    moved = run.step_on(run.ONE, found.logs, one.spec, across(one.topology, found.layout), found.layout)
    assert moved.seconds == pytest.approx(one.seconds, rel=EXACT)


def test_clusters_that_differ_in_nothing_are_refused(found, monkeypatch):
    spec = found.steps[0].spec
    monkeypatch.setattr(run, "clusters_of", lambda ranks: {run.ONE: spec, run.TWO: spec})
    with pytest.raises(RuntimeError, match="not longer on h100:1x8 than on h100:1x8: choose another size"):
        run.steps_of(found.logs, found.layout)


def test_tensor_parallelism_between_nodes_is_refused_in_the_right_run(found, monkeypatch):
    monkeypatch.setattr(run, "topology_of", lambda spec: across(topology_of(spec), found.layout))
    with pytest.raises(RuntimeError, match="a message of tensor parallelism leaves its node"):
        run.steps_of(found.logs, found.layout)


# ── loads ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_load_by_hand():
    """Two messages of 4 and 2 bytes share 2 bytes/s: until 2 s both, then one alone, at full speed."""
    topology = Topology(
        ("a", "b", "c"), (0, 0, 0), {("a", "x"): Link(2.0), ("b", "x"): Link(1.5), ("x", "c"): Link(2.0)}
    )
    first, second = (Flow(rank, 2, 0, 0, 0.0, topology.route(rank, 2)) for rank in (0, 1))
    first.start, first.sent, second.start, second.sent = 0.0, 3.0, 0.0, 2.0
    load = Load([first, second], topology)
    assert [load.mean(("a", "x"), *times) for times in ((0, 2), (2, 3), (0, 3), (3, 5))] == [0.5, 1.0, 2 / 3, 0.0]
    assert load.mean(("b", "x"), 0, 2) == pytest.approx(1 / 1.5)
    assert load.full(("x", "c"), 0, 3) == load.full(("x", "c"), 1, 2) == 1
    assert load.full(("a", "x"), 0, 4) == 1 / 4 and load.full(("b", "x"), 0, 4) == 0


def test_loads_are_the_bytes_that_the_clock_counted(found):
    """The rates of this picture, over the whole run, beside the sums of the network."""
    for step in found.all:
        end = step.replayed.seconds
        for edge, use in step.replayed.links.items():
            carried = step.load.mean(edge, 0.0, end) * end * step.topology.links[edge].bandwidth
            assert carried == pytest.approx(use.nbytes, rel=1e-6, abs=1e-3), edge  # messages of 0 s are left out
        assert max(max(load.values(), default=0.0) for load in step.load.loads) <= 1 + EXACT


def test_the_uplink_is_fuller_and_fuller(found):
    _, two, congested = found.steps
    assert uplink_full(two) < 0.5 < uplink_full(congested) < uplink_full(found.bad) < 1


# ── the picture ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_cells_say_when_ranks_compute(found):
    step = found.steps[1]
    assert [lanes.colour_of_time(share) for share in (0, 0.33, 0.34, 0.66, 0.67, 1)] == [
        WAITS, WAITS, PARTLY, PARTLY, COMPUTES, COMPUTES,
    ]  # fmt: skip
    times = lanes.Times(found.bad.seconds, found.steps[0].seconds)
    count, shares = times.cells(step), []
    assert times.cells(found.bad) == lanes.CELLS
    for rank in range(RANKS):
        ends = [min(i * times.cell, step.seconds) for i in range(count + 1)]
        shares = [step.computing(rank, a, b) * (b - a) for a, b in pairwise(ends)]
        assert sum(shares) == pytest.approx(step.report.ranks[rank].computing, rel=EXACT)


def test_all_clusters_are_on_one_time_axis(animation):
    ends = []
    for number, one in enumerate(animation.scenes):
        last = one.frames[-1]
        cursors = [box for box in boxes(last) if box.fill == "ink"]
        assert [box.y for box in cursors] == [lanes.TOP + row * lanes.PITCH for row in range(number + 1)]
        ends.append([box.x for box in cursors])
        assert labels(last).count("?") == 2 - number
        axis = [(shape.x, shape.text) for shape in last.shapes if isinstance(shape, Label) and shape.text.isdigit()]
        assert axis == [
            (s.x, s.text) for s in animation.broken.frames[0].shapes if isinstance(s, Label) and s.text.isdigit()
        ]
    assert ends[2][:2] == ends[1] and ends[1][:1] == ends[0]
    assert ends[2][0] < ends[2][1] < ends[2][2]
    zero, tick = (next(s for s in last.shapes if isinstance(s, Label) and s.text == text) for text in ("0", "200"))
    assert f"{(ends[2][2] - zero.x) / (tick.x - zero.x) * 200:,.0f} µs" in labels(last)


def test_a_frame_adds_a_cell_for_each_rank(animation):
    for number, one in enumerate(animation.scenes):
        for now, frame in enumerate(one.frames):
            assert len(cells(frame, number)) == RANKS * now
            cursor = [box for box in boxes(frame) if box.fill == "ink"][number]
            assert max((box.x + box.w for box in cells(frame, number)), default=lanes.LEFT) == pytest.approx(cursor.x)
            assert all(box.w == 1 for box in cells(frame, number)[: RANKS * (len(one.frames) - 2)])
            for row in range(number):
                assert cells(frame, row) == cells(animation.scenes[row].frames[-1], row)


def test_messages_are_those_in_flight(found, animation):
    times = lanes.Times(found.bad.seconds, found.steps[0].seconds)
    seen = Counter()
    for step, one in zip(found.steps, animation.scenes, strict=True):
        for now, frame in enumerate(one.frames[:-1]):
            drawn = wires.network(step, 0.0, now * times.cell)
            moving = [box for box in drawn if isinstance(box, Box) and (box.w, box.h) == (1.2, 0.6)]
            assert len(moving) == len(step.in_flight(now * times.cell))
            seen.update((one.name, box.fill) for box in messages(frame))
    assert all(seen[one.name, fill] for one in animation.scenes for fill in (*GROUPS, DATA_PARALLEL))


def test_a_message_is_in_flight_from_its_first_byte_to_its_last(found):
    step = found.steps[1]
    for flow in step.replayed.flows:
        times = flow.start - 1e-9, (flow.start + flow.sent) / 2, (flow.sent + flow.arrived) / 2
        assert [flow in step.in_flight(time - step.start) for time in times] == [False, True, False]


def test_the_uplink_has_a_line_for_each_direction(found):
    wiring = wires.Wiring(found.steps[-1])
    for edges, ends, y in (
        ((("leaf0", "spine"), ("spine", "leaf1")), (wires.NODE, wires.SECOND), 0.25),
        ((("leaf1", "spine"), ("spine", "leaf0")), (wires.SECOND, wires.NODE), 0.75),
    ):
        (start, middle), (also_middle, end) = map(wiring.ends, edges)
        assert (start, middle, end) == ((ends[0], y), also_middle, (ends[1], y))


def test_a_message_goes_from_its_rank_to_the_other(found):
    step, wiring = found.steps[-1], wires.Wiring(found.steps[-1])
    for source, destination in ((0, 3), (1, 6)):
        flow = Flow(source, destination, 0, 8, 0.0, step.topology.route(source, destination))
        start, middle, end = (wiring.message(flow, sent) for sent in (0.0, 0.5, 1.0))
        for box, rank in ((start, source), (end, destination)):
            assert round(abs(box.x + 0.6 - wiring.middles[step.topology.chips[rank]]), 9) == 0.5
            assert round(box.y + 0.3, 9) in (wires.RANKS, wires.NVLINKS)
        assert min(start.x, end.x) < middle.x < max(start.x, end.x)
        assert middle.fill == (GROUPS[0] if destination == 3 else DATA_PARALLEL)
    crossing = Flow(1, 6, 0, 8, 0.0, step.topology.route(1, 6))
    halves = [wiring.message(crossing, share / 50) for share in range(51)]
    assert any(wires.NODE < box.x < wires.SECOND and box.y < 1 for box in halves)  # it takes the uplink


def test_wires_have_the_colour_of_their_load(animation):
    assert [wires.colour_of_wire(load) for load in (0, 1e-6, 0.84, 0.85, 1)] == [WAITS, USED, USED, FULL, FULL]
    assert not [box for frame in animation.scenes[0].frames for box in uplink(frame)]
    red = [sum(FULL in {box.fill for box in uplink(frame)} for frame in one.frames) for one in animation.all_scenes]
    assert red[0] == 0 < red[2] < red[3] and red[1] < red[2]
    assert all(len(uplink(frame)) == 4 for frame in animation.broken.frames)  # two halves in both directions
    assert {"NVLink 450 GB/s"} <= set(labels(animation.scenes[0].frames[0]))
    assert {"uplink 200 GB/s", "NIC 50 GB/s"} <= set(labels(animation.scenes[1].frames[0]))
    assert "uplink 50 GB/s" in labels(animation.broken.frames[0])


def test_boxes_show_which_rank_is_where(animation):
    def ranks(scene) -> list[tuple[str, str]]:
        found = [box for box in boxes(scene.frames[0]) if box.text.startswith("rank")]
        return [(box.text, box.fill) for box in sorted(found, key=lambda box: box.x)]

    a, b = GROUPS
    right = [(f"rank {rank}", a if rank < 4 else b) for rank in range(RANKS)]
    assert [ranks(one) for one in animation.scenes] == [right] * 3
    assert ranks(animation.broken) == [right[rank] for rank in (0, 4, 1, 5, 2, 6, 3, 7)]


def test_the_broken_run_is_in_the_same_frames(animation, found):
    right, wrong = animation.scenes[-1], animation.broken
    assert wrong.twin == right.name == run.CONGESTED and wrong.height == right.height
    for before, after in zip(right.frames[:-1], wrong.frames, strict=False):
        assert before.facts["time"] == after.facts["time"]
        assert cells(before, 0) == cells(after, 0) and cells(before, 1) == cells(after, 1)
    later = [len(cells(frame, 2)) // RANKS for frame in wrong.frames[len(right.frames) - 1 :]]
    assert later[0] == len(right.frames) - 1 and later[-1] == lanes.CELLS
    assert {b - a for a, b in pairwise(later[:-1])} == {FASTER}
    marks = [f"▼ tp inside nodes: {lanes.microseconds(found.steps[-1].seconds)}" in labels(f) for f in wrong.frames]
    assert marks == [number >= len(right.frames) - 1 for number in range(len(wrong.frames))]


def test_the_first_wrong_frame_is_the_one_after_which_tp_has_crossed(animation):
    crossed = ["tp 0.0," not in frame.facts["between nodes"] for frame in animation.broken.frames]
    assert crossed.index(True) == animation.broken.first_wrong
    assert all("tp 0.0," in frame.facts["between nodes"] for one in animation.scenes for frame in one.frames)
    assert all(one.first_wrong is None for one in animation.scenes)


def test_numbers_come_last(animation, found):
    one, two, congested, broken = (scene.frames for scene in animation.all_scenes)
    for frames, step, row in zip((one, two, congested, broken), found.all, (0, 1, 2, 2), strict=True):
        times = f"{step.seconds / found.steps[0].seconds:.1f}×"
        y = lanes.TOP + row * lanes.PITCH + 3.5
        shown = [
            [shape.text for shape in frame.shapes if isinstance(shape, Label) and (shape.x, shape.y) == (0, y)]
            for frame in frames
        ]
        assert shown == [[]] * (len(frames) - 1) + [[times]]
        assert frames[-1].note.startswith(f"Done after {lanes.microseconds(step.seconds)}")
    assert all("Guess:" in frames[0].note for frames in (two, congested, broken))
    assert f"{uplink_full(found.bad):.0%} of the step" in labels(broken[-1])


def test_notes_follow_rank_0(found):
    beginnings = ["Forward", "Backward", "Nothing left", "The optimizer", "The ranks sum their losses"]
    for step in found.all:
        said = dict.fromkeys(phase(step, step.seconds * (number + 0.5) / 400).split(":")[0] for number in range(400))
        assert [any(one.startswith(beginning) for one in said) for beginning in beginnings[:2]] == [True] * 2
        assert list(said) == [text for text in said if text.rstrip(".").startswith(tuple(beginnings))]
        assert ("between nodes" in phase(step, 1e-6)) == (step is found.bad)
    assert phase(found.steps[-1], 0.6 * found.steps[-1].seconds).startswith("Nothing left to compute")


def test_verdicts_have_the_clocks_numbers(animation, found):
    one, two, congested = found.steps
    assert verdict(found.steps, 0, "P").startswith(
        f"The ranks wait {1 - one.report.ranks[0].computing / one.seconds:.0%}"
    )
    text = verdict(found.steps, 2, "P")
    assert f"{congested.seconds / one.seconds:.1f} times as long as in one node" in text
    assert f"{two.report.bytes_between_nodes / 1e6:.1f} MB" in text and f"full {uplink_full(congested):.0%}" in text
    text = harm(found.steps, found.bad, "P")
    assert f": {found.bad.seconds / congested.seconds:.1f} times as long." in text
    before, now = (step.report.bytes_between_nodes / 1e6 for step in (congested, found.bad))
    assert f"{now:.1f} MB instead of {before:.1f}." in text
    assert "bit for bit (SHA-256" in told(animation.broken)
    with pytest.raises(RuntimeError, match="the step is not longer: choose another size"):
        harm(found.steps, replace(found.bad, report=one.report), "P")


@pytest.mark.parametrize(("ranks", "size"), [(4, 128), pytest.param(8, 512, marks=pytest.mark.long)])
def test_everything_is_in_the_picture(ranks, size):
    for one in DEMONSTRATIONS["cluster"](ranks=ranks, size=size).all_scenes:
        check_inside(one)
        fills = {box.fill for frame in one.frames for box in boxes(frame)} - {"paper", "ink"}
        assert set(one.key.values()) == fills  # every colour has one meaning, and is explained


def test_sizes():
    demonstration = DEMONSTRATIONS["cluster"]
    with pytest.raises(ValueError, match="the demonstration cluster shows 4 or 8 ranks, not 6"):
        demonstration(ranks=6)
    with pytest.raises(ValueError, match="the demonstration cluster shows 4 to 8 ranks, not 2"):
        demonstration(ranks=2)
    with pytest.raises(ValueError, match="the model's width, must be from 128 to 512, got 96"):
        demonstration(size=96)
    with pytest.raises(ValueError, match="must be a multiple of its 4 heads, got 130"):
        demonstration(size=130)
