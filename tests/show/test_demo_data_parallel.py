"""The demonstration dp: what its animation claims is what was traced, and its bug does harm."""

import pytest

from minidist.analysis.steps import kind_of, traced_step
from minidist.analysis.time.overlap import hidden_share
from minidist.nn.gpt import GPT
from minidist.parallel.data import fill_buckets
from minidist.show.demos import DEMONSTRATIONS
from minidist.show.demos.data_parallel import run
from minidist.show.demos.data_parallel import scene as scenes
from minidist.show.demos.data_parallel.bug import DROPPED_BUCKET, drops_a_bucket
from minidist.show.demos.shared.lanes import COLOURS
from minidist.show.demos.shared.runs import warm_ranks
from minidist.show.player.scene import Box
from minidist.train.config import TrainConfig

RANKS, SIZE = 3, 12
SENT, FORMULA = "sent per step, all ranks", "formula 2 (N−1) 8 (P+1), incl. loss"


@pytest.fixture(scope="module")
def animation():
    return DEMONSTRATIONS["dp"](ranks=RANKS, size=SIZE, seed=1)


@pytest.fixture(scope="module")
def warm():
    with warm_ranks() as found:
        yield found


def parameters(config: TrainConfig) -> int:
    return sum(parameter.size for parameter in GPT(config.model).parameters())


def fills(frame) -> set:
    return {shape.fill for shape in frame.shapes if isinstance(shape, Box)}


def test_three_ways_and_a_broken_one(animation):
    assert [scene.name for scene in animation.scenes] == ["overlapped", "bucketed", "naive"]
    for scene in animation.scenes:
        assert scene.first_wrong is None and "it matches the single-process run bit for bit" in scene.verdict
        assert not any("wrong" in fills(frame) for frame in scene.frames)
    assert f"bucket {DROPPED_BUCKET} is never sent" in animation.bug


def test_bytes_are_those_of_the_formula(animation):
    expected = 2 * (RANKS - 1) * 8 * (parameters(run.config_of(RANKS, SIZE, 1)) + 1)
    for scene in (*animation.scenes, animation.broken):
        facts = scene.frames[0].facts
        assert facts[FORMULA] == f"{expected:,} B"
        assert (facts[SENT] == facts[FORMULA]) == (scene is not animation.broken)


def test_nothing_that_is_sent_after_backward_is_hidden(animation):
    for scene in animation.scenes[1:]:
        assert COLOURS["hidden"] not in fills(scene.frames[-1])
        assert scene.frames[-1].facts["of which hidden"] == "0.0 ms (0%)"


def test_bars_are_the_spans_of_the_trace(animation):
    for log in traced_step(animation.logs):
        bars = [one for one in scenes._bars(log) if one.lane == "communication"]
        spent = sum(one.end - one.start for one in bars)
        hidden = sum(one.end - one.start for one in bars if one.colour == COLOURS["hidden"])
        assert spent == sum(event.end - event.start for event in log if event.track == "communication")
        assert hidden / spent == pytest.approx(hidden_share(log))


def test_facts_grow_and_have_the_same_names(animation):
    for scene in (*animation.scenes, animation.broken):
        assert len({tuple(frame.facts) for frame in scene.frames}) == 1
        for name in ("all-reduces ended", "communication so far", "of which hidden", "time"):
            values = [float(frame.facts[name].split()[0]) for frame in scene.frames]
            assert values == sorted(values) and values[0] == 0
        ended, _, all_of_them = scene.frames[-1].facts["all-reduces ended"].split()
        assert ended == all_of_them
    counts = [scene.frames[-1].facts["all-reduces ended"] for scene in (*animation.scenes, animation.broken)]
    overlapped, bucketed, naive, broken = (int(count.split()[0]) for count in counts)
    assert naive == 52 > overlapped == bucketed == broken + 1  # four layers of 12 parameters, and four more


def test_notes_say_what_rank_0_does_at_that_time(animation):
    log = traced_step(animation.logs)[0]
    end = next(event.end for event in log if event.track == "step")
    phases = {
        kind: next(event for event in log if kind_of(event) == kind) for kind in ("forward", "backward", "optimizer")
    }
    begins = (
        ("forward", "Forward: "),
        ("backward", ("Backward completes", "All-reduce")),
        ("optimizer", "Every rank updates"),
    )
    for phase, begin in begins:
        event = phases[phase]
        for time in (event.start, (event.start + event.end) // 2, event.end - 1):
            assert scenes._note(log, time, end, False).startswith(begin)
    between = phases["backward"].end, phases["optimizer"].start - 1
    assert all(scenes._note(log, time, end, False).startswith("Backward is done") for time in between)
    losses = [event for event in log if event.track == "communication"][-1]
    assert phases["optimizer"].end <= losses.start
    for time in (phases["optimizer"].end, (losses.start + losses.end) // 2):
        assert scenes._note(log, time, end, False) == "The ranks sum their losses."
    assert scenes._note(log, end, end, False).startswith("The step has ended")


def test_the_broken_one_says_when_and_where(animation):
    scene = animation.broken
    assert "it first differs after step 0, in blocks." in scene.verdict and "ulp" in scene.verdict
    assert f"{RANKS} different sets of weights" in scene.verdict
    assert "it is never sent" in scene.frames[scene.first_wrong].note
    marked = [number for number, frame in enumerate(scene.frames) if "wrong" in fills(frame)]
    assert marked == list(range(scene.first_wrong, len(scene.frames)))
    assert any(box.outline == "wrong" for box in scene.frames[-1].shapes if isinstance(box, Box))  # the optimizer's


@pytest.mark.parametrize(("size", "seed"), [(8, 0), (9, 5), (13, 1)])
@pytest.mark.parametrize("count", [2, 4])
def test_the_bug_does_harm_in_its_bucket_alone(warm, count, size, seed):
    config = run.config_of(count, size, seed)
    layout = run.layouts_of(count, parameters(config))["overlapped"]
    broken = warm.train(config, layout, drops_a_bucket)
    place = warm.first_difference(config, broken, drops_a_bucket)
    buckets = fill_buckets(GPT(config.model).parameters()[::-1], parameters(config) / run.BUCKETS)
    assert place.step == 0 and place.name in [parameter.name for parameter in buckets[DROPPED_BUCKET - 1]]
    assert len({rank.fingerprint for rank in broken.ranks}) == count


def test_what_it_does_not_accept():
    with pytest.raises(ValueError, match="size, the model's width, must be from 8 to 512, got 4"):
        DEMONSTRATIONS["dp"](size=4)
    with pytest.raises(ValueError, match="the demonstration dp shows 2 to 8 ranks, not 1"):
        DEMONSTRATIONS["dp"](ranks=1)
