"""Buckets in the picture."""

from figures.ch04 import buckets

COMPLETED = [9.0, 6.0, 4.0, 1.0]  # backward reaches the last parameter first


def test_every_gradient_is_a_dot_at_its_time():
    figure = buckets.draw(
        list("abcd"), COMPLETED, {"last first": [[3, 2], [1, 0]], "first first": [[0, 1], [2, 3]]}, 10
    )
    for axes in figure.axes:
        dots = [
            tuple(dot) for points in axes.collections if len(points.get_offsets()) == 2 for dot in points.get_offsets()
        ]
        assert sorted(dots) == [(1, 3), (4, 2), (6, 1), (9, 0)]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == [*"abcd", "bucket 1", "bucket 2"]
