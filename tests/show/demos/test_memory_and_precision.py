"""The demonstration of attention tile by tile: what is read and written, and a bug that does harm."""

import numpy as np
import pytest
from every_scene import EveryScene
from frames import numbers, told
from minidist.show.demos.flash.scene import steps_of
from recorded import recorded

from minidist.nn.attention import slow_memory
from minidist.nn.attention.tiled import tiles
from minidist.show.demos.flash.bug import merge_without_rescaling
from minidist.show.demos.flash.run import KINDS, WIDTH, run_of


@pytest.fixture(params=["flash"])
def shown(request):
    return recorded(request.param)


class TestScenes(EveryScene):
    pass


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
