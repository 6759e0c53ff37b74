"""When buckets are sent."""

from minidist.analysis.buckets import departures

COMPLETED = [9.0, 6.0, 4.0, 1.0]  # backward reaches the last parameter first


def test_a_bucket_is_sent_when_its_last_gradient_is_complete():
    sent = departures(COMPLETED, [[3, 2], [1, 0]])
    assert [(bucket.full, bucket.sent) for bucket in sent] == [(4, 4), (9, 9)]


def test_buckets_are_sent_in_order_so_that_one_delays_the_next():
    sent = departures(COMPLETED, [[0, 1], [2, 3]])
    assert [(bucket.full, bucket.sent) for bucket in sent] == [(9, 9), (4, 9)]
