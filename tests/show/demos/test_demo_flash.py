"""The demonstration flash: its counts are those of the counters and the formulas, its bug is where it is marked."""

from itertools import pairwise

import numpy as np
import pytest
from frames import boxes, told

from minidist.nn.attention import slow_memory
from minidist.nn.attention.tiled import tiles
from minidist.show.demos import DEMONSTRATIONS, flash
from minidist.show.demos.flash import picture, run
from minidist.show.demos.flash.bug import merge_without_rescaling
from minidist.show.demos.flash.run import KINDS, WIDTH, formula, run_of
from minidist.show.demos.flash.scene import steps_of
from minidist.show.player.scene import WIDTH as COLUMNS
from minidist.show.player.scene import Box, Label

SIZE = 21  # tiles of 4, the last one of a single token


@pytest.fixture(scope="module")
def animation():
    return DEMONSTRATIONS["flash"](size=SIZE, seed=1)


def numbers(text: str) -> list[int]:
    return [int(word.replace(",", "")) for word in text.split() if word.replace(",", "").isdigit()]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [8, 21, 48])
def test_the_counts_are_those_of_an_unwatched_memory(kind, length):
    found = run_of(kind, length, 3)
    q, k, v = np.random.default_rng(3).standard_normal((3, length, WIDTH))
    memory = slow_memory.SlowMemory(found.fast)
    if kind == "standard":
        output = slow_memory.standard_attention(memory, q, k, v)
    else:
        output, _ = slow_memory.tiled_attention(memory, q, k, v, found.tile, kind == "causal")
    assert found.traffic == (memory.reads, memory.writes) and found.output.tobytes() == output.tobytes()
    assert memory.most == found.fast == max(sum(moment.sizes) for moment in found.moments)
    assert found.error.max() < 1e-14


def test_formulas():
    assert formula("standard", 48, 8) == 4 * 48**2 + 4 * 48 * WIDTH
    assert formula("no mask", 21, 4) == 2 * 21 * WIDTH + 2 * 21 * WIDTH * 6 + 21
    assert formula("causal", 21, 4) == 2 * 21 * WIDTH + 2 * WIDTH * (4 + 8 + 12 + 16 + 20 + 21) + 21


def test_a_count_that_the_formula_does_not_have_is_an_error(monkeypatch):
    monkeypatch.setattr(run, "formula", lambda kind, length, tile: formula(kind, length, tile) + 1)
    with pytest.raises(RuntimeError, match="causal attention does not read and write what its formula says"):
        run_of("causal", 12, 0)


def test_the_last_frame_has_the_counts_of_the_formula(animation):
    for scene, kind in zip((*animation.scenes, animation.broken), (*KINDS, "causal"), strict=True):
        expected = formula(kind, SIZE, 4)
        facts = scene.frames[-1].facts
        assert numbers(facts["read and written"]) == [expected]
        (name,) = [name for name in facts if name.startswith("formula")]
        assert numbers(facts[name]) == [expected]
        counts = [numbers(frame.facts["read and written"])[0] for frame in scene.frames]
        assert counts[0] == 0 and all(before < after for before, after in pairwise(counts))
        labels = {shape.text for shape in scene.frames[-1].shapes if isinstance(shape, Label)}
        assert f"{expected:,}" in labels
        assert len({tuple(frame.facts) for frame in scene.frames}) == 1
        bars = [box for box in boxes(scene.frames[-1], h=1.6) if box.x >= picture.PANEL]
        elements = (picture.END - picture.PANEL) / formula("standard", SIZE, 4)
        other = formula("causal" if kind == "standard" else "standard", SIZE, 4)
        assert sum(bar.w for bar in bars) == pytest.approx(elements * (expected + other))


def test_tiles_pass_by_in_the_order_of_the_run(animation):
    parts = tiles(SIZE, 4)
    for scene, columns in ((animation.scenes[0], lambda i: i + 1), (animation.scenes[1], lambda i: len(parts))):
        tiles_of = [columns(i) for i in range(len(parts))]
        expected = [f"Q{i}" for i, count in enumerate(tiles_of) for _ in range(count + 1)]  # and while O is written
        lit = [[box.text for box in boxes(frame, fill=picture.QUERIES) if len(box.text) == 2] for frame in scene.frames]
        assert [text for texts in lit for text in texts] == expected
        now = [boxes(frame, fill=picture.SCORES, outline="ink") for frame in scene.frames]
        assert [len(cells) for cells in now].count(1) == sum(tiles_of)
        for frame, cells in zip(scene.frames, now, strict=True):  # the tile is below its keys, beside its queries
            for cell in cells:
                (key,) = boxes(frame, fill=picture.KEYS, h=0.9)
                (query,) = [box for box in boxes(frame, fill=picture.QUERIES) if box.x == 0]
                assert (key.x, query.y) == (cell.x, cell.y)
        assert len(boxes(scene.frames[-1], fill=picture.DONE)) == sum(tiles_of)
        assert len(boxes(scene.frames[-1], fill=picture.OUTPUT, w=3.2)) == len(parts)
    hatched = [s for s in animation.scenes[0].frames[0].shapes if isinstance(s, Label) and s.text == picture.HATCH]
    assert len(hatched) == 2 * 15  # two lines in each of the tiles above the diagonal


def test_the_fast_memory_is_full_while_a_full_tile_is_merged(animation):
    scene = animation.scenes[0]
    room = 4 * 4 * WIDTH + 16 + 8
    assert f"{room} of {room}" in scene.frames[1].facts["in fast memory"]
    held = [box for box in boxes(scene.frames[1], y=1, h=2.5) if box.fill]
    assert sum(box.w for box in held) == pytest.approx(picture.END - picture.PANEL)
    assert [box.mark for box in held] == ["q", "o", "l", "m", "k", "v", "s"]


def test_maxima_that_grow_are_counted():
    """Against the scores themselves."""
    found = run_of("causal", SIZE, 1)
    q, k, _ = np.random.default_rng(1).standard_normal((3, SIZE, WIDTH))
    scores = np.where(np.tri(SIZE, dtype=bool), q @ k.T, -np.inf)
    for moment, raised in steps_of(found):
        if moment.keys is not None and moment.keys.start:
            before = scores[moment.queries, : moment.keys.start].max(axis=1)
            assert raised == (scores[moment.queries, moment.keys].max(axis=1) > before).sum()
        else:
            assert raised == 0


def test_the_bug_is_marked_where_sums_are_not_rescaled(animation):
    assert animation.breakable() == ("causal", "no mask")  # the standard form has no tiles
    check_bug(animation.broken, animation.scenes[0])
    check_bug(animation.also_broken[0], animation.scenes[1])


def check_bug(scene, twin):
    right, bad = run_of(twin.name, SIZE, 1), run_of(twin.name, SIZE, 1, merge_without_rescaling)
    unscaled = [raised > 0 for _, raised in steps_of(right)]
    assert scene.first_wrong == 1 + unscaled.index(True)
    for number, frame in enumerate(scene.frames):
        cells = boxes(frame, fill="wrong", w=picture.CELL[0] - 0.4)
        assert len(cells) == sum(unscaled[:number])
        outputs = {box.text for box in boxes(frame, fill="wrong", w=3.2)}
        done = {box.text for box in boxes(frame, fill=picture.OUTPUT, w=3.2)} | outputs
        wrong = {f"O{i}" for i, rows in enumerate(tiles(SIZE, 4)) if bad.error[rows].max() > 1e-9}
        assert outputs == wrong & done
        assert ("not rescaled" in frame.note) == (number > 0 and unscaled[number - 1])
    told_wrong = {frame.note.split()[0] for frame in scene.frames if " is wrong: " in frame.note}
    assert told_wrong == outputs and not any(" is wrong: " in frame.note for frame in twin.frames)
    assert scene.frames[scene.first_wrong - 1].facts["error of these rows"] == "0"
    assert float(scene.frames[scene.first_wrong].facts["error of these rows"]) > 1e-3
    assert scene.twin == twin.name and len(scene.frames) == len(twin.frames)
    assert bad.error.max() > 0.01 > 1e-14 > right.error.max()
    assert "first differs after step 0" in told(scene) and "rows are wrong" in told(scene)


def test_a_bug_that_does_nothing_is_an_error(monkeypatch):
    monkeypatch.setattr(flash, "merge_without_rescaling", slow_memory.merge)
    with pytest.raises(RuntimeError, match="changes no bit of the output: choose another size or seed"):
        DEMONSTRATIONS["flash"](size=SIZE)


def test_everything_is_in_the_picture():
    for size in (12, 512):
        animation = DEMONSTRATIONS["flash"](size=size)
        for scene in animation.all_scenes:
            for shape in (shape for frame in scene.frames for shape in frame.shapes):
                if isinstance(shape, Box):
                    assert 0 <= shape.x <= shape.x + shape.w <= COLUMNS
                    assert 0 <= shape.y <= shape.y + shape.h <= scene.height
                elif isinstance(shape, Label) and shape.anchor == "start":
                    assert shape.x + len(shape.text) <= COLUMNS
            assert len(scene.frames) <= 1 + run.MOST_TILES * (run.MOST_TILES + 1)


def test_the_log_has_every_moment(animation):
    (log,) = animation.logs
    assert [event.name for event in log[:3]] == ["merge rows 0–3, keys 0–3", "store rows 0–3", "store rows 0–3"]
    assert all(event.start <= event.end for event in log)


def test_sizes():
    with pytest.raises(ValueError, match="size, the tokens, must be from 12 to 512, got 11"):
        DEMONSTRATIONS["flash"](size=11)
    with pytest.raises(ValueError, match="size, tokens, must be from 1 to 512, got 513"):
        DEMONSTRATIONS["flash"](size=513)
    with pytest.raises(ValueError, match="the demonstration flash shows 1 rank, not 2"):
        DEMONSTRATIONS["flash"](ranks=2)
