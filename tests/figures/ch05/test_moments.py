"""A step moment by moment: what is unsharded has the full width, a shard its share of it."""

from figures.ch05.moments import UnitState, draw, most_unsharded

REST, RUNS, COMES = (
    UnitState("sharded", "sharded"),
    UnitState("unsharded", "sharded"),
    UnitState("in flight", "sharded"),
)
MOMENTS = [
    ("at rest", [REST, REST]),
    ("block 0", [RUNS, COMES]),
    ("block 1", [REST, UnitState("unsharded", "unsharded")]),
]


def test_most_unsharded():
    assert (
        most_unsharded(MOMENTS) == 1 and most_unsharded(MOMENTS[:1]) == 0 and most_unsharded([("", [RUNS, RUNS])]) == 2
    )


def test_widths():
    (axes,) = draw(["block 0", "block 1"], MOMENTS, 1 / 4, "a step").axes
    filled = [c for c in axes.collections if len(c.get_facecolor())]
    widths = [round(float(c.get_paths()[0].get_extents().width) / 0.86, 9) for c in filled]
    assert sorted(set(widths)) == [0.25, 1.0]
    assert widths.count(1.0) == 3 + 1  # unsharded three times, and in flight once
    assert sum(c.get_alpha() == 0.55 for c in filled) == 1
