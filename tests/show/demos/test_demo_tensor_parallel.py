"""The demonstrations tp and sp: calls and bytes of the real run against the formula, and bugs that do harm."""

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from frames import boxes, check_inside

from minidist.analysis.steps import kind_of, traced_step
from minidist.show.demos import DEMONSTRATIONS
from minidist.show.demos.menu import SCENES
from minidist.show.demos.shared.runs import warm_ranks
from minidist.show.demos.tensor_parallel import attention, halves
from minidist.show.demos.tensor_parallel import scene as scenes
from minidist.show.demos.tensor_parallel.bug import drops_g, drops_gains
from minidist.show.demos.tensor_parallel.numbers import numbers_of
from minidist.show.demos.tensor_parallel.picture import SENDS
from minidist.show.demos.tensor_parallel.run import config_of
from minidist.show.demos.tensor_parallel.split import matches, split, whole
from minidist.show.player.scene import Box
from minidist.trace import Event
from minidist.train.layout import Layout

pytestmark = pytest.mark.long  # it records several training runs

RANKS, SIZE, LAYERS = 3, 10, 2
BYTES = "sent for them, all ranks"


@pytest.fixture(scope="module")
def animations():
    return {name: DEMONSTRATIONS[name](ranks=RANKS, size=SIZE, seed=2) for name in ("tp", "sp")}


@pytest.fixture(scope="module")
def warm():
    with warm_ranks() as found:
        yield found


def scene_of(animation, name: str):
    return next(scene for scene in animation.all_scenes if scene.name == name)


def lanes_of(animation):
    """The measured scenes, the first of them with the bug last."""
    return [one for one in animation.all_scenes if "here" in one.name] + [scene_of(animation, "broken, measured")]


def fills(frame) -> set:
    return {shape.fill for shape in frame.shapes if isinstance(shape, Box)}


def count(scene, name: str) -> int:
    return int(scene.frames[-1].facts[f"{name}s of activations"].split()[0])


def formula(scene) -> str:
    """The bytes by formula."""
    return next(value for name, value in scene.frames[0].facts.items() if name.startswith("formula"))


def test_scenes(animations):
    shared = ["as GPUs would"]
    assert [one.name for one in animations["tp"].scenes] == ["matrices", "heads", "as measured here", *shared]
    assert [one.name for one in animations["sp"].scenes] == ["tp + sp", "tp", "as measured here", "tp here", *shared]
    for name, animation in animations.items():
        assert tuple(scene.name for scene in animation.scenes) == SCENES[name]
        for scene in animation.scenes:
            assert scene.first_wrong is None and scene.questions and scene.cues
            assert not any("wrong" in fills(frame) for frame in scene.frames)
            if "here" in scene.name:
                assert "it matches the single-process run bit for bit" in scene.details
        assert len(animation.html()) < 400_000


def test_calls_and_bytes_are_those_of_the_formula(animations):
    alone = scene_of(animations["tp"], "as measured here")
    split, same = (scene_of(animations["sp"], name) for name in ("as measured here", "tp here"))
    assert count(alone, "all-reduce") == count(same, "all-reduce") == 4 * LAYERS + 1
    assert (count(split, "all-gather"), count(split, "reduce-scatter")) == (4 * LAYERS + 2, 4 * LAYERS + 1)
    for scene in (alone, split, same):
        assert scene.frames[-1].facts[BYTES] == formula(scene)
    elements = 8 * 66 * 12  # samples, tokens and width, which three ranks divide
    assert formula(alone) == f"{9 * 2 * (RANKS - 1) * 8 * elements:,} B"
    assert formula(split) == f"{(10 * 4 + 9 * 8) * (RANKS - 1) * elements:,} B"


def test_sp_holds_less(animations):
    held = [
        float(scene.frames[-1].facts["activations at peak"].split()[0].replace(",", ""))
        for scene in lanes_of(animations["sp"])[:2]
    ]
    assert held[0] < held[1]


def inside_of(log, name: str) -> list[Event]:
    """The collectives of a rank's forward or backward."""
    around = next(event for event in log if kind_of(event) == name)
    return [e for e in log if e.track == "communication" and around.start <= e.start < around.end]


@pytest.mark.parametrize("sp", [0, 1])
def test_compute_is_idle_while_forward_and_backward_communicate(warm, sp):
    run = warm.train(config_of(RANKS, SIZE, 2), Layout(tp=RANKS, sp=sp), trace=True, digests=False)
    step = traced_step([rank.log for rank in run.ranks])
    still = sum(e.end - e.start for name in ("forward", "backward") for e in inside_of(step[0], name))
    end = max(event.end for log in step for event in log if event.track == "step")
    scene = scenes.of_run("tp", run, 3 * end, "proof")  # next to a step that took three times as long
    assert scene.verdict == f"Rank 0's compute was idle for {still / end:.0%} of the step."
    assert scene.frames[-1].facts["compute idle"] == f"{still / 1e6:.1f} ms"
    assert scene.frames[-1].facts["time"] == f"{end / 1e6:.1f} of {end / 1e6:.1f} ms"


def test_g_sums_in_forward_and_f_in_backward(animations):
    scene, log = scene_of(animations["tp"], "as measured here"), traced_step(animations["tp"].logs)[0]
    notes = [frame.note for frame in scene.frames]
    forward = [note for note in notes if " g adds " in note]
    backward = [note for note in notes if " f adds " in note]
    assert len(forward) == 2 * LAYERS and all(note.startswith("Forward, ") for note in forward)
    assert len(backward) == 2 * LAYERS + 1 and all(note.startswith("Backward, ") for note in backward)
    run = SimpleNamespace(config=config_of(RANKS, SIZE, 2), layout=Layout(tp=RANKS))
    ends = {kind: next(event for event in log if kind_of(event) == kind).end for kind in ("forward", "backward")}
    named = [one for one in scenes._bars(log, run) if one.texts and one.texts[0] in ("f", "g")]
    assert {one.texts for one in named if one.end <= ends["forward"]} == {("g",)}
    assert {one.texts for one in named if one.start >= ends["forward"]} == {("f",)}
    assert len(named) == 4 * LAYERS + 1


def test_forward_gathers_tokens_and_sums_parts_and_backward_gradients(animations):
    scene, log = scene_of(animations["sp"], "as measured here"), traced_step(animations["sp"].logs)[0]
    for phase in ("forward", "backward"):
        words = [frame.note for frame in scene.frames if frame.note.startswith(f"{phase.capitalize()}")]
        words = [note for note in words if "is done" not in note]
        names = [
            e.name.split("(")[0] for e in inside_of(log, phase) if e.name.startswith(("all_gather", "reduce_scatter"))
        ]
        assert ["all_gather_into_tensor" if "gathers" in note else "reduce_scatter_tensor" for note in words] == names
        assert {"gradients" in note for note in words} == {phase == "backward"}


def test_activations_at_peak_exclude_everything_else(animations, warm):
    config = config_of(RANKS, SIZE, 2)
    for scene, sp in zip(lanes_of(animations["sp"])[:2], (1, 0), strict=True):
        memory = warm.train(config, Layout(tp=RANKS, sp=sp), digests=False).ranks[0].memory
        assert {frame.facts["activations at peak"] for frame in scene.frames} == {
            f"{memory['activations'] / 2**10:,.0f} KiB"
        }


def test_compute_is_split_where_the_rank_communicates(animations):
    """Pieces of compute and collectives follow each other without a gap, and the head follows the last g."""
    scene = animations["tp"]
    config = config_of(RANKS, SIZE, 2)
    for log in traced_step(scene.logs):
        parts = [part for part in halves.parts(log, config, Layout(tp=RANKS)) if part.phase == "forward"]
        assert all(one.event.end == next_one.event.start for one, next_one in pairwise(parts))
        places = [part.place for part in parts if part.kind == "all-reduce"]
        assert places == ["attention 0", "MLP 0", "attention 1", "MLP 1"]
        assert (parts[-1].kind, parts[-1].place) == ("compute", "head")


@pytest.mark.parametrize("sequence", [False, True])
def test_places_are_one_more_than_calls(sequence):
    for layers in (1, 3):
        between = sum(len(halves.places(phase, layers, sequence)) - 1 for phase in ("forward", "backward"))
        assert between == sum(halves.calls(layers, sequence).values())


def test_facts_grow_and_have_the_same_names(animations):
    for animation in animations.values():
        for scene in lanes_of(animation):
            assert len({tuple(frame.facts) for frame in scene.frames}) == 1
            for name in ("time", "compute idle"):
                values = [float(frame.facts[name].split()[0]) for frame in scene.frames]
                assert values == sorted(values)


def test_the_broken_ones_say_when_and_where(animations):
    for animation, where in ((animations["tp"], "embeddings.token.weight"), (animations["sp"], "norm1.gain")):
        trained = [scene for scene in animation.all_broken if scene.twin != attention.NAME]  # a bug of its own
        assert len(trained) == 3
        for scene in trained:
            assert "it first differs after step 0, in " in scene.details and "ulp" in scene.details
            assert where in scene.details and len(scene.verdict) < 80
        scene = lanes_of(animation)[-1]
        marked = [number for number, frame in enumerate(scene.frames) if "wrong" in fills(frame)]
        assert marked[0] <= scene.first_wrong and marked[-1] == len(scene.frames) - 1
        assert "skipped" in scene.frames[scene.first_wrong].note or "not summed" in scene.frames[scene.first_wrong].note
    good, *_, bad = lanes_of(animations["tp"])
    assert count(bad, "all-reduce") == count(good, "all-reduce") - 1
    assert bad.frames[-1].facts[BYTES] != formula(bad)


def test_every_scene_breaks_in_the_same_frame(animations):
    for animation in animations.values():
        for broken in animation.all_broken:
            assert len(broken.frames) == len(scene_of(animation, broken.twin).frames)
        assert {one.twin for one in animation.all_broken} >= {animation.scenes[0].name, "as measured here"}


def test_the_dials_change_the_step_and_not_what_is_sent(animations):
    for animation in animations.values():
        measured, scene = lanes_of(animation)[0], scene_of(animation, "as GPUs would")
        ends = {float(one.frames[-1].facts["time"].split()[0]) for one in scene.variants}
        assert len(ends) > 10
        assert {one.frames[-1].facts[BYTES] for one in scene.variants} == {measured.frames[-1].facts[BYTES]}


# ── the cut matrices ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", range(5))
def test_the_parts_join_to_one_process(warm, seed):
    numbers = numbers_of(2, seed)
    one = whole(warm, numbers)
    hidden = np.maximum((numbers.x_hat * numbers.gain) @ numbers.a, 0)
    assert np.array_equal(one.y, (hidden @ numbers.b).sum(0))  # GELU of these numbers is exact
    for sequence in (False, True):
        assert matches(split(warm, numbers, sequence), one)
    for sequence, broken in ((False, "g"), (True, "gain")):
        assert not matches(split(warm, numbers, sequence, broken), one)


def test_what_the_cut_mlp_sends(warm):
    """Two all-reduces of T C float64; with sp each becomes a float32 all-gather and a float64 reduce-scatter."""
    numbers = numbers_of(2, 0)
    assert [held.sent for held in split(warm, numbers, False)] == [(0, 96, 96, 192, 192)] * 2
    assert [held.sent for held in split(warm, numbers, True)] == [(24, 72, 96, 144, 168)] * 2  # the last: the gain's


def test_the_picture_of_the_matrices(animations):
    for animation in animations.values():
        for scene in (*(one for one in animation.scenes if one.code), animation.broken):
            check_inside(scene)
            assert all(one.id for frame in scene.frames for one in boxes(frame) if one.text not in ("", "f", "g"))
            sending = [frame for frame in scene.frames if boxes(frame, fill=SENDS)]
            small = int("γ" in " ".join(frame.note for frame in sending)) or int(
                any("small all-reduce" in frame.note for frame in scene.frames)
            )
            assert int(scene.frames[-1].facts["collectives"]) == len(sending) + small


def test_terms_of_the_sum_fly_to_both_ranks(animations):
    scene = scene_of(animations["tp"], "matrices")
    number = next(n for n, frame in enumerate(scene.frames) if "added up to y" in frame.note)
    for rank in range(2):
        name = f"terms of y[0, 0] of rank {rank}"
        assert len(boxes(scene.frames[number - 1], id=name)) == 1 and len(boxes(scene.frames[number], id=name)) == 3
    assert animations["tp"].broken.first_wrong == number
    broken = animations["tp"].broken
    cells = [
        one for one in boxes(broken.frames[number], fill="wrong") if one.id not in ("g", "the sum that is missing")
    ]
    assert len(cells) == int(broken.verdict.split()[4])


def test_the_first_wrong_thing_is_filled_and_what_follows_is_outlined(animations):
    """To the end: the bar of the sum that is missing, and every matrix computed from the wrong y."""
    broken = animations["tp"].broken
    for frame in broken.frames[broken.first_wrong :]:
        assert [one.text for one in boxes(frame, id="g", fill="wrong")] == ["g"]
        assert boxes(frame, text="g: no sum", fill="wrong")
    outlined = {one.id.split("[")[0] for one in boxes(broken.frames[-1], outline="wrong")}
    assert outlined == {"g", "dy", "dfull", "dz", "da", "db", "terms of dx", "dx"}
    assert not boxes(broken.frames[broken.first_wrong - 1], outline="wrong")
    last = animations["sp"].broken.frames[-1]
    assert boxes(last, text="no sum", fill="wrong") and len(boxes(last, outline="wrong")) == 6  # γ of two ranks


def test_outside_f_and_g_each_rank_has_its_tokens(animations):
    kept = [
        scene_of(animations["sp"], name).frames[-1].facts["tokens of x and y on each rank"]
        for name in ("tp + sp", "tp")
    ]
    assert kept == ["2 of 4", "4 of 4"]
    last = [boxes(scene.frames[-1]) for scene in (animations["sp"].scenes[0], animations["sp"].broken)]
    gains = [
        [[one.text for one in found if one.id.startswith("γ") and one.id.endswith(f"rank {rank}")] for rank in (0, 1)]
        for found in last
    ]
    assert gains[0][0] == gains[0][1] and gains[1][0] != gains[1][1] and len(gains[0][0]) == 3


@pytest.mark.parametrize(("count", "size", "seed"), [(2, 9, 5), (4, 8, 0)])
@pytest.mark.parametrize(("bug", "sp"), [(drops_g, 0), (drops_gains, 1)])
def test_the_bugs_do_harm(warm, bug, sp, count, size, seed):
    config, layout = config_of(count, size, seed), Layout(tp=count, sp=sp)
    assert warm.first_difference(config, warm.train(config, layout, bug), bug).step == 0
    warm.prove(config, warm.train(config, layout))  # without the bug, the run is right


@pytest.mark.parametrize("name", ["tp", "sp"])
def test_any_size_fits_except_the_smallest(name):
    for ranks in range(2, 9):
        config = config_of(ranks, 8 + ranks, 0)
        config.check(Layout(tp=ranks, sp=1))
        assert 8 + ranks <= config.width < 8 + 2 * ranks
    with pytest.raises(ValueError, match="size, the model's width, must be from 8 to 512, got 7"):
        DEMONSTRATIONS[name](size=7)
