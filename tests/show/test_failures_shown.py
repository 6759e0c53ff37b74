"""The demonstrations of clusters, deadlocks and failures: what they show is what the clock, parent and disk say."""

from collections import Counter

import multiprocess
import pytest
from choosing import long
from recorded import fact, numbers, recorded
from stories import words

from minidist.comm.failures import RankFailed
from minidist.show.demos import DEMONSTRATIONS
from minidist.show.demos.cluster.story import uplink_full
from minidist.show.demos.deadlock.run import FITS
from minidist.show.demos.failure.power_cut import resumed_from
from minidist.show.demos.failure.recording import RANKS
from minidist.train.checkpoint.commit import LATEST

# ── clusters: dp=2, tp=4 on the clocks of one node, of two, and of two behind a congested uplink ─────────────────────


@pytest.mark.long
def test_on_every_cluster_the_same_is_sent_and_a_scene_shows_the_times_bytes_and_loads_of_the_clock():
    found, results = recorded("cluster").animation, recorded("cluster").results
    right, bad = results["steps_of"][0], results["step_on"]
    sent = [Counter((f.source, f.destination, f.nbytes) for f in step.replayed.flows) for step in (*right, *bad)]
    assert sent == [sent[0]] * 5
    assert right[-1].topology.nodes == (0, 0, 0, 0, 1, 1, 1, 1) and bad[-1].topology.nodes == (0, 0, 1, 1) * 2
    for step in (*right, *bad):  # the rates of the picture add up to the bytes of the clock
        for edge in step.replayed.links:
            seconds = step.replayed.seconds
            carried = step.load.mean(edge, 0.0, seconds) * seconds * step.topology.links[edge].bandwidth
            nbytes = sum(flow.nbytes for flow in step.replayed.flows if edge in flow.route)
            assert carried == pytest.approx(nbytes, rel=1e-6, abs=1e-3), edge  # messages of 0 s are left out
        assert max(max(load.values(), default=0.0) for load in step.load.loads) <= 1 + 1e-9
    stories = [*found.right, *(story for story in found.scenes if story.broken)]
    for story, step in zip(stories, (*right[1:], right[0], *bad), strict=True):
        assert f"{step.seconds * 1e6:,.0f} µs" in words(story, story.ends)
        crossing = sum(step.crossing_bytes(kind) for kind in (True, False))
        assert fact(story, "between the nodes") == [round(crossing / 1e6, 1)]
        assert fact(story, "uplink") == [round(100 * uplink_full(step))]
    assert all(step.crossing_bytes(True) for step in bad)  # the bug: tensor parallelism crosses


# ── deadlocks ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("ranks", [3, long(2), long(8)])
def test_the_cycle_is_the_one_that_the_parent_finds_and_no_process_is_left_behind(ranks):
    children = {*multiprocess.active_children()}
    animation = DEMONSTRATIONS["deadlock"](ranks=ranks, size=FITS + 1, seed=ranks)
    assert {*multiprocess.active_children()} <= children
    broken, everybody = animation.find("send first", broken=True), {(rank, (rank + 1) % ranks) for rank in range(ranks)}
    for story in animation.scenes:
        arrows = [mark for mark in story.marks if "head" in mark.still and mark.at(story.ends)["opacity"]]
        arrows = [mark for mark in arrows if mark.now["fill"] != "ink"]  # those of the ring show who sends to whom
        assert len(arrows) == (len(everybody) if story.broken else 0)
        assert bool(story.broken) == any(mark.at(story.ends)["fill"] == "wrong" for mark in arrows)
        assert story.broken or "bit for bit" in story.verdict
        assert words(story, story.ends).count("done") == (0 if story.broken else ranks)
    assert f"waits for rank 1 to take {8 * (FITS + 1):,} bytes" in broken.details
    assert fact(animation.find("odd recv first"), "waiting") == [0, ranks]


# ── a rank dies: 4 ranks, a checkpoint every 4 steps, 7 steps taken before the death ─────────────────────────────────

COUNT, SIZE = 4, 4
KILLED = 2 * SIZE - 1


@pytest.mark.long
def test_a_run_that_lost_a_rank_goes_on_in_another_layout_and_the_picture_tells_what_is_lost():
    one, forgetful = recorded("failure").results["interrupted"][0]
    assert isinstance(one.error, RankFailed) and one.error.rank == COUNT - 1 and "SIGKILL" in str(one.error)
    assert one.reference == one.fingerprint and {rank.fingerprint for rank in one.resumed.ranks} == {one.reference}
    assert one.before.saved == [SIZE] and one.after.saved == [2 * SIZE, 3 * SIZE]
    assert one.lost == range(SIZE, KILLED) and one.before.ended_by(one.fault.rank) == KILLED
    assert one.after.losses[0][: len(one.lost)] == one.before.losses[one.fault.rank][SIZE:KILLED]
    assert forgetful.reference == one.reference != forgetful.fingerprint
    story, wrong = (recorded("failure").animation.find("die, go on", broken) for broken in (False, True))
    assert story.verdict == f"SHA-256 {one.reference[:8]}; never interrupted: {one.reference[:8]}."
    assert wrong.verdict == f"SHA-256 {forgetful.fingerprint[:8]}; never interrupted: {one.reference[:8]}."
    assert story.beats[2].says.startswith("Steps lost: 3.") and f"checkpoint: {SIZE} steps" in words(story, story.ends)
    again = [mark for mark in story.marks if mark.kind == "line" and mark.still["width"] == 10]
    assert len(again[0].still["points"]) == len(one.after.losses[0])  # the second pass, in a colour of its own


# ── a save, and the power fails ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.long
def test_in_the_right_order_every_power_cut_leaves_a_checkpoint_and_in_the_wrong_one_it_may_not():
    found, results = recorded("failure").animation, recorded("failure").results
    recordings, (good, bad) = [one for _, one in results["record"]], results["moments_of"]
    orders = [[(group.method, group.about) for group in one.groups] for one in recordings]
    renamed = 1 + orders[0].index(("rename", LATEST))
    for place, moment in enumerate(good):
        steps = {SIZE} if place < renamed else {SIZE, 2 * SIZE} if place == renamed else {2 * SIZE}
        assert moment.resumes == steps
    begin, end = 1 + orders[1].index(("rename", LATEST)), 1 + orders[1].index(("flush", RANKS))
    assert [None in moment.resumes for moment in bad] == [begin <= place < end for place in range(len(bad))]
    for story, every in zip((found.find("save"), found.find("save", broken=True)), (good, bad), strict=True):
        for beat, moment in zip(story.beats, every, strict=True):
            (told,) = [text for text in words(story, beat.at) if text.startswith("If the power fails now")]
            steps, refused = moment.resumes - {None}, None in moment.resumes
            assert ("refused" in told) == refused and set(numbers(told)) == steps
        cuts = [one.step for moment in every for one in moment.left]
        assert numbers(story.verdict)[-1 if story.broken else 0] == len(cuts)
        assert not story.broken or numbers(story.verdict)[0] == cuts.count(None)
    files = dict(good[-1].read)  # the recorded disk ends as the real one
    assert resumed_from(files).files == files == good[-1].left[0].files and resumed_from(files).step == 2 * SIZE
    name = next(name for name in files if name.endswith("rank-1.safetensors"))
    assert resumed_from(files | {name: files[name][:-1]}).step is None
    del files[name]
    assert f"{name} is missing" in resumed_from(files).error and "there is no checkpoint" in resumed_from({}).error
