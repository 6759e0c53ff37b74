"""Stacked bars of memory: every segment begins where the one below it ends."""

from figures.memory_bars import draw, stacks

MEMORIES = {
    "dp=2": {"parameters": 400, "gradients": 1200, "optimizer": 800, "activations": 100, "peak": 2500},
    "zero=3": {"parameters": 250, "gradients": 600, "optimizer": 400, "activations": 100, "peak": 1300},
}


def test_segments_are_stacked():
    found = stacks(MEMORIES)
    assert found["dp=2"] == [
        ("parameters", 0, 400),
        ("gradients", 400, 1600),
        ("optimizer", 1600, 2400),
        ("activations", 2400, 2500),
    ]
    assert stacks(MEMORIES, ("optimizer",))["zero=3"] == [("optimizer", 0, 400)]


def test_bars_have_the_bytes():
    (axes,) = draw(MEMORIES, "memory").axes
    heights = sorted(round(bar.get_height() * 1e6) for bar in axes.patches if bar.get_height())
    assert heights == sorted(v for memory in MEMORIES.values() for kind, v in memory.items() if kind != "peak")
    assert [label.get_text() for label in axes.get_xticklabels()] == list(MEMORIES)
