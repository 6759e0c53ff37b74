"""The demonstrations of memory and precision: bytes, FLOPs and bits of real runs, and bugs that do harm."""

import re

import numpy as np
import pytest
from every_scene import EveryScene
from frames import boxes, last, numbers, told
from recorded import recorded

from minidist.nn.attention import slow_memory
from minidist.nn.attention.tiled import tiles
from minidist.nn.gpt import GPT
from minidist.nn.precision.formats import BFLOAT16, FLOAT16
from minidist.nn.recompute import MODES
from minidist.show.demos.bf16.run import Synced
from minidist.show.demos.flash.bug import merge_without_rescaling
from minidist.show.demos.flash.run import KINDS, WIDTH, run_of
from minidist.show.demos.flash.scene import steps_of
from minidist.show.demos.recompute.run import bytes_of_block
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.trainer import run


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.long) for name in ("recompute", "bf16")] + ["flash"])
def shown(request):
    return recorded(request.param)


class TestScenes(EveryScene):
    pass


# ── recomputation ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.long
def test_recomputation_holds_and_adds_what_the_formulas_say():
    """By hand, per token: a product counts 2 FLOPs for each weight, and backward is two forwards."""
    found = recorded("recompute")
    right = found.trained("train_logging_memory")
    width, context = right[0].config.width, right[0].config.context
    core = 2 * (2 * context * width)  # queries with keys, and attention weights with values
    block = 2 * (12 * width**2) + core
    step = 3 * (4 * block + 2 * width * 256)
    most = []
    for mode, one, again in zip(MODES, right, (0, core, block), strict=True):
        scene = found.scene(mode)
        share = round(100 * 4 * again / step, 1)
        assert last(scene, "recomputed share") == last(scene, "by formula") == [share]
        assert last(scene, "recomputed so far") == ([4, 4] if again else [])
        most.append(one.ranks[0].memory["activations"])
        assert last(scene, "most so far")[0] == pytest.approx(most[-1] / (1e6 if most[-1] > 1e6 else 1e3), abs=0.05)
        kept = 4 * bytes_of_block(one.config, mode)
        assert last(scene, "4 blocks")[0] == pytest.approx(kept / (1e6 if kept > 1e6 else 1e3), abs=0.05)
    assert most == sorted(most, reverse=True)


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
def test_a_model_with_one_more_block_holds_as_much_more_as_the_formula_says(ranks, mode):
    def config(layers: int) -> TrainConfig:
        return TrainConfig(layers=layers, heads=4, width=16, context=16, global_batch=4, micro_batch=2, steps=1,
                           dropout=0.1, precision="bf16")  # fmt: skip

    held = [run(ranks(2), config(layers), Layout(dp=2, recompute=mode)).ranks[0].memory for layers in (2, 3)]
    assert held[1]["activations"] - held[0]["activations"] == bytes_of_block(config(2), mode)


# ── a weight's bits ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.long
@pytest.mark.parametrize("place", range(4), ids=["bf16", "fp16", "broken bf16", "broken fp16"])
def test_the_bits_and_numbers_are_those_of_the_run(place):
    found = recorded("bf16")
    one, format = found.trained("train_recording")[place], (BFLOAT16, FLOAT16)[place % 2]
    scene = found.scene(("bf16", "fp16", "broken bf16", "broken fp16")[place])
    index = int(re.search(r"gain (\d+)", scene.title)[1])
    synced = [entry for entry in one.ranks[0].log if isinstance(entry, Synced)]
    first = GPT(one.config.model, seed=one.config.seed).blocks[0].norm1.gain.data[index]
    masters = np.array([first, *(entry.masters[index] for entry in synced)], np.float32)
    codes = np.array([format.encode(masters[:1])[0], *(entry.stored[index] for entry in synced)], format.dtype)
    stored = format.decode(codes).astype(float)
    assert (format.encode(masters) == codes).all()  # the nearest number of 16 bits, and no other
    before = (stored if scene.twin else masters.astype(float))[:-1]  # without a master, it is the 16-bit number
    updates = [0.0, *(masters[1:].astype(float) - before)]
    moved = [0, *np.cumsum(codes[1:] != codes[:-1])]
    for step, frame in enumerate(scene.frames):
        bits = [box for box in boxes(frame) if box.text in ("0", "1")]
        text = "".join(box.text for box in sorted(bits, key=lambda box: (box.y, box.x)))
        assert text == f"{masters.view(np.uint32)[step]:032b}{int(codes[step]):016b}"
        assert numbers(frame.facts["update"])[0] == pytest.approx(updates[step], abs=1e-6)  # six decimals
        assert numbers(frame.facts["changes of the stored number"]) == [moved[step]]
    if scene.twin:
        assert scene.verdict.startswith(f"This weight ends at {stored[-1]:g} instead of ")
        assert moved[-1] <= last(found.scene(scene.twin), "changes")[0]


# ── attention tile by tile ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("length", [21, 48])
@pytest.mark.parametrize("kind", KINDS)
def test_the_counts_are_those_of_an_unwatched_memory_and_of_the_formula(kind, length):
    found = run_of(kind, length, 3)
    q, k, v = np.random.default_rng(3).standard_normal((3, length, WIDTH))
    memory = slow_memory.SlowMemory(found.fast)
    if kind == "standard":
        output = slow_memory.standard_attention(memory, q, k, v)
        expected = 4 * length**2 + 4 * length * WIDTH
    else:
        output, _ = slow_memory.tiled_attention(memory, q, k, v, found.tile, kind == "causal")
        seen = sum(part.stop if kind == "causal" else length for part in tiles(length, found.tile))
        expected = 2 * length * WIDTH + 2 * WIDTH * seen + length
    assert found.traffic == (memory.reads, memory.writes) and sum(found.traffic) == expected
    assert found.output.tobytes() == output.tobytes() and found.error.max() < 1e-14
    assert memory.most == found.fast == max(sum(moment.sizes) for moment in found.moments)
    if length == 48:  # what lectures show
        scene = recorded("flash").scene(kind)
        counts = [numbers(frame.facts["read and written"])[0] for frame in scene.frames]
        assert counts == sorted(counts) and counts[0] == 0 and counts[-1] == expected
        assert scene.verdict.startswith(f"{expected:,} elements are read and written")


@pytest.mark.parametrize("kind", ["causal", "no mask"])
def test_the_bug_is_marked_where_sums_are_not_rescaled(kind):
    """Against the scores themselves."""
    right, bad = run_of(kind, 48, 0), run_of(kind, 48, 0, merge_without_rescaling)
    q, k, _ = np.random.default_rng(0).standard_normal((3, 48, WIDTH))
    scores = np.where(np.tri(48, dtype=bool) | (kind == "no mask"), q @ k.T, -np.inf)
    raised = []
    for moment, count in steps_of(right):
        keys, expected = moment.keys, 0
        if keys is not None and keys.start:
            before = scores[moment.queries, : keys.start].max(axis=1)
            expected = (scores[moment.queries, keys].max(axis=1) > before).sum()
        assert count == expected
        raised.append(count > 0)
    scene = recorded("flash").scene(f"broken {kind}")
    assert scene.first_wrong == 1 + raised.index(True)
    assert ["not rescaled" in frame.note for frame in scene.frames[1:]] == raised
    assert f"{(bad.error.max(axis=1) > 1e-9).sum()} of 48 rows are wrong" in told(scene)
