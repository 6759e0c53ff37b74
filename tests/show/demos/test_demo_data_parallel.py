"""The demonstration dp: what its scenes claim is what was traced, replayed and trained, and its bug does harm."""

from dataclasses import replace

import numpy as np
import pytest
from frames import boxes, check_inside, labels

from minidist.analysis.steps import step_length, traced_step
from minidist.analysis.time.overlap import hidden_share
from minidist.nn.gpt import GPT
from minidist.parallel.data import fill_buckets
from minidist.show.demos import DEMONSTRATIONS
from minidist.show.demos.data_parallel import drift, lecture, run
from minidist.show.demos.data_parallel.bug import DROPPED_BUCKET, drops_a_bucket
from minidist.show.demos.data_parallel.picture import Axis, network
from minidist.show.demos.data_parallel.steps import Step, full_times
from minidist.show.demos.shared.gpus import DIALS, last_step_of, on_gpus
from minidist.show.demos.shared.lanes import COLOURS, HAIRLINE
from minidist.show.demos.shared.runs import warm_ranks
from minidist.train.config import TrainConfig
from minidist.verify.comparison import ONE_PROCESS

pytestmark = pytest.mark.long  # it records several training runs

RANKS, SIZE = 3, 12
SYNCS = ["overlapped", "bucketed", "naive"]
HIDDEN, EXPOSED = COLOURS["hidden"], COLOURS["communication"]
START = [dial.values[dial.start] for dial in DIALS]


@pytest.fixture(scope="module")
def animation():
    return DEMONSTRATIONS["dp"](ranks=RANKS, size=SIZE, seed=1)


@pytest.fixture(scope="module")
def warm():
    with warm_ranks() as found:
        yield found


@pytest.fixture(scope="module")
def logs(animation):
    """Of the overlapped run, its last step."""
    return [last_step_of(log) for log in animation.logs]


def parameters(config: TrainConfig) -> int:
    return sum(parameter.size for parameter in GPT(config.model).parameters())


def fills(frame) -> set:
    return {box.fill for box in boxes(frame)}


def values(scene, name: str) -> list[float]:
    return [float(frame.facts[name].split()[0]) for frame in scene.frames]


def test_three_ways_the_evidence_the_weights_and_a_twin_of_each(animation):
    assert [scene.name for scene in animation.scenes] == [*SYNCS, "measured", "weights"]
    assert [scene.twin for scene in animation.all_broken] == [scene.name for scene in animation.scenes]
    for scene in animation.scenes:
        assert scene.first_wrong is None and "The bits of one process" in scene.verdict
        assert "bit for bit" in scene.details and scene.questions and scene.cues
        assert not any("wrong" in fills(frame) for frame in scene.frames)
    assert len({scene.verdict.split()[-1] for scene in animation.scenes}) == 1  # the fingerprint
    assert f"bucket {DROPPED_BUCKET} is never sent" in animation.bug


def test_everything_fits(animation):
    for scene in animation.all_scenes:
        for one in scene.variants or (scene,):
            check_inside(one)
    assert len(animation.html()) < 400_000


def test_bytes_are_those_of_the_formula(animation):
    expected = f"{2 * (RANKS - 1) * 8 * (parameters(run.config_of(RANKS, SIZE, 1)) + 1):,} B"
    for scene in animation.scenes[:3]:
        assert f"send {expected} in a step" in scene.details and scene.details.endswith(f"with the loss: {expected}.")


def test_nothing_that_is_sent_after_backward_is_hidden(animation):
    for scene in animation.scenes[1:3]:
        for one in scene.variants:
            assert HIDDEN not in fills(one.frames[-1]) and one.frames[-1].facts["hidden"] == "0.0 ms (0%)"
    assert all(HIDDEN in fills(one.frames[-1]) for one in animation.scenes[0].variants)


def test_the_picture_is_the_replay(animation, logs):
    """Messages are as wide as they are long, and what the facts say follows from the replayed log."""
    step = traced_step(on_gpus(logs, *START).logs)
    shown = animation.scenes[0]
    facts = shown.frames[-1].facts
    assert facts["time"].split(" of ")[1] == f"{step_length(step) / 1e6:.1f} ms"
    assert facts["hidden"].endswith(f"({hidden_share(step[0]):.0%})")
    found, axis = Step.of("overlapped", on_gpus(logs, *START).logs), Axis(20 * 10**6)
    drawn = network(axis, found, 3, 2, found.end)
    for event, number in zip(found.sums, range(1, 100), strict=False):
        own = [box for box in drawn if box.id.split(",")[0] == f"all-reduce {number}"]
        long = axis.x(event.end) - axis.x(event.start)
        assert 0.7 * long <= sum(box.w for box in own) <= max(long, 2 * HAIRLINE)
        assert own[0].x == axis.x(event.start)
        assert all((box.fill == HIDDEN) == (box.x < axis.x(found.backward_ends)) for box in own)


def test_buckets_leave_when_backward_has_filled_them(logs):
    """With a network that takes time no message leaves before its bucket is full, and the first one at that moment."""
    full = full_times(logs, START[2])
    assert full == sorted(full) and len(full) == len(Step.of("overlapped", logs).sums)
    for link in DIALS[0].values:
        sums = Step.of("overlapped", on_gpus(logs, link, *START[1:]).logs).sums
        assert sums[0].start == full[0] and all(one.start >= time for one, time in zip(sums, full, strict=True))


def test_facts_grow_and_scenes_share_a_clock(animation):
    for scene in (*animation.scenes[:3], *animation.all_broken[:3]):
        for one in scene.variants:
            assert [frame.at for frame in one.frames] == sorted({frame.at for frame in one.frames})
            for name in ("all-reduces ended", "on the network", "hidden", "time"):
                assert values(one, name) == sorted(values(one, name)) and values(one, name)[0] == 0
    counts = [scene.frames[-1].facts["all-reduces ended"].split(" of ") for scene in animation.scenes[:3]]
    assert all(ended == everything for ended, everything in counts)
    overlapped, bucketed, naive = (int(ended) for ended, _ in counts)
    broken = int(animation.broken.frames[-1].facts["all-reduces ended"].split()[0])
    assert naive == 52 > overlapped == bucketed == broken + 1  # four layers of 12 parameters, and four more
    for scene in animation.all_broken[:3]:  # the last words are not those of the race that is right
        assert "the ranks' weights differ" in scene.frames[-1].note
    ends = [{scene.variants[i].frames[-1].at for scene in animation.scenes[:3]} for i in range(24)]
    assert all(len(end) == 1 for end in ends)  # the axis of a position ends with its longest step


def test_the_race_has_three_ends(animation):
    for scene in animation.scenes[:3]:
        ends = [text for text in labels(scene.frames[-1]) if text.endswith(" ms")]
        assert len(ends) == 3 and f"{values(animation.scenes[2], 'time')[-1]:.1f} ms" in ends


def test_answers_are_computed():
    assert [lecture.place(value, (0.1, 0.5)) for value in (0, 0.1, 0.3, 0.9)] == [0, 1, 1, 2]


def test_the_question_about_hiding_has_the_answer_of_its_position(animation):
    answers = set()
    for one in animation.scenes[0].variants:
        share = int(one.frames[-1].facts["hidden"].split("(")[1].removesuffix("%)"))
        (question,) = one.questions
        assert question.reason.startswith(f"{share}%") and question.answer == 1 + (share >= 50)
        answers.add(question.answer)
        assert 0 < question.frame < len(one.frames) - 1
    assert answers == {1, 2}  # turning the dials changes it


def test_every_twin_goes_wrong_and_says_where(animation):
    for scene in animation.all_broken[:4]:
        for one in scene.variants or (scene,):
            marked = [number for number, frame in enumerate(one.frames) if "wrong" in fills(frame)]
            assert marked == list(range(one.first_wrong, len(one.frames))) and one.first_wrong > 0
    scene = animation.broken
    assert "it first differs after step 0, in blocks." in scene.details and "ulp" in scene.details
    assert scene.verdict == f"{RANKS} ranks, {RANKS} different models."
    assert "it is never sent" in scene.frames[scene.first_wrong].note
    assert boxes(scene.frames[-1], outline="wrong")  # the optimizer's
    right = animation.scenes[0].frames
    assert [frame.at for frame in right[: scene.first_wrong]] == [f.at for f in scene.frames[: scene.first_wrong]]


def test_the_weights_drift_apart_in_the_broken_run_alone(warm):
    config = replace(run.config_of(2, SIZE, 1), steps=4)
    layout = run.layouts_of(2, parameters(config))["overlapped"]
    one = warm.train(config, ONE_PROCESS, drift.train_keeping_weights)
    right, broken = (
        drift.distances(warm.train(config, layout, function), one)
        for function in (drift.train_keeping_weights, drift.train_broken_keeping_weights)
    )
    assert right.shape == broken.shape == (2, 4)
    assert not right.any() and (np.diff(broken) > 0).all() and (broken > 0).all()


@pytest.mark.parametrize(("count", "size", "seed"), [(2, 13, 1), (4, 8, 0)])
def test_the_bug_does_harm_in_its_bucket_alone(warm, count, size, seed):
    config = run.config_of(count, size, seed)
    layouts = run.layouts_of(count, parameters(config))
    broken = [warm.train(config, layout, drops_a_bucket) for layout in layouts.values()]
    place = warm.first_difference(config, broken[0], drops_a_bucket)
    buckets = fill_buckets(GPT(config.model).parameters()[::-1], parameters(config) / run.BUCKETS)
    assert place.step == 0 and place.name in [parameter.name for parameter in buckets[DROPPED_BUCKET - 1]]
    assert len({rank.fingerprint for rank in broken[0].ranks}) == count
    assert len({one.fingerprint for one in broken}) == 1  # the same bug, however the sums are taken


def test_what_it_does_not_accept():
    with pytest.raises(ValueError, match="size, the model's width, must be from 8 to 512, got 4"):
        DEMONSTRATIONS["dp"](size=4)
    with pytest.raises(ValueError, match="the demonstration dp shows 2 to 8 ranks, not 1"):
        DEMONSTRATIONS["dp"](ranks=1)
