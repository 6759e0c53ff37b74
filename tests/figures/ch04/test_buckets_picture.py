"""When buckets leave."""

from figures import buckets

COMPLETED = [9.0, 6.0, 4.0, 1.0]  # backward reaches the last parameter first


def test_a_bucket_leaves_when_its_last_gradient_is_there():
    leaving = buckets.departures(COMPLETED, [[3, 2], [1, 0]])
    assert [(bucket.full, bucket.sent) for bucket in leaving] == [(4, 4), (9, 9)]


def test_buckets_leave_in_their_order_so_that_one_holds_up_the_next():
    leaving = buckets.departures(COMPLETED, [[0, 1], [2, 3]])
    assert [(bucket.full, bucket.sent) for bucket in leaving] == [(9, 9), (4, 9)]


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
