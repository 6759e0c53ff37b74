"""A step moment by moment: what is whole is drawn over the full width, a shard over its part."""

from figures.moments import Seen, draw, most_whole

REST, RUNS, COMES = Seen("shard", "shard"), Seen("whole", "shard"), Seen("coming", "shard")
MOMENTS = [("at rest", [REST, REST]), ("block 0", [RUNS, COMES]), ("block 1", [REST, Seen("whole", "whole")])]


def test_most_whole():
    assert most_whole(MOMENTS) == 1 and most_whole(MOMENTS[:1]) == 0 and most_whole([("", [RUNS, RUNS])]) == 2


def test_widths():
    (axes,) = draw(["block 0", "block 1"], MOMENTS, 1 / 4, "a step").axes
    filled = [c for c in axes.collections if len(c.get_facecolor())]
    widths = [round(float(c.get_paths()[0].get_extents().width) / 0.86, 9) for c in filled]
    assert sorted(set(widths)) == [0.25, 1.0]
    assert widths.count(1.0) == 3 + 1  # three times whole, and once coming
    assert sum(c.get_alpha() == 0.55 for c in filled) == 1
