from figures.ch13 import step_lanes

from minidist.analysis.clock.replay import Replayed


def test_a_lane_for_each_rank_with_what_it_computes():
    replayed = Replayed(
        None, [[], []], [], {}, [[(0.0, 1e-6), (3e-6, 4e-6)], [(1e-6, 2e-6)]], {"step 0": (0.0, 4e-6)}, 4e-6
    )
    figure = step_lanes.draw({"a node": replayed})
    (axes,) = figure.axes
    spans = [[round(path.vertices[:, 0].max() - path.vertices[:, 0].min()) for path in lane.get_paths()]
             for lane in axes.collections]  # fmt: skip
    assert spans == [[1, 1], [1]]
    assert axes.get_title(loc="left") == "a node: 4 µs"
