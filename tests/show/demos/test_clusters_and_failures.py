"""The demonstrations of clusters, deadlocks and failures: what they show is what the clock, parent and disk say."""

import os
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import multiprocess
import pytest
from choosing import long
from every_scene import EveryScene
from frames import arrows, boxes, labels, last, numbers, told
from recorded import recorded

from minidist.analysis.clock.network import Flow
from minidist.comm.failures import RankFailed
from minidist.plan.cluster.topologies import topology_of
from minidist.plan.cluster.topology import Link, Topology
from minidist.show.demos import DEMONSTRATIONS
from minidist.show.demos.cluster import bars, wires
from minidist.show.demos.cluster import run as clock
from minidist.show.demos.cluster.bug import across
from minidist.show.demos.cluster.load import Load
from minidist.show.demos.cluster.scene import uplink_full
from minidist.show.demos.cluster.verdict import harm
from minidist.show.demos.deadlock.programs import ODD, SEND_FIRST, TOGETHER, lines_of
from minidist.show.demos.deadlock.run import FITS, Event, moments
from minidist.show.demos.failure import disk_scene, run
from minidist.show.demos.failure.power_cut import resumed_from
from minidist.show.demos.failure.recording import FOLDER, OLD, RANKS, Operation, recording_of
from minidist.show.demos.shared.gpus import CHIPS, LATENCIES, LINKS, on_gpus
from minidist.show.demos.shared.runs import warm_ranks
from minidist.trace import Message
from minidist.train.checkpoint.commit import LATEST, MANIFEST

EXACT = 1e-9  # relative: sums of some hundred float64 numbers


@pytest.fixture(params=[long(name) for name in ("cluster", "failure")] + ["deadlock"])
def shown(request):
    return recorded(request.param)


class TestScenes(EveryScene):
    pass


# ── clusters: dp=2, tp=4 on the clocks of one node, of two, and of two behind a congested uplink ─────────────────────


def steps() -> tuple[list, list]:
    """The right steps, and those on two nodes and behind the congested uplink with the bug."""
    results = recorded("cluster").results
    return results["steps_of"][0], results["step_on"]


@pytest.mark.long
def test_on_every_cluster_the_same_is_computed_and_sent_and_only_times_differ():
    right, bad = steps()
    one, two, congested = (step.seconds for step in right)
    assert 1.1 < two / one < 1.6 < 2 < congested / one < 3.5 and bad[-1].seconds > 2.5 * congested
    sent = [Counter((f.source, f.destination, f.nbytes) for f in step.replayed.flows) for step in (*right, *bad)]
    computing = [[rank.computing for rank in step.report.ranks] for step in (*right, *bad)]
    assert sent == [sent[0]] * 5 and computing == [pytest.approx(computing[0])] * 5
    gradients, activations = right[1].crossing_bytes(tensor_parallel=False), bad[0].crossing_bytes(tensor_parallel=True)
    assert 0 < gradients < activations / 3
    crossing = [(step.crossing_bytes(True), step.crossing_bytes(False)) for step in (*right, *bad)]
    assert crossing == [(0, 0), (0, gradients), (0, gradients), (activations, 0), (activations, 0)]
    assert [step.report.bytes_between_nodes for step in (*right, *bad)] == [sum(pair) for pair in crossing]
    pairs = {(flow.source, flow.destination) for flow in right[0].replayed.flows}
    assert {(a // 4 == b // 4, a % 4 == b % 4) for a, b in pairs} == {(True, False), (False, True)}  # tp or dp
    assert uplink_full(right[1]) < 0.5 < uplink_full(right[2]) < uplink_full(bad[1]) < 1
    for step in (*right, *bad):  # the rates of the picture add up to the bytes of the clock
        for edge, use in step.replayed.links.items():
            seconds = step.replayed.seconds
            carried = step.load.mean(edge, 0.0, seconds) * seconds * step.topology.links[edge].bandwidth
            assert carried == pytest.approx(use.nbytes, rel=1e-6, abs=1e-3), edge  # messages of 0 s are left out
        assert max(max(load.values(), default=0.0) for load in step.load.loads) <= 1 + EXACT
        for flow in step.replayed.flows:
            times = flow.start - 1e-9, (flow.start + flow.sent) / 2, (flow.sent + flow.arrived) / 2
            assert [flow in step.in_flight(time - step.start) for time in times] == [False, True, False]


@pytest.mark.long
def test_the_bug_deals_ranks_to_nodes_in_turn_which_matters_between_nodes_alone(monkeypatch):
    right, bad = steps()
    (recorded_run,), layout = recorded("cluster").trained(dp=2), right[0].layout
    logs = [rank.log for rank in recorded_run.ranks]
    moved = across(right[-1].topology, layout)
    assert right[-1].topology.nodes == (0, 0, 0, 0, 1, 1, 1, 1) and moved.nodes == (0, 0, 1, 1, 0, 0, 1, 1)
    assert moved.chips[:3] == ("node0.gpu0", "node0.gpu2", "node1.gpu0") and moved.links == right[-1].topology.links
    assert all(chip.startswith(f"node{node}.") for chip, node in zip(moved.chips, moved.nodes, strict=True))
    assert sorted(moved.chips) == sorted(right[-1].topology.chips)
    one = right[0]
    shuffled = clock.step_on(clock.ONE, logs, one.spec, across(one.topology, layout), layout)
    assert shuffled.seconds == pytest.approx(one.seconds, rel=EXACT)
    with pytest.raises(RuntimeError, match="the step is not longer: choose another size"):
        harm(right[2], replace(bad[1], report=one.report), "P")
    with monkeypatch.context() as patch:
        patch.setattr(clock, "clusters_of", lambda ranks: {clock.ONE: one.spec, clock.TWO: one.spec})
        with pytest.raises(RuntimeError, match="not longer on h100:1x8 than on h100:1x8: choose another size"):
            clock.steps_of(logs, layout)
    monkeypatch.setattr(clock, "topology_of", lambda spec: across(topology_of(spec), layout))
    with pytest.raises(RuntimeError, match="a message of tensor parallelism leaves its node"):
        clock.steps_of(logs, layout)


def test_load_by_hand():
    """Two messages of 4 and 2 bytes share 2 bytes/s: until 2 s both, then one alone, at full speed."""
    links = {("a", "x"): Link(2.0), ("b", "x"): Link(1.5), ("x", "c"): Link(2.0)}
    topology = Topology(("a", "b", "c"), (0, 0, 0), links)
    first, second = (Flow(rank, 2, 0, 0, 0.0, topology.route(rank, 2)) for rank in (0, 1))
    first.start, first.sent, second.start, second.sent = 0.0, 3.0, 0.0, 2.0
    load = Load([first, second], topology, lambda flow: f"from {flow.source}")
    assert [load.mean(("a", "x"), *times) for times in ((0, 2), (2, 3), (0, 3), (3, 5))] == [0.5, 1.0, 2 / 3, 0.0]
    assert load.mean(("b", "x"), 0, 2) == pytest.approx(1 / 1.5)
    assert [load.mean(("x", "c"), 0, 4, kind) for kind in ("from 0", "from 1", "x", None)] == [0.5, 0.25, 0, 0.75]
    assert load.full(("x", "c"), 0, 3) == load.full(("x", "c"), 1, 2) == 1
    assert load.full(("a", "x"), 0, 4) == 1 / 4 and load.full(("b", "x"), 0, 4) == 0


@pytest.mark.long
def test_a_cluster_s_scene_shows_times_bytes_and_loads_of_the_clock():
    found, (right, bad) = recorded("cluster").animation, steps()
    drawn = bars.Bars(bad[-1].seconds, right[0].seconds)
    for scene, step in zip(found.all_scenes, (*right, bad[1], bad[0]), strict=True):
        end, ratio = scene.frames[-1], step.seconds / right[0].seconds
        time = f"{step.seconds * 1e6:,.0f} µs"
        assert end.facts["time"] == time and end.note.startswith(f"Done after {time}") and end.at == 1e6 * step.seconds
        assert f"{time} {ratio:.1f}×" in labels(end) or step is right[0]
        assert not any(time in text for frame in scene.frames[:-1] for text in labels(frame))  # times come last
        row = (clock.ONE, clock.TWO, clock.CONGESTED).index(scene.twin or scene.name)
        top = bars.TOP + row * bars.PITCH
        lengths = [sum(box.w for box in boxes(frame, fill=wires.FREE, y=top, h=bars.HIGH)) for frame in scene.frames]
        assert lengths == sorted(lengths) and bars.LEFT + lengths[-1] == pytest.approx(drawn.x(step.seconds))
        edges = [min(number * drawn.cell / bars.FINER, step.seconds) for number in range(len(drawn.shares(step)) + 1)]
        computing = sum(share * (b - a) for share, (a, b) in zip(drawn.shares(step), pairwise(edges), strict=True))
        assert computing * 8 == pytest.approx(sum(rank.computing for rank in step.report.ranks), rel=EXACT)
        assert last(scene, "between nodes") == [
            round(step.crossing_bytes(kind, step.seconds) / 1e6, 1) for kind in (True, False)
        ]
        crossed = ["tp 0.0," not in frame.facts["between nodes"] for frame in scene.frames]
        assert scene.first_wrong == (crossed.index(True) if any(crossed) else None) and any(crossed) == bool(scene.twin)
        question = scene.questions[0]
        base = right[row] if scene.twin else right[0]
        if step is right[0]:
            ratio = right[0].report.ranks[0].computing / step.seconds
            assert question.choices[question.answer] == f"{ratio:.0%}"
        else:
            assert question.choices[question.answer] == f"{step.seconds / base.seconds:.1f} times"
            assert f"{step.report.bytes_between_nodes / 1e6:.1f} MB" in told(scene)
            assert f"full {uplink_full(step):.0%} of it" in told(scene)
    full = [sum("FULL" in [box.text for box in boxes(f)] for f in scene.frames) for scene in found.scenes]
    assert full[0] == full[1] == 0 and full[2] > len(found.scenes[2].frames) / 3
    for step, uplink in ((right[1], 200), (right[2], 50)):  # GB/s: a link is as wide as its bandwidth
        wiring, wide = wires.Wiring(step), {}
        for link in wiring.links():
            _, _, w, h = wiring.place(link)
            kind = "uplink" if "spine" in link else "nic" if any("leaf" in end for end in link) else "nvlink"
            wide.setdefault(kind, set()).add(round((h if kind == "uplink" else w / 2) * 200 / wires.HIGH, 6))
            free, *carried = wiring.draw(link, 0.2 * step.seconds, 0.25 * step.seconds)
            side, since = "h" if kind == "uplink" else "w", (step.start + 0.2 * step.seconds)
            load = max(step.load.mean(e, since, step.start + 0.25 * step.seconds) for e in wiring.edges(link))
            assert sum(getattr(box, side) for box in carried) == pytest.approx(load * getattr(free, side), rel=EXACT)
        assert wide == {"uplink": {uplink}, "nic": {50}, "nvlink": {450}}


@pytest.mark.long
def test_a_faster_link_or_chip_or_less_latency_shortens_a_step():
    logs = recorded("dp").animation.logs
    start = {"link": "0.1 GB/s", "latency": "100 µs", "chip": "0.1 TFLOP/s"}
    for name, values in (("link", list(LINKS)), ("latency", list(LATENCIES)[::-1]), ("chip", list(CHIPS))):
        seconds = [on_gpus(logs, *(start | {name: value}).values()).seconds for value in values]
        assert seconds == sorted(seconds, reverse=True) and seconds[0] > seconds[-1], name


# ── deadlocks ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("ranks", [3, long(2), long(8)])
def test_the_cycle_is_the_one_that_the_parent_finds_and_nothing_is_left_behind(ranks):
    def segments() -> set[str]:
        folder = "/dev/shm"  # Linux's
        return {name for name in os.listdir(folder) if f"-{os.getpid()}-" in name} if os.path.isdir(folder) else set()

    before, children = segments(), {*multiprocess.active_children()}
    animation = DEMONSTRATIONS["deadlock"](ranks=ranks, size=FITS + 1, seed=ranks)
    assert segments() <= before and {*multiprocess.active_children()} <= children
    broken, everybody = animation.broken, {f"{rank} waits for {(rank + 1) % ranks}" for rank in range(ranks)}
    for scene, calls in zip(animation.scenes, (1, 2, 2), strict=True):
        assert len(scene.frames) == 1 + ranks * (calls + 1)  # before, and each call and each end
        assert not arrows(scene.frames[0]) and not arrows(scene.frames[-1]) and "bit for bit" in told(scene)
        assert {int(frame.at) for frame in scene.frames} == {*range(ranks + 1)}
    assert [len(arrows(frame)) for frame in broken.frames] == [*range(ranks + 1), ranks]
    assert {*arrows(broken.frames[-2])} == {*arrows(broken.frames[-1])} == everybody  # from the calls, and as reported
    assert broken.first_wrong == ranks and [frame.lines for frame in broken.frames] == [(), *[(0,)] * (ranks + 1)]
    assert ["DEADLOCK" in [box.text for box in boxes(frame)] for frame in broken.frames] == [False] * (ranks + 1) + [
        True
    ]
    ring = " → ".join(map(str, [*range(ranks), 0]))
    assert f"waits for rank 1 to take {8 * (FITS + 1):,} bytes" in told(broken) and ring in told(broken)
    assert "in send_first" in told(broken)  # the line
    messages = {(m.kind, m.source, m.destination) for log in animation.logs for m in log if isinstance(m, Message)}
    assert messages == {(kind, r, (r + 1) % ranks) for r in range(ranks) for kind in ("send", "receive")}


def test_who_waits_after_each_call_and_in_which_line():
    send, recv = {"sends": ((0, 1),)}, {"receives": ((0, 1),)}
    events = [Event(1, 0, "send", **send), Event(2, 1, "recv", **recv), Event(3, 0, ""), Event(4, 1, "")]
    assert [moment.waiting for moment in moments(events, fits=False)] == [{0: [1]}, {}, {}, {}]
    assert [moment.waiting for moment in moments(events, fits=True)] == [{}, {}, {}, {}]
    assert [moment.waiting for moment in moments(events[1::-1], fits=True)] == [{1: [0]}, {}]
    assert moments(events, fits=False)[-1].finished == {0, 1}
    assert lines_of(SEND_FIRST, {0: "send to 1", 1: "recv from 0", 2: ""}) == (0, 1) and lines_of(SEND_FIRST, {}) == ()
    assert [lines_of(ODD, {rank: call}) for rank in (0, 1) for call in ("send to 2", "recv from 2")] == [
        (1,), (2,), (5,), (4,),
    ]  # fmt: skip
    assert lines_of(TOGETHER, {0: "send to 1, recv from 3"}) == (2, 3) and lines_of(TOGETHER, {0: ""}) == ()


# ── a rank dies: 4 ranks, a checkpoint every 4 steps, 7 steps taken before the death ─────────────────────────────────

COUNT, SIZE = 4, 4
KILLED = 2 * SIZE - 1


def died() -> tuple[run.Interrupted, run.Interrupted]:
    """The run that went on, and the one that forgot its moments."""
    return recorded("failure").results["interrupted"][0]


@pytest.mark.long
def test_a_run_that_lost_a_rank_goes_on_in_another_layout_and_ends_on_the_same_bits():
    one, forgetful = died()
    assert isinstance(one.error, RankFailed) and one.error.rank == COUNT - 1 and "SIGKILL" in str(one.error)
    assert (str(one.before.layout), str(one.after.layout)) == ("dp=4", "tp=3")
    assert one.reference == one.fingerprint and {rank.fingerprint for rank in one.resumed.ranks} == {one.reference}
    assert one.resumed.steps_here == one.steps - SIZE and len(one.resumed.losses) == one.steps == 3 * SIZE
    assert one.before.saved == [SIZE] and one.after.saved == [2 * SIZE, 3 * SIZE]
    assert one.lost == range(SIZE, KILLED) and one.before.ended_by(one.fault.rank) == KILLED
    assert one.after.losses[0][: len(one.lost)] == one.before.losses[one.fault.rank][SIZE:KILLED]
    assert [losses == one.resumed.losses[SIZE:] for losses in one.after.losses] == [True] * (COUNT - 1)
    assert one.files == COUNT and all(0 < nbytes < one.nbytes for nbytes in one.bytes_read)
    assert forgetful.reference == one.reference != forgetful.fingerprint and forgetful.after.first == one.after.first
    same = [a == b for a, b in zip(forgetful.after.losses[0], one.after.losses[0], strict=True)]
    assert same == [True] + [False] * (len(same) - 1)  # a step's loss is that of the weights before it
    losses = [[loss + 1 for loss in each] for each in one.after.losses]
    with pytest.raises(RuntimeError, match=r"step 4 has loss .* when taken again: a bug in minidist"):
        run._check_same_losses(replace(one, after=replace(one.after, losses=losses)))


@pytest.mark.long
def test_the_picture_of_a_death_tells_what_is_lost_and_taken_again():
    found, (one, forgetful) = recorded("failure").animation, died()
    scene, wrong = found.scenes[0], found.also_broken[0]
    dead, lost, back = scene.frames[KILLED + 1 : KILLED + 4]
    assert scene.frames[KILLED].facts["steps"] == f"{KILLED} of {3 * SIZE}"
    assert f"× {COUNT - 1}" in [box.text for box in boxes(dead)] and "lost" not in labels(dead)
    assert lost.note.startswith("Lost: steps 5 to 7.") and "lost" in labels(lost)
    assert (dead.facts["steps lost"], lost.facts["steps lost"]) == ("0", "3") and "back to step 4" in labels(back)
    saved = [box.id for box in boxes(scene.frames[-1]) if box.id.startswith("checkpoint of step")]
    assert saved == [f"checkpoint of step {step}" for step in (4, 8, 12)]
    sha = one.reference[:8]
    seen = [[box.text for box in boxes(frame)].count(sha) for frame in scene.frames]
    assert seen == [0] * (len(seen) - 1) + [2]  # fingerprints come last
    assert f"(SHA-256 {sha})" in told(scene) and "took 3 steps twice" in told(scene)
    assert wrong.first_wrong == KILLED + 5 and wrong.frames[KILLED + 4].note == "Step 5 again: the same loss."
    assert forgetful.fingerprint[:8] in told(wrong) and found.bug_of(wrong) != found.bug_of(found.broken)
    assert found.breakable() == ("die, go on", "save")


@pytest.mark.long
def test_a_run_that_survives_its_fault_is_an_error_and_no_folder_stays(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    nobody = SimpleNamespace(rank=99, step=0)
    monkeypatch.setattr(run, "Fault", lambda rank, step, kind: nobody)
    with warm_ranks() as warm, pytest.raises(RuntimeError, match="did not end the run: this is a bug in minidist"):
        run.interrupted(warm, run.config_of(2, 2, 0), 2, 2)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("minidist-failure")]


# ── a save, and the power fails ──────────────────────────────────────────────────────────────────────────────────────

WRITE, FLUSH, RENAME, FLUSH_FOLDER = ((method, RANKS) for method in ("write", "flush", "rename", "flush_folder"))
COMMIT = [
    *((method, MANIFEST) for method in ("write", "flush", "rename", "flush_folder")),
    ("flush_folder", FOLDER),
    *((method, LATEST) for method in ("write", "flush", "rename", "flush_folder")),
    *((method, OLD) for method in ("remove", "flush_folder", "remove")),
]


def saves() -> tuple[list, list]:
    """(the run, its recording) and the moments of the disk, each of the right save and of the wrong one."""
    results = recorded("failure").results
    return results["record"], results["moments_of"]


@pytest.mark.long
def test_in_the_right_order_every_power_cut_leaves_a_checkpoint_and_in_the_wrong_one_it_may_not():
    ((right, recording), (_, wrong)), (good, bad) = saves()
    orders = [[(group.method, group.about) for group in one.groups] for one in (recording, wrong)]
    assert orders == [[WRITE, FLUSH, RENAME, FLUSH_FOLDER, *COMMIT], [WRITE, RENAME, *COMMIT, FLUSH, FLUSH_FOLDER]]
    for one in (recording, wrong):
        assert all(len(group.operations) >= COUNT for group in one.groups if group.about == RANKS)
        assert one.contents(2 * SIZE).keys() == {MANIFEST, *(f"rank-{rank}.safetensors" for rank in range(COUNT))}
    renamed, old, new = 1 + orders[0].index(("rename", LATEST)), {SIZE}, {2 * SIZE}
    for place, moment in enumerate(good):
        assert moment.resumes == (old if place < renamed else old | new if place == renamed else new)
    first, last = 1 + orders[1].index(("rename", LATEST)), 1 + orders[1].index(FLUSH)
    assert [None in moment.resumes for moment in bad] == [first <= place < last for place in range(len(bad))]
    refused = [one.error for moment in bad for one in moment.left if one.step is None]
    assert all("bytes, and had" in error for error in refused)
    assert any("rank-0.safetensors has 0 bytes" in error for error in refused)
    commit = next(group for group in recording.groups if group.about == LATEST)
    logs = [list(rank.log) for rank in right.ranks]
    file = recording.root / "step-000008" / "rank-1.safetensors"
    logs[1].append(Operation(commit.operations[0].time + 1, "flush", (file,)))
    with pytest.raises(RuntimeError, match="a rank used the disk while rank 0 committed"):
        recording_of(logs, recording.root, SIZE, 2 * SIZE, "")
    with pytest.raises(RuntimeError, match="the injected bug does no harm"):
        disk_scene.harm(recording, good)


@pytest.mark.long
def test_the_recorded_disk_ends_as_the_real_one_and_minidist_itself_says_what_it_can_resume():
    _, (good, bad) = saves()
    files = dict(good[-1].read)
    assert resumed_from(files).files == files == good[-1].left[0].files and resumed_from(files).step == 2 * SIZE
    assert files[LATEST] == b"step-000008" and not [name for name in files if "step-000004" in name]
    ranks = [{name: content for name, content in one.read.items() if "rank" in name} for one in (good[-1], bad[-1])]
    assert ranks[0] == ranks[1]  # the same bytes, in whatever order they are flushed
    name = next(name for name in files if name.endswith("rank-1.safetensors"))
    assert resumed_from(files | {name: files[name][:-1]}).step is None
    del files[name]
    assert f"{name} is missing" in resumed_from(files).error and "there is no checkpoint" in resumed_from({}).error


@pytest.mark.long
def test_the_picture_of_a_save_says_in_every_moment_what_a_power_cut_leaves():
    found, (good, bad) = recorded("failure").animation, saves()[1]
    for scene, every in ((found.scenes[1], good), (found.broken, bad)):
        for frame, moment in zip(scene.frames, every, strict=False):
            steps, refused = moment.resumes - {None}, None in moment.resumes
            answer = [box.text for box in boxes(frame) if box.text.startswith("from step")]
            assert refused or numbers(answer[0])[0] == min(steps)
            assert ("Wrong" in frame.note) == refused and (scene.twin or frame.facts["refused"] == "0")
    tried, harmful = sum(len(moment.left) for moment in good), [None in moment.resumes for moment in bad]
    assert tried > len(good) and f"each of {tried} different power cuts" in told(found.scenes[1])
    assert found.broken.first_wrong == harmful.index(True)
    assert told(found.broken).startswith(f"In {sum(harmful)} of {len(bad)} moments")
    assert "rank-0.safetensors has 0 bytes, and had" in told(found.broken)
    assert "In 3 of them the old one is gone too" in told(found.broken)
