"""Memory, 16 bits, exact sums and tiled attention on the stage: what runs held, and what formulas say, by hand."""

from fractions import Fraction
from math import frexp, log2

import numpy as np
import pytest
from recorded import recorded
from stories import shown, words

from minidist.nn import exact
from minidist.nn.attention import slow_memory
from minidist.nn.attention.tiled import tiles
from minidist.nn.gpt import GPT
from minidist.nn.precision.formats import BFLOAT16, FLOAT16
from minidist.nn.recompute import MODES
from minidist.show.demos import DEMONSTRATIONS
from minidist.show.demos.bf16 import story as bf16_story
from minidist.show.demos.bf16.run import STEPS, Synced
from minidist.show.demos.exact import bits_without_room, pair
from minidist.show.demos.exact.run import factors
from minidist.show.demos.flash.run import KINDS, WIDTH, merge_without_rescaling, run_of
from minidist.show.demos.flash.story import tell
from minidist.show.demos.shared.memory_log import last_steps
from minidist.show.demos.zero.story import RANKS, tanks


def told(name: str):
    """An animation, and its training runs on several ranks, in order."""
    found = recorded(name)
    return found.animation, [run for _, run in found.runs if len(run.ranks) > 1]


def test_a_tank_has_16_bytes_of_a_parameter_and_stages_shard_12_2_and_2_of_them():
    for ranks, story in zip(RANKS, tanks(4).variants, strict=True):
        amounts = (16, 4 + 12 / ranks, 2 + 14 / ranks, 16 / ranks)
        assert {f"{7 * amount:.3g} GB" for amount in amounts} <= {*words(story, story.ends)}
        foot, heights = 540, {}
        for mark in story.marks:
            stage, _, kind = mark.thing.partition(": ")
            if kind:
                heights[stage] = heights.get(stage, 0) + mark.at(story.ends)["h"]
        assert [height * 120 / 480 for height in heights.values()] == pytest.approx([7 * amount for amount in amounts])
        line = next(mark for mark in story.marks if mark.kind == "line")
        assert (foot - line.still["points"][0][1]) * 120 / 480 == pytest.approx(80, abs=0.05)


@pytest.mark.long
def test_peaks_of_each_stage_are_in_order_and_the_bug_is_red_where_parameters_are_gathered():
    """4 ranks hold shards of 4, 8 and 4 bytes per parameter when a step is over."""
    animation, runs = told("zero")
    right, bad = animation.scenes[1:]
    elements = sum(one.size for one in GPT(runs[0].config.model).parameters())
    for one, sizes in zip(runs, [(4, 8, 12), (4, 2, 3), (4, 2, 3), (1, 2, 3)], strict=False):
        held, memory = last_steps(one.ranks[0].log).at(1), one.ranks[0].memory
        of_each = [held[kind] / elements for kind in ("parameters", "optimizer", "gradients")]
        assert of_each == pytest.approx(sizes, abs=0.02)
        assert f"peak {memory['peak'] / 1e3:,.0f} kB" in words(right, right.ends)
    peaks = [int(word[5:-3].replace(",", "")) for word in words(right, right.ends) if word.startswith("peak")]
    assert len(peaks) == 4 and peaks == sorted(peaks, reverse=True)
    red = [mark for mark in bad.marks if mark.thing == "stale parameters"]
    assert len(red) >= 3 and all(mark.at(bad.ends)["opacity"] >= 0.5 for mark in red)  # so that a terminal shows it
    assert not any(mark.at(0)["opacity"] for mark in red) and "wrong" in bad.verdict


def test_recomputation_holds_and_adds_what_the_formulas_say():
    """Counted by hand, per token: a product counts 2 FLOPs for each weight, and backward is two forwards."""
    animation, runs = told("recompute")
    config = runs[0].config
    core = 2 * (2 * config.context * config.width)  # queries with keys, and attention weights with values
    block = 2 * (12 * config.width**2) + core
    step = 3 * (4 * block + 2 * config.width * 256)
    most, shown = [], words(animation.scenes[0], animation.scenes[0].ends)
    for one, again in zip(runs[: len(MODES)], (0, core, block), strict=True):
        most.append(one.ranks[0].memory["activations"])
        assert f"{most[-1] / 1e3:,.0f} kB" in shown and f"+{4 * again / step:.0%} compute" in shown
    assert most == sorted(most, reverse=True)


@pytest.mark.parametrize("place", range(4), ids=["bf16", "broken bf16", "fp16", "broken fp16"])
def test_the_ball_is_where_the_run_stored_the_weight(place):
    animation, runs = told("bf16")
    story, format = animation.scenes[place], (BFLOAT16, FLOAT16)[place // 2]
    entries = [entry for entry in runs[place].ranks[0].log if isinstance(entry, Synced)]
    first = [entry.stored for entry in runs[0].ranks[0].log if isinstance(entry, Synced)]
    index = int((np.diff(np.array(first), axis=0) != 0).sum(axis=0).argmax())
    gain = GPT(runs[place].config.model, seed=runs[place].config.seed).blocks[0].norm1.gain.data[index]
    masters = np.array([gain, *(entry.masters[index] for entry in entries)], np.float32)
    codes = np.array([format.encode(masters[:1])[0], *(entry.stored[index] for entry in entries)], format.dtype)
    assert (format.encode(masters) == codes).all()  # the nearest number of 16 bits, and no other
    stored = format.decode(codes).astype(float)
    ball = next(mark for mark in story.marks if mark.thing.startswith("the weight in"))
    heights = [ball.at(0.2 + bf16_story.PACE * step)["y"] + 22 for step in range(STEPS + 1)]
    both = story, animation.twin(story)
    lines = [[mark.still["points"] for mark in one.marks if mark.kind == "line"] for one in both]
    rungs = [points[0][1] for points in lines[0] if len(points) == 2]
    assert all(min(abs(height - rung) for rung in rungs) < 0.1 for height in heights)
    assert np.array_equal(np.diff(heights) > 0, np.diff(stored) < 0)
    assert str((codes[1:] != codes[:-1]).sum()) in words(story, story.ends)
    if not story.broken:  # the master's dot, on the same scale
        assert lines[0][: len(rungs)] == lines[1][: len(rungs)]  # both panes of a comparison have one ladder
    elif place == 1:
        assert (codes == codes[0]).all()  # bf16 without a master: it never leaves its rung


def sums_shown(story) -> tuple[list[str], list[str]]:
    """The three sums as floats and the three on the grid, at the end."""
    parts = [mark.still["text"] for mark, _ in shown(story, story.ends) if mark.still.get("size") == 60]
    numbers = ["".join(two) for two in zip(parts[::2], parts[1::2], strict=True)]
    return numbers[:3], numbers[3:]


@pytest.mark.parametrize(("count", "seed"), [(4, 1), (5, 3), (6, 0), (8, 2)])
def test_float_sums_differ_those_on_the_grid_agree_and_without_room_they_differ_again(count, seed):
    animation, (right, _) = recorded("exact", None, count, seed).animation, pair(count, seed)
    floats, grid = sums_shown(animation.find("sum"))
    decimals = len(grid[0].partition(".")[2])
    for order, shown_sum in zip(right.orders, floats, strict=True):
        total = np.float32(0)
        for number in order:
            total += right.terms[number]
        assert shown_sum == f"{total:.{decimals}f}"
    step = Fraction(2) ** (frexp(right.terms.max())[1] - 24 + int(np.ceil(log2(count))))
    total = sum(round(Fraction(float(term)) / step) for term in right.terms) * step
    assert len({*floats}) == 3 and grid == [f"{float(total):.{decimals}f}"] * 3
    broken = animation.find("sum", broken=True)
    assert sums_shown(broken)[0] == floats and len({*sums_shown(broken)[1]}) > 1
    fallen = [
        [mark for mark, _ in shown(story, story.ends) if mark.kind == "box" and mark.keys[0][1]["fill"] == "wrong"]
        for story in (animation.find("sum"), broken)
    ]
    assert not fallen[0] and fallen[1]


def test_numbers_are_red_where_a_row_alone_has_other_bits_than_in_its_batch():
    animation, (x, w) = recorded("exact").animation, factors(0)
    batch = x @ w
    differ = sum((x[row : row + 1] @ w)[0, column] != batch[row, column] for row, column in np.ndindex(batch.shape))
    for story in (story for story in animation.scenes if story.name == "product"):
        red = [mark.now["x"] for mark, _ in shown(story, story.ends) if mark.now["fill"] == "wrong"]
        counts = [sum(x < 640 for x in red), sum(x > 640 for x in red)]
        assert counts[0] == differ and bool(counts[1]) is bool(story.broken)
        assert {*map(str, counts)} <= {*words(story, story.ends)}


def test_no_sum_is_called_exact_that_is_not(monkeypatch):
    monkeypatch.setattr(exact, "bits_of", bits_without_room)
    with pytest.raises(RuntimeError, match="a sum on the grid is not exact"):
        DEMONSTRATIONS["exact"]()


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
    other = run_of("causal" if kind == "standard" else "standard", length, 3)
    facts = tell(found, other).beats[-1].facts
    assert facts["read and written"] == f"{expected:,} elements" and facts["by formula"] == f"{expected:,}"


@pytest.mark.parametrize("place", [0, 1], ids=["causal", "no mask"])
def test_rows_are_red_exactly_where_the_output_is_wrong(place):
    kind = KINDS[place]
    bad = run_of(kind, 48, 0, merge_without_rescaling)
    story = recorded("flash").animation.find(kind, broken=True)
    for number, part in enumerate(tiles(48, bad.tile)):
        row = [mark for mark in story.marks if mark.thing.startswith(f"tile {number}, ")]
        wrong = bool((bad.error[part] > 1e-9).any())
        assert any(mark.at(story.ends)["fill"] == "wrong" for mark in row) == wrong
    assert story.verdict == f"The output is off by up to {bad.error.max():.1g}."
