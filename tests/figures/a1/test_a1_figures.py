from itertools import pairwise

import pytest
from figures.a1 import bus_bandwidth, layers, links, requeued
from figures.a1.bus_bandwidth import Published
from figures.a1.layers import Layer
from figures.a1.links import Line


def test_layers_are_drawn_from_top_to_bottom_and_carriers_side_by_side():
    (axes,) = layers.draw([Layer("a", "1"), Layer("b", "2")], [Layer("c", "3"), Layer("d", "4")]).axes
    corners = {text.get_text(): text.get_position() for text in axes.texts}
    assert corners["a"][1] > corners["b"][1] > corners["c"][1] == corners["d"][1]
    assert corners["c"][0] < corners["b"][0] < corners["d"][0]
    assert len(axes.patches) == 4 and [text.get_text() for text in axes.texts] == list("a1b2c3d4")


@pytest.mark.parametrize(("alpha", "beta"), [(1e-5, 1e-9), (3e-7, 2e-12), (0.01, 1e-6)])
def test_a_fit_finds_the_line(alpha, beta):
    found = links.fit({nbytes: alpha + nbytes * beta for nbytes in (8, 1 << 10, 1 << 16, 1 << 22)})
    assert found == pytest.approx(Line(alpha, beta)) and found.seconds(0) == found.alpha


def test_every_size_counts_in_a_fit_as_much_as_its_error_is_relative():
    """A large message that takes a tenth longer must not carry the latency away."""
    found = links.fit({8: 1e-5, 1 << 10: 1.1e-5, 1 << 16: 7.5e-5, 1 << 22: 4.6e-3})
    assert found.alpha == pytest.approx(1e-5, rel=0.1)


def test_links_are_drawn_as_points_and_lines():
    measured, formula = {8: 1e-5, 1 << 20: 1e-3}, {8: 2e-5, 1 << 10: 3e-5, 1 << 20: 2e-3}
    figure = links.draw({"left": {"one": (measured, formula), "two": (formula, formula)}, "right": {}})
    line, points = figure.axes[0].lines[:2]
    assert list(line.get_ydata()) == pytest.approx([20, 30, 2000]) and list(points.get_ydata()) == [10, 1000]
    assert [text.get_text() for text in figure.axes[0].get_legend().texts] == ["one", "two"]


def test_bars_are_shares_of_the_line_rate():
    (axes,) = bus_bandwidth.draw([Published("whole", 50, 50), Published("half", 400, 200)]).axes
    assert [bar.get_width() for bar in axes.patches] == [1, 1, 1, 0.5]
    assert [text.get_text() for text in axes.texts] == ["50 of 50 GB/s", "200 of 400 GB/s"]


@pytest.mark.parametrize("on_signal", [False, True])
@pytest.mark.parametrize(("steps", "limit", "startup", "save_every"), [(100, 30, 2, 10), (7, 100, 0, 3), (57, 9, 2, 7)])
def test_jobs_follow_each_other_and_take_every_step(steps, limit, startup, save_every, on_signal):
    jobs = requeued.lives(steps, limit, startup, save_every, on_signal)
    assert sum(job.kept for job in jobs) == steps and jobs[-1].kept == jobs[-1].done
    for job, following in pairwise(jobs):
        assert following.begin == job.end == job.begin + limit and following.first == job.first + job.kept
        assert job.kept == job.done if on_signal else following.first % save_every == 0
    assert all(job.done <= limit - startup for job in jobs)


def test_a_job_that_saves_nothing_is_refused():
    with pytest.raises(ValueError, match="takes 8 steps and saves none of them: save more often than every 10"):
        requeued.lives(100, 10, 2, 10)


def test_a_lane_shows_what_is_kept_and_what_is_lost():
    jobs = requeued.lives(50, 30, 2, 10)
    (axes,) = requeued.draw({"every 10": jobs}, 2).axes
    assert [bar.get_width() for bar in axes.patches] == [2, 20, 8, 2, 20, 8, 2, 10, 0]
