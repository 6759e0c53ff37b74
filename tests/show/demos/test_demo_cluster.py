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
from minidist.show.demos.cluster import bars, run, wires
from minidist.show.demos.cluster.bug import across
from minidist.show.demos.cluster.colours import COMPUTES, DATA_PARALLEL, FREE, FULL, GROUPS
from minidist.show.demos.cluster.load import Load
from minidist.show.demos.cluster.scene import FASTER, phase, uplink_full
from minidist.show.demos.cluster.verdict import harm, verdict
from minidist.show.player.scene import Box, Label

pytestmark = pytest.mark.long

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
    steps = run.steps_of(logs, layout)
    across_two, bad = (
        run.step_on(run.ACROSS, logs, step.spec, across(topology_of(step.spec), layout), layout) for step in steps[1:]
    )
    return SimpleNamespace(
        animation=animation, logs=logs, layout=layout, steps=steps, bad=bad, across_two=across_two, all=[*steps, bad]
    )


@pytest.fixture(scope="module")
def animation(found):
    return found.animation


def bar(frame, row: int) -> tuple[list[Box], list[Box]]:
    """A cluster's bar: all of it, and its parts in which GPUs compute."""
    top = bars.TOP + row * bars.PITCH
    inside = [box for box in boxes(frame) if top <= box.y < top + bars.HIGH and box.x >= bars.LEFT]
    return [box for box in inside if box.fill == FREE and box.h == bars.HIGH], [
        box for box in inside if box.fill == COMPUTES
    ]


def uplink(frame) -> list[Box]:
    """Its two halves, and what is in them."""
    return [box for box in boxes(frame) if wires.NODE <= box.x < wires.SECOND and box.y + box.h <= wires.HIGH]


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
    kinds = Load([first, second], topology, lambda flow: f"from {flow.source}")
    assert [kinds.mean(("x", "c"), 0, 4, f"from {rank}") for rank in (0, 1)] == [0.5, 0.25]
    assert kinds.mean(("x", "c"), 0, 4) == 0.75 and kinds.mean(("x", "c"), 0, 4, "other") == 0
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


def test_the_shares_of_a_bar_are_the_time_in_which_gpus_compute(found):
    drawn = bars.Bars(found.bad.seconds, found.steps[0].seconds)
    assert drawn.cells(found.bad) == bars.CELLS
    for step in found.all:
        part = drawn.cell / bars.FINER
        shares = drawn.shares(step)
        ends = [min(number * part, step.seconds) for number in range(len(shares) + 1)]
        computing = sum(share * (b - a) for share, (a, b) in zip(shares, pairwise(ends), strict=True))
        assert ends[-1] == step.seconds
        assert computing * RANKS == pytest.approx(sum(one.computing for one in step.report.ranks), rel=EXACT)


def test_all_clusters_are_on_one_time_axis(animation, found):
    drawn = bars.Bars(found.bad.seconds, found.steps[0].seconds)
    for number, one in enumerate(animation.scenes):
        last = one.frames[-1]
        for row in range(3):
            whole, _ = bar(last, row)
            assert len(whole) == (row <= number)  # nothing of what is not shown yet
            if whole:
                assert whole[0].x == bars.LEFT
                assert bars.LEFT + whole[0].w == pytest.approx(drawn.x(found.steps[row].seconds), rel=EXACT)
    axes = {tuple((s.x, s.text) for s in one.frames[0].shapes if isinstance(s, Label) and s.text.isdigit())
            for one in animation.all_scenes}  # fmt: skip
    assert len(axes) == 1
    zero, tick = (next(x for x, text in axes.copy().pop() if text == word) for word in ("0", "200"))
    end = bars.LEFT + bar(animation.scenes[2].frames[-1], 2)[0][0].w
    assert f"{(end - zero) / (tick - zero) * 200:,.0f} µs 2.5×" in labels(last)


def test_a_frame_makes_the_bar_a_cell_longer(animation):
    for number, one in enumerate(animation.scenes):
        lengths = [sum(box.w for box in bar(frame, number)[0]) for frame in one.frames]
        assert lengths[:-1] == list(range(len(one.frames) - 1)) and 0 < lengths[-1] - lengths[-2] <= 1
        for frame in one.frames:
            (whole, blue) = bar(frame, number)
            assert all(box.x + box.w <= bars.LEFT + whole[0].w + EXACT and box.h <= bars.HIGH for box in blue)
            assert all(bar(frame, row) == bar(animation.scenes[row].frames[-1], row) for row in range(number))


def test_a_message_is_in_flight_from_its_first_byte_to_its_last(found):
    step = found.steps[1]
    for flow in step.replayed.flows:
        times = flow.start - 1e-9, (flow.start + flow.sent) / 2, (flow.sent + flow.arrived) / 2
        assert [flow in step.in_flight(time - step.start) for time in times] == [False, True, False]


def test_a_link_is_as_wide_as_its_bandwidth(found):
    """Across, in lines: a link that goes up is twice as many characters wide."""
    _, two, congested = found.steps
    wide = {}
    for name, step in (("two", two), ("congested", congested)):
        wiring = wires.Wiring(step)
        for link in wiring.links():
            x, y, w, h = wiring.place(link)
            assert x >= 0 and x + w <= 72 and y >= 0
            kind = "uplink" if "spine" in link else "nic" if any("leaf" in end for end in link) else "nvlink"
            wide.setdefault((name, kind), set()).add(round(h if kind == "uplink" else w / 2, 9))
    assert {key: [each * 200 / wires.HIGH for each in found] for key, found in wide.items()} == {
        ("two", "uplink"): [200], ("two", "nic"): [50], ("two", "nvlink"): [450],
        ("congested", "uplink"): [50], ("congested", "nic"): [50], ("congested", "nvlink"): [450],
    }  # fmt: skip


def test_what_a_link_carries_covers_as_much_of_its_width(found):
    step = found.across_two
    wiring, start, now = wires.Wiring(step), 0.2 * step.seconds, 0.25 * step.seconds
    for link in wiring.links():
        free, *carried = wiring.draw(link, start, now)
        side = "h" if "spine" in link else "w"
        load = max(step.load.mean(edge, step.start + start, step.start + now) for edge in wiring.edges(link))
        assert sum(getattr(box, side) for box in carried) == pytest.approx(load * getattr(free, side), rel=EXACT)
        assert {box.fill for box in carried} <= {*GROUPS, DATA_PARALLEL} and free.fill == FREE
    assert [len(list(wiring.draw(link, now, now))) for link in wiring.links()] == [1] * len(wiring.links())


def test_each_kind_of_message_is_where_it_should_be(animation):
    """Messages of tensor parallelism are on the uplink in the broken run alone."""
    for one in animation.all_scenes:
        seen = {box.fill for frame in one.frames for box in uplink(frame)} - {"paper", FREE}
        nodes = 1 if one.name == run.ONE else 2
        assert seen == (set() if nodes == 1 else set(GROUPS) if one.twin else {DATA_PARALLEL})


def test_a_full_link_says_so(animation, found):
    def full(scene) -> int:
        return sum(any(box.text == "FULL" and box.fill == FULL for box in boxes(frame)) for frame in scene.frames)

    one, two, congested = map(full, animation.scenes)
    assert one == two == 0 and congested > len(animation.scenes[2].frames) / 3
    assert "200 GB/s" in labels(animation.scenes[1].frames[0]) and "50 GB/s" in labels(animation.broken.frames[0])
    step, cell = found.steps[2], bars.Bars(found.bad.seconds, 1).cell
    for now, frame in enumerate(animation.scenes[2].frames[1:], 1):
        times = (step.start + min(number * cell, step.seconds) for number in (now - 1, now))
        load = max(step.load.mean(edge, *times) for edge in [wires.uplinks(step)[0]])
        assert load < wires.NEARLY or "FULL" in {box.text for box in boxes(frame)}


def test_boxes_show_which_rank_is_where(animation):
    def ranks(scene) -> list[tuple[str, str]]:
        found = [box for box in boxes(scene.frames[0]) if box.id.startswith("rank")]
        return [(box.text, box.fill) for box in sorted(found, key=lambda box: box.x)]

    a, b = GROUPS
    right = [(str(rank), a if rank < 4 else b) for rank in range(RANKS)]
    assert [ranks(one) for one in animation.scenes] == [right] * 3
    assert [ranks(one) for one in animation.all_broken] == [[right[rank] for rank in (0, 4, 1, 5, 2, 6, 3, 7)]] * 2


def test_the_broken_run_is_in_the_same_frames(animation):
    """In one node all places are equal, so nothing can be broken there."""
    assert animation.breakable() == (run.TWO, run.CONGESTED) and animation.broken.twin == run.CONGESTED
    for wrong in animation.all_broken:
        right = animation.only(wrong.twin).scenes[0]
        row = 1 if wrong.twin == run.TWO else 2
        assert wrong.height == right.height and wrong.frames[-1].at > 2 * right.frames[-1].at
        for before, after in zip(right.frames[:-1], wrong.frames, strict=False):
            assert before.at == after.at and before.facts["time"] == after.facts["time"]
            assert bar(before, 0) == bar(after, 0)
        later = [sum(box.w for box in bar(frame, row)[0]) for frame in wrong.frames[len(right.frames) - 1 :]]
        assert later[0] == len(right.frames) - 1 and {b - a for a, b in pairwise(later[:-1])} <= {FASTER}
        (mark,) = [box for box in boxes(wrong.frames[-1]) if box.fill == "ink" and box.h > bars.HIGH]
        assert mark.x + mark.w / 2 == pytest.approx(bars.LEFT + sum(box.w for box in bar(right.frames[-1], row)[0]))


def test_the_first_wrong_frame_is_the_one_after_which_tp_has_crossed(animation):
    for wrong in animation.all_broken:
        crossed = ["tp 0.0," not in frame.facts["between nodes"] for frame in wrong.frames]
        assert crossed.index(True) == wrong.first_wrong
    assert all("tp 0.0," in frame.facts["between nodes"] for one in animation.scenes for frame in one.frames)
    assert all(one.first_wrong is None for one in animation.scenes)


def test_times_come_last(animation, found):
    for one, step, row in zip(animation.all_scenes, (*found.all, found.across_two), (0, 1, 2, 2, 1), strict=True):
        y = bars.TOP + row * bars.PITCH + bars.HIGH / 2
        shown = [[s.text for s in frame.shapes if isinstance(s, Label) and s.y == y and s.x >= bars.LEFT]
                 for frame in one.frames]  # fmt: skip
        times = f" {step.seconds / found.steps[0].seconds:.1f}×" if row else ""
        assert shown == [[]] * (len(one.frames) - 1) + [[f"{bars.microseconds(step.seconds)}{times}"]]
        assert one.frames[-1].note.startswith(f"Done after {bars.microseconds(step.seconds)}")
        (question,) = one.questions
        assert question.answer == 1 and len(set(question.choices)) == 3
    computing = found.steps[0].report.ranks[0].computing / found.steps[0].seconds
    assert animation.scenes[0].questions[0].choices[1] == f"{computing:.0%}"


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
    text = harm(congested, found.bad, "P")
    assert f": {found.bad.seconds / congested.seconds:.1f} times as long." in text
    before, now = (step.report.bytes_between_nodes / 1e6 for step in (congested, found.bad))
    assert f"{now:.1f} MB instead of {before:.1f}." in text
    assert "bit for bit (SHA-256" in told(animation.broken)
    with pytest.raises(RuntimeError, match="the step is not longer: choose another size"):
        harm(congested, replace(found.bad, report=one.report), "P")


@pytest.mark.parametrize(("ranks", "size"), [(4, 128), (8, 512)])
def test_everything_is_in_the_picture(ranks, size):
    for one in DEMONSTRATIONS["cluster"](ranks=ranks, size=size).all_scenes:
        check_inside(one)
        assert one.height <= 13  # so that a page shows it as wide as it is, and a terminal of 24 lines all of it
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
