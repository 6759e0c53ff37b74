"""The demonstration of bf16: bits against NumPy's, what is stored against the format, and the bug."""

import numpy as np
import pytest

from minidist.layout import Layout
from minidist.nn.formats import BFLOAT16, FLOAT16
from minidist.show.demos import bf16, bitboard
from minidist.show.demos.bitboard import Weight
from minidist.show.demos.runs import warm_ranks
from minidist.show.player.scene import Box, Label
from minidist.train import TrainConfig


@pytest.fixture(scope="module")
def film():
    return bf16.film(2, 16, 0)


def bits_of(frame, line: int) -> str:
    """The bits that are written in a line."""
    boxes = [shape for shape in frame.shapes if isinstance(shape, Box) and shape.y == line and shape.text]
    return "".join(box.text for box in sorted(boxes, key=lambda box: box.x))


def number_of(frame, line: float) -> float:
    (text,) = (s.text for s in frame.shapes if isinstance(s, Label) and s.y == line and s.x == bitboard.RIGHT)
    return float(text)


def test_the_bits_are_those_of_the_numbers(film):
    for scene, format in zip((*film.scenes, film.broken), (BFLOAT16, FLOAT16, BFLOAT16), strict=True):
        for frame in scene.frames:
            master, stored = np.uint32([int(bits_of(frame, 1), 2)]).view(np.float32), int(bits_of(frame, 4), 2)
            assert len(bits_of(frame, 1)) == 32 and len(bits_of(frame, 4)) == 16
            assert number_of(frame, 0.5) == pytest.approx(float(master[0]), abs=1e-9)
            assert format.encode(master)[0] == stored  # the nearest number of 16 bits, and no other
            assert number_of(frame, 3.5) == pytest.approx(float(format.decode(np.uint16([stored]))[0]), abs=1e-9)


def test_a_master_remembers_what_sixteen_bits_forget(film):
    rough, fine, lost = (int(s.frames[-1].facts["moves of the stored number"]) for s in (*film.scenes, film.broken))
    assert lost <= rough < fine and rough > 0
    masters = [[bits_of(frame, 1) for frame in scene.frames] for scene in (film.scenes[0], film.broken)]
    assert masters[0][:2] == masters[1][:2] and masters[0][2:] != masters[1][2:]
    assert len(set(masters[0])) > bf16.STEPS / 2  # it moves, whatever is stored
    for scene in film.scenes:
        assert scene.parts_at is None and "After 24 steps the same as one process, bit for bit" in scene.verdict
        assert {frame.facts[next(k for k in frame.facts if "formula" in k)] for frame in scene.frames} == {
            frame.facts[next(k for k in frame.facts if "to the next" in k)] for frame in scene.frames
        }


def test_the_bug_is_marked_where_bits_are_lost(film):
    scene = film.broken
    assert scene.parts_at == 1 and "After step 0 " in scene.verdict and "ulps away" in scene.verdict
    for frame in scene.frames:
        lost = [shape for shape in frame.shapes if isinstance(shape, Box) and shape.fill == "wrong" and shape.y == 1]
        assert len(lost) == (16 if "1" in bits_of(frame, 1)[16:] else 0)
    assert not any(getattr(shape, "fill", None) == "wrong" for shape in scene.frames[0].shapes)


def test_every_frame_fits(film):
    for scene in (*film.scenes, film.broken):
        assert len({tuple(frame.facts) for frame in scene.frames}) == 1 and len(scene.frames) == bf16.STEPS + 1
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
    assert list(bitboard._lines(BFLOAT16, 0.99, 1.01)) == [0.9921875, 0.99609375, 1, 1.0078125]
    assert 1.0 in bitboard._lines(FLOAT16, 0.98, 1.01) and len(bitboard._lines(FLOAT16, 0.98, 1.01)) <= bitboard.FEW


@pytest.mark.parametrize("ranks", (3, 4))
def test_the_bug_does_harm_on_more_ranks(ranks):
    config = TrainConfig(
        layers=1, heads=1, width=5, context=8, global_batch=ranks, micro_batch=1, steps=2, precision="bf16", seed=ranks
    )
    bug = bf16.train_without_masters
    with warm_ranks() as warm:
        place = warm.parting(config, warm.train(config, Layout(dp=ranks, zero=1), bug), bug)
    assert place.step == 0 and place.ulps > 0
