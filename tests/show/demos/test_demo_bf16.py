"""The demonstration of bf16: its bits against NumPy's, what is stored against the format, and the bug."""

import numpy as np
import pytest

from minidist.nn.precision.formats import BFLOAT16, FLOAT16
from minidist.show.demos import bf16
from minidist.show.demos.bf16 import picture
from minidist.show.demos.bf16.run import STEPS, Weight
from minidist.show.demos.shared.runs import warm_ranks
from minidist.show.player.scene import Box, Label
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def animation():
    return bf16.animation(2, 16, 0)


def bits_of(frame, line: int) -> str:
    """The bits written in a line."""
    boxes = [shape for shape in frame.shapes if isinstance(shape, Box) and shape.y == line and shape.text]
    return "".join(box.text for box in sorted(boxes, key=lambda box: box.x))


def number_of(frame, line: float) -> float:
    (text,) = (s.text for s in frame.shapes if isinstance(s, Label) and s.y == line and s.x == picture.RIGHT)
    return float(text)


def test_the_bits_are_those_of_the_numbers(animation):
    for scene, format in zip((*animation.scenes, animation.broken), (BFLOAT16, FLOAT16, BFLOAT16), strict=True):
        for frame in scene.frames:
            master, stored = np.uint32([int(bits_of(frame, 1), 2)]).view(np.float32), int(bits_of(frame, 4), 2)
            assert len(bits_of(frame, 1)) == 32 and len(bits_of(frame, 4)) == 16
            assert number_of(frame, 0.5) == pytest.approx(float(master[0]), abs=1e-9)
            assert format.encode(master)[0] == stored  # the nearest number of 16 bits, and no other
            assert number_of(frame, 3.5) == pytest.approx(float(format.decode(np.uint16([stored]))[0]), abs=1e-9)


def test_a_master_remembers_what_sixteen_bits_forget(animation):
    rough, fine, lost = (
        int(s.frames[-1].facts["changes of the stored number"]) for s in (*animation.scenes, animation.broken)
    )
    assert lost <= rough < fine and rough > 0
    masters = [[bits_of(frame, 1) for frame in scene.frames] for scene in (animation.scenes[0], animation.broken)]
    assert masters[0][:2] == masters[1][:2] and masters[0][2:] != masters[1][2:]
    assert len(set(masters[0])) > STEPS / 2  # it changes even if the stored number does not
    for scene in animation.scenes:
        assert (
            scene.first_wrong is None
            and "After 24 steps it matches the single-process run bit for bit" in scene.verdict
        )
        assert {frame.facts[next(k for k in frame.facts if "formula" in k)] for frame in scene.frames} == {
            frame.facts[next(k for k in frame.facts if "distance to the next" in k)] for frame in scene.frames
        }


def test_the_bug_is_marked_where_bits_are_lost(animation):
    scene = animation.broken
    assert scene.first_wrong == 1 and "after step 0, in " in scene.details and "ulps apart" in scene.details
    assert scene.twin == "bf16" and "instead of" in scene.verdict
    (other,) = animation.also_broken
    assert other.twin == "fp16" and animation.breakable() == ("bf16", "fp16")
    assert other.first_wrong == 1 and "after step " in other.details
    assert int(other.frames[-1].facts["changes of the stored number"]) > 0  # a finer format loses less of each update
    for frame in scene.frames:
        lost = [shape for shape in frame.shapes if isinstance(shape, Box) and shape.fill == "wrong" and shape.y == 1]
        assert len(lost) == (16 if "1" in bits_of(frame, 1)[16:] else 0)
    assert not any(getattr(shape, "fill", None) == "wrong" for shape in scene.frames[0].shapes)


def numbers_of(scene) -> tuple[np.ndarray, np.ndarray]:
    """What the optimizer left and what is stored, in every frame, from the bits shown there."""
    masters = np.uint32([int(bits_of(frame, 1), 2) for frame in scene.frames]).view(np.float32)
    codes = np.uint16([int(bits_of(frame, 4), 2) for frame in scene.frames])
    return masters.astype(float), (FLOAT16 if "fp16" in scene.name else BFLOAT16).decode(codes).astype(float)


def test_an_update_goes_from_the_weight_before_to_what_the_optimizer_left(animation):
    """The weight before is the master or, without one, the 16-bit number."""
    for scene in (*animation.scenes, animation.broken):
        masters, stored = numbers_of(scene)
        before = stored if scene is animation.broken else masters
        shown = [float(frame.facts["update"]) for frame in scene.frames]
        assert shown == pytest.approx([0, *(masters[1:] - before[:-1])], abs=1e-6)
    assert (stored != masters).any()  # so that it makes a difference


def test_the_distance_is_to_the_neighbour_in_the_direction_of_the_update(animation):
    for scene in (*animation.scenes, animation.broken):
        bits = 10 if scene.name == "fp16" else 7
        _, stored = numbers_of(scene)
        for frame, number in zip(scene.frames[1:], stored, strict=False):
            up = float(frame.facts["update"]) > 0
            below_one = number < 1 or (number == 1 and not up)
            (shown,) = (value for name, value in frame.facts.items() if name.startswith("distance to the next"))
            assert shown == f"{2.0 ** -(bits + below_one):.6f}"
    assert stored[0] == 1  # from where the two sides differ


def test_rounded_up_means_stored_above_the_master(animation):
    seen = set()
    for scene in (*animation.scenes, animation.broken):
        for frame, master, stored in zip(scene.frames, *numbers_of(scene), strict=True):
            (text,) = (s.text for s in frame.shapes if isinstance(s, Label) and (s.x, s.y) == (picture.RIGHT, 2.5))
            way = "up" if stored > master else "down"
            assert text == "nothing to drop" if stored == master else text.endswith((f"rounded {way}", "to even"))
            seen.add(text.split()[-1])
    assert {"up", "down"} <= seen


def test_curves_show_the_numbers_of_their_own_run(animation):
    for scene in animation.all_scenes:
        masters, stored = numbers_of(scene)
        found = {}  # (mark, step) -> height
        for box in (s for s in scene.frames[-1].shapes if isinstance(s, Box) and s.y > 5 and s.mark in "sm!"):
            found[box.mark, int((box.x - picture.FROM) / picture.PITCH + 1e-9)] = box.y + box.h / 2
        own = "!" if scene.twin else "m"
        steps = range(1, STEPS + 1)
        slope, zero = np.polyfit(masters[1:], [found[own, step] for step in steps], 1)
        assert slope < 0  # what is larger is higher
        right, _ = numbers_of(animation.only(scene.twin or scene.name).scenes[0])
        for mark, numbers in ((own, masters), ("s", stored), ("m", right)):
            assert [found[mark, step] for step in steps] == pytest.approx(zero + slope * numbers[1:], abs=1e-3)


def test_what_is_asked_is_what_happened(animation):
    for scene in animation.scenes:
        (question,), changes = scene.questions, [frame.facts["changes of the stored number"] for frame in scene.frames]
        first = changes.index("1")
        assert question.choices[question.answer] == ("in the first step" if first == 1 else f"after {first} steps")
    (question,) = animation.broken.questions
    _, stored = numbers_of(animation.broken)
    assert question.choices[question.answer].endswith(f" {stored[-1]:g}") and all(s.cues for s in animation.all_scenes)


def test_every_frame_fits(animation):
    for scene in animation.all_scenes:
        assert len({tuple(frame.facts) for frame in scene.frames}) == 1 and len(scene.frames) == STEPS + 1
        for frame in scene.frames:
            for shape in frame.shapes:
                assert 0 <= shape.y <= scene.height
                assert isinstance(shape, Label) or 0 <= shape.x <= shape.x + shape.w <= 72


def test_a_weight_in_steps_of_its_format():
    values = np.float32([1, 1 + 2**-9, 1 + 2**-8 + 2**-10, 0.75])
    weight = Weight(BFLOAT16, values, BFLOAT16.encode(values))
    assert [weight.dropped(step) for step in range(4)] == [0, 0.25, 0.625, 0]
    assert [weight.number(step) for step in range(4)] == [1, 1, 1 + 2**-7, 0.75]
    assert [weight.distance(step, up=True) for step in range(4)] == [2**-7, 2**-7, 2**-7, 2**-8]
    assert [weight.distance(step, up=False) for step in range(4)] == [2**-8, 2**-8, 2**-7, 2**-8]
    assert [weight.moves(step) for step in range(4)] == [0, 0, 1, 2]
    assert list(picture._lines(BFLOAT16, 0.99, 1.01)) == [0.9921875, 0.99609375, 1, 1.0078125]
    assert 1.0 in picture._lines(FLOAT16, 0.98, 1.01) and len(picture._lines(FLOAT16, 0.98, 1.01)) <= picture.FEW


@pytest.mark.parametrize("ranks", (3, 4))
def test_the_bug_does_harm_on_more_ranks(ranks):
    config = TrainConfig(
        layers=1, heads=1, width=5, context=8, global_batch=ranks, micro_batch=1, steps=2, precision="bf16", seed=ranks
    )
    bug = bf16.train_without_masters
    with warm_ranks() as warm:
        place = warm.first_difference(config, warm.train(config, Layout(dp=ranks, zero=1), bug), bug)
    assert place.step == 0 and place.ulps > 0
