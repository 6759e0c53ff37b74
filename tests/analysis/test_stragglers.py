"""Stragglers: found in noise, by their factor and from the step on in which they began; healthy ranks never."""

from itertools import product

import numpy as np
import pytest

from minidist.analysis.stragglers import THRESHOLD, Straggler, StragglerWatch, same_work, slow_ranks


def times(steps, ranks, seed):
    """Times as of a shared machine, (steps, ranks): 0.1 s, 15 % of noise, and one in fifty 5 times as long."""
    random = np.random.default_rng(seed)
    seconds = 0.1 * np.exp(random.normal(0, 0.15, (steps, ranks)))
    return seconds * np.where(random.random((steps, ranks)) < 0.02, 5, 1)


def watched(seconds, **options):
    """A watch that has seen these times, all ranks in one group."""
    watch = StragglerWatch([range(seconds.shape[1])], **options)
    news = [(step, each) for step, row in enumerate(seconds) for rank in range(len(row))
            for each in watch.add(rank, step, row[rank])]  # fmt: skip
    return watch, news


@pytest.mark.filterwarnings("error")
def test_factors_by_hand():
    for seconds, expected in (
        ([[1, 1, 3, 1], [1, 9, 3, 1], [1, 1, 3, 1]], {2: 3}),  # an odd step is none
        ([[1, 2.5]], {1: 2.5}),
        ([[5, 2]], {0: 2.5}),  # of two the other is the measure
        ([[1, 3, 1, 4, 1, 1, 1]], {1: 3, 3: 4}),  # two of seven do not hide each other
        ([[1, 1, 0.2, 1]], {}),  # a fast rank makes nobody slow
        ([[1, THRESHOLD]], {}),
        ([[1, np.nextafter(THRESHOLD, 9)]], {1: np.nextafter(THRESHOLD, 9)}),
        (np.ones((7, 1)), {}),  # nobody to be compared with
        (np.ones((0, 4)), {}),
    ):
        assert slow_ranks(seconds) == expected
    assert slow_ranks([[1, 1.2, 1]], threshold=1.1) == {1: 1.2}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("seed", range(8))
def test_whatever_the_times_what_is_told_makes_sense(seed):
    """Clocks may stand still, jump, or be all noise, and the window is any."""
    random = np.random.default_rng(seed)
    for _ in range(40):
        ranks, steps = random.integers(2, 5), random.integers(1, 40)
        choices = random.choice([0, 1e-12, 0.5, 1, 1, 1, 2, 4, 9, 1e9], 4)
        watch, news = StragglerWatch([range(ranks)], window=int(random.integers(1, 9))), []
        for step, row in enumerate(random.choice(choices, (steps, ranks))):
            for rank in random.permutation(ranks):
                news += watch.add(int(rank), step, float(row[rank]))
            for each in watch.found:
                assert 0 <= each.since <= (step if each.until is None else each.until) <= step
                assert 1 < each.factor < float("inf")
        assert news == watch.found


def test_a_straggler_is_named_once_within_a_window_and_noise_names_nobody():
    for ranks, seed in product((2, 3, 7), range(10)):
        assert watched(times(200, ranks, seed))[0].found == []
        seconds = times(60, ranks, seed)
        seconds[20:, 1] *= 3
        watch, news = watched(seconds)
        ((step, straggler),) = news
        assert watch.found == [straggler] and straggler.rank == 1 and straggler.until is None
        assert 20 <= step < 20 + watch.window and abs(straggler.since - 20) <= 2  # odd steps before it
        assert straggler.factor == pytest.approx(3, rel=0.25)  # its median over 40 steps of that noise


def test_a_rank_that_recovers_may_become_a_straggler_again_and_two_are_told_apart():
    seconds = np.full((50, 4), 0.1)
    seconds[7:20, 2] = 0.3
    seconds[35:, 2] = 0.5
    watch, news = watched(seconds)
    assert [step for step, _ in news] == [10, 38]  # the fourth of seven
    assert watch.found == [Straggler(2, pytest.approx(3), 7, 19), Straggler(2, pytest.approx(5), 35)]
    assert str(watch.found[0]) == "rank 2 was 3.0 times as slow as the others from step 7 to step 19"
    assert str(watch.found[1]) == "rank 2 is 5.0 times as slow as the others since step 35"
    seconds = np.full((40, 7), 0.1)
    seconds[5:, 0], seconds[10:, 0], seconds[12:, 4] = 0.2, 0.4, 0.9  # the factor follows what comes later
    assert watched(seconds)[0].found == [Straggler(0, pytest.approx(4), 5), Straggler(4, pytest.approx(9), 12)]
    seconds = np.full((20, 2), 0.1)
    seconds[:3, 0] = 9  # first steps judge nobody
    assert watched(seconds)[0].found == [] != watched(seconds, window=5)[0].found


def test_reports_may_come_in_any_order_of_the_ranks_and_from_any_first_step():
    watch = StragglerWatch([[0, 1], [2, 3], [4]])
    for late, step in product((False, True), range(100, 110)):
        for rank in (1,) if late else (3, 0, 4, 2):
            watch.add(rank, step, {1: 0.9, 3: 0.3}.get(rank, 0.1))
        assert late or all(one.rank == 3 for one in watch.found)  # though rank 1 has not reported
    assert watch.found == [Straggler(3, pytest.approx(3), 100), Straggler(1, pytest.approx(9), 100)]


def test_ranks_with_the_same_work():
    for shape, options, expected in (
        ((1, 3, 1, 1), {}, [[0, 1, 2]]),
        ((2, 2, 1, 1), {}, [[0, 1], [2, 3]]),  # stages have other layers
        ((1, 2, 2, 1), {}, [[0, 1, 2, 3]]),
        ((1, 1, 4, 2), {}, [[0, 1, 2, 3, 4, 5, 6, 7]]),
        ((1, 2, 2, 2), {"by_chunk": True}, [[0, 1, 4, 5], [2, 3, 6, 7]]),  # in a ring late tokens have more keys
        ((1, 2, 1, 1), {"experts": 2}, [[0], [1]]),  # ranks with the same experts
        ((2, 4, 1, 2), {"experts": 2}, [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]),
    ):
        assert same_work(shape, **options) == expected
