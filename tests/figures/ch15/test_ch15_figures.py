from itertools import pairwise
from math import inf

import numpy as np
import pytest
from figures.ch15 import bigrams, kept_and_sent, rounds, stability, worker_lanes

from minidist.parallel.compression.feedback import feed_back
from minidist.parallel.compression.top_k import top_k

SECONDS = [1.0, 1.0, 3.0]


@pytest.mark.parametrize("staleness", [0, 1, 2, inf])
def test_spans_follow_the_rule_and_lose_no_step(staleness):
    spans = worker_lanes.spans(SECONDS, 12, staleness)
    for worker in range(3):
        mine = [span for span in spans if span.worker == worker]
        assert len(mine) == 12 and all(a.end <= b.begin for a, b in pairwise(mine))
    for number, span in enumerate(spans):
        ended = [sum(other.worker == worker and other.end <= span.begin for other in spans) for worker in range(3)]
        assert ended[span.worker] - min(ended) <= staleness
        if staleness:
            assert span.applied == number and span.read == sum(other.end <= span.begin for other in spans)
        else:
            assert span.applied == span.read == number // 3


def test_a_bar_for_each_step_that_begins_in_time():
    spans = worker_lanes.spans(SECONDS, 12, inf)
    (axes,) = worker_lanes.draw({"asynchronous": spans}, until=6).axes
    assert len(axes.patches) == 3 + sum(span.begin < 6 for span in spans)
    shown = [int(text.get_text()) for text in axes.texts]
    assert shown == [span.applied - span.read for span in spans if span.end < 6]


def test_the_largest_root_is_what_a_long_run_does():
    for lr, delay in ((0.3, 0), (0.9, 1), (1.05, 1), (0.3, 4)):
        x = [1.0] * (delay + 1)
        for _ in range(4000):
            x.append(x[-1] - lr * x[-1 - delay])
            largest = max(map(abs, x[-delay - 1 :]))
            if not 1e-100 < largest < 1e100:
                break
        steps = len(x) - delay - 1
        assert largest ** (1 / steps) == pytest.approx(stability.largest_root(lr, delay), rel=0.01)


def test_the_map_shows_every_run():
    figure = stability.draw(range(4), [(1, 0.25), (2, 0.5)], lambda lr, delay, steps: [1.0] * (steps + 1))
    left, right = figure.axes[:2]
    assert len([line for line in left.lines if line.get_marker() == "*"]) == 2
    assert [text.get_text() for text in right.get_legend().texts] == ["delay 1, rate 0.25", "delay 2, rate 0.5"]


def test_bars_of_what_is_kept_and_sent_add_up():
    def send(values):
        indices, kept = top_k(values, 2)
        message = np.zeros_like(values)
        message[indices] = kept
        return message

    gradients = [np.array([5.0, 1.0, -2.0, 0.0])] * 6
    steps = kept_and_sent.steps_of(gradients, send, feed_back)
    for step, following in pairwise(steps):
        assert np.array_equal(step.sent + following.old_residual, step.gradient + step.old_residual)
    figure = kept_and_sent.draw(steps, show=(0, 3))
    for axes, number in zip(figure.axes, (0, 3), strict=True):
        assert len(axes.patches) == 2 * 4 + np.count_nonzero(steps[number].sent)


def test_rounds_with_one_step_descend_the_mean():
    goals, curvature = np.array([[1.0, 0.0], [-3.0, 2.0]]), np.array([1.0, 0.5])
    some = rounds.rounds_of(goals, curvature, np.array([4.0, 4.0]), 1, 5, 0.25, 1.0, 0.0)
    x = np.array([4.0, 4.0])
    for one in some:
        assert np.allclose(one.start, x)
        x = x - 0.25 * curvature * (x - goals.mean(axis=0))
        assert np.allclose(one.end, x) and all(len(path) == 2 for path in one.paths)
    (axes,) = rounds.draw([("title", some)], goals, curvature).axes
    assert len(axes.texts) == len(some)  # arrows


def test_a_bigram_table_learns_and_repeats():
    curve = bigrams.train([1.0, 1.0], 100, inf, 8.0, seed=0)
    assert curve == bigrams.train([1.0, 1.0], 100, inf, 8.0, seed=0)
    assert len(curve) == 5 and curve[-1][1] < curve[0][1] < np.log(256)
    assert bigrams.settled(curve) == curve[-1][1]


def test_a_synchronous_server_applies_all_gradients_at_once():
    """With as many workers, a round is one worker's step with all of their samples."""
    weights = np.zeros((len(bigrams.text()[1]),) * 2)
    rng = np.random.default_rng(3)
    for _ in range(2):
        weights = weights - 4.0 * sum(bigrams.gradient(weights, rng) for _ in range(3))
    ((_, found),) = bigrams.train([1.0] * 3, 6, 0, 4.0, seed=3, every=6)
    assert found == bigrams.loss(weights)


def test_the_gradient_is_that_of_the_loss_in_the_mean():
    rng = np.random.default_rng(0)
    size = len(bigrams.text()[1])
    weights = rng.standard_normal((size, size)) / 4
    mean = np.mean([bigrams.gradient(weights, rng) for _ in range(400)], axis=0)
    direction = mean / np.linalg.norm(mean)
    slope = (bigrams.loss(weights + 1e-4 * direction) - bigrams.loss(weights - 1e-4 * direction)) / 2e-4
    assert slope == pytest.approx((mean * direction).sum(), rel=0.2)
