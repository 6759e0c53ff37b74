"""The demonstrations of clusters, deadlocks and failures: what they show is what the clock, parent and disk say."""

from collections import Counter

import multiprocess
import pytest
from choosing import long
from every_scene import EveryScene
from frames import arrows, boxes, last, numbers, told
from recorded import recorded

from minidist.comm.failures import RankFailed
from minidist.show.demos import DEMONSTRATIONS
from minidist.show.demos.cluster.scene import uplink_full
from minidist.show.demos.deadlock.run import FITS
from minidist.show.demos.failure.power_cut import resumed_from
from minidist.show.demos.failure.recording import RANKS
from minidist.train.checkpoint.commit import LATEST


@pytest.fixture(params=[long(name) for name in ("cluster", "failure")] + ["deadlock"])
def shown(request):
    return recorded(request.param)


class TestScenes(EveryScene):
    pass


# ── clusters: dp=2, tp=4 on the clocks of one node, of two, and of two behind a congested uplink ─────────────────────


@pytest.mark.long
def test_on_every_cluster_the_same_is_sent_and_a_scene_shows_the_times_bytes_and_loads_of_the_clock():
    found, results = recorded("cluster").animation, recorded("cluster").results
    right, bad = results["steps_of"][0], results["step_on"]
    sent = [Counter((f.source, f.destination, f.nbytes) for f in step.replayed.flows) for step in (*right, *bad)]
    assert sent == [sent[0]] * 5
    assert right[-1].topology.nodes == (0, 0, 0, 0, 1, 1, 1, 1) and bad[-1].topology.nodes == (0, 0, 1, 1) * 2
    for step in (*right, *bad):  # the rates of the picture add up to the bytes of the clock
        for edge, use in step.replayed.links.items():
            seconds = step.replayed.seconds
            carried = step.load.mean(edge, 0.0, seconds) * seconds * step.topology.links[edge].bandwidth
            assert carried == pytest.approx(use.nbytes, rel=1e-6, abs=1e-3), edge  # messages of 0 s are left out
        assert max(max(load.values(), default=0.0) for load in step.load.loads) <= 1 + 1e-9
    for scene, step in zip(found.all_scenes, (*right, bad[1], bad[0]), strict=True):
        end = scene.frames[-1]
        assert end.facts["time"] == f"{step.seconds * 1e6:,.0f} µs" and end.at == 1e6 * step.seconds
        assert last(scene, "between nodes") == [round(step.crossing_bytes(kind) / 1e6, 1) for kind in (True, False)]
        if step is not right[0]:
            assert f"full {uplink_full(step):.0%} of it" in told(scene)


# ── deadlocks ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("ranks", [3, long(2), long(8)])
def test_the_cycle_is_the_one_that_the_parent_finds_and_no_process_is_left_behind(ranks):
    children = {*multiprocess.active_children()}
    animation = DEMONSTRATIONS["deadlock"](ranks=ranks, size=FITS + 1, seed=ranks)
    assert {*multiprocess.active_children()} <= children
    broken, everybody = animation.broken, {f"{rank} waits for {(rank + 1) % ranks}" for rank in range(ranks)}
    assert all("bit for bit" in told(scene) and not arrows(scene.frames[-1]) for scene in animation.scenes)
    assert {*arrows(broken.frames[-2])} == {*arrows(broken.frames[-1])} == everybody  # from the calls, and as reported
    ring = " → ".join(map(str, [*range(ranks), 0]))
    assert f"waits for rank 1 to take {8 * (FITS + 1):,} bytes" in told(broken) and ring in told(broken)


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
    found = recorded("failure").animation
    scene, wrong = found.scenes[0], found.also_broken[0]
    assert scene.frames[KILLED].facts["steps"] == f"{KILLED} of {3 * SIZE}"
    assert scene.frames[KILLED + 2].facts["steps lost"] == "3" and f"(SHA-256 {one.reference[:8]})" in told(scene)
    saved = [box.id for box in boxes(scene.frames[-1]) if box.id.startswith("checkpoint of step")]
    assert saved == [f"checkpoint of step {step}" for step in (4, 8, 12)]
    # The loss of a step is that of the weights before it: step 5 has the right one with forgotten moments, too.
    assert wrong.first_wrong == KILLED + 5 and forgetful.fingerprint[:8] in told(wrong)


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
    for scene, every in ((found.scenes[1], good), (found.broken, bad)):
        for frame, moment in zip(scene.frames, every, strict=False):
            steps, refused = moment.resumes - {None}, None in moment.resumes
            answer = [box.text for box in boxes(frame) if box.text.startswith("from step")]
            assert refused or numbers(answer[0])[0] == min(steps)
            assert ("Wrong" in frame.note) == refused and (scene.twin or frame.facts["refused"] == "0")
    assert told(found.broken).startswith(f"In {end - begin} of {len(bad)} moments")
    files = dict(good[-1].read)  # the recorded disk ends as the real one
    assert resumed_from(files).files == files == good[-1].left[0].files and resumed_from(files).step == 2 * SIZE
    name = next(name for name in files if name.endswith("rank-1.safetensors"))
    assert resumed_from(files | {name: files[name][:-1]}).step is None
    del files[name]
    assert f"{name} is missing" in resumed_from(files).error and "there is no checkpoint" in resumed_from({}).error
