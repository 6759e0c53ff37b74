"""The arithmetic of failures: against published figures, against a numerical minimum, and at its ends."""

from math import exp, expm1, inf, nan

import pytest

from minidist.plan.failures.goodput import (
    best_interval,
    cluster_mtbf,
    daly_interval,
    expected_failures,
    expected_wall_time,
    first_order_waste,
    goodput,
    gpu_mtbf,
    no_failure_probability,
    young_interval,
)
from minidist.plan.failures.llama3 import (
    DAYS,
    GPUS,
    PLANNED,
    UNEXPECTED,
    llama3_gpu_mtbf_hours,
    llama3_mtbf_hours,
)

MINUTE, HOUR, DAY = 60, 3600, 86400
M = 3.09 * HOUR  # Llama 3's


def minimum(function, low: float, high: float) -> float:
    """Where a function with one valley is least, by golden-section search, to 1e-6 of the range."""
    ratio = (5**0.5 - 1) / 2
    for _ in range(30):
        first, second = high - ratio * (high - low), low + ratio * (high - low)
        low, high = (low, second) if function(first) < function(second) else (first, high)
    return (low + high) / 2


# ── Rates ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_cluster_fails_as_often_as_its_gpus_together():
    assert cluster_mtbf(50_677, 16_384) == pytest.approx(3.09, abs=0.005)
    assert cluster_mtbf(100.0, 1) == gpu_mtbf(100.0, 1) == 100.0
    assert gpu_mtbf(cluster_mtbf(1000.0, 64), 64) == 1000.0  # a power of two: exact


def test_failures_in_a_time():
    assert expected_failures(3.0, 24.0) == 8.0
    assert no_failure_probability(3.0, 3.0) == exp(-1)
    assert no_failure_probability(3.0, 0.0) == 1.0
    day = no_failure_probability(7.0, 24.0)
    assert no_failure_probability(7.0, 48.0) == pytest.approx(day * day, rel=1e-14)  # no memory


def test_llama_3_counts_add_up_and_give_its_mtbf():
    assert sum(UNEXPECTED.values()) == 419 and 419 + PLANNED == 466
    assert (DAYS, GPUS) == (54, 16_384)
    assert llama3_mtbf_hours() == pytest.approx(3.09, abs=0.005)
    assert round(llama3_gpu_mtbf_hours()) == 50_677


def test_the_printed_share_of_faulty_gpus_does_not_follow_from_the_counts():
    shares = {cause: round(100 * count / 419, 1) for cause, count in UNEXPECTED.items()}
    assert shares["faulty GPU"] == 35.3  # the paper: 30.1
    printed = {"GPU HBM3 memory": 17.2, "network switch or cable": 8.4, "GPU SRAM memory": 4.5}
    printed["GPU system processor"] = 4.1
    assert {cause: shares[cause] for cause in printed} == printed


# ── Intervals ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("pause", "minutes", "percent"), [(10, 7.9, 4.2), (60, 19.3, 10.4), (300, 43, 23)])
def test_youngs_interval_and_its_waste(pause, minutes, percent):
    interval = young_interval(M, pause)
    assert interval / MINUTE == pytest.approx(minutes, abs=0.06)
    assert 100 * first_order_waste(M, interval, pause) == pytest.approx(percent, abs=0.25)


@pytest.mark.parametrize(("mtbf", "minutes"), [(24 * 60, 117), (6 * 60, 57), (15, 9.1)])
def test_dalys_interval_is_that_of_his_figures(mtbf, minutes):
    """Figures 3, 4 and 5 of his paper: delta = 5 min, M = 24 h, 6 h and 15 min. All in minutes."""
    assert daly_interval(mtbf, 5) == pytest.approx(minutes, abs=0.5 if minutes > 10 else 0.05)


def test_the_terms_of_the_first_order():
    assert first_order_waste(100, 10, 1, 5, 3) == pytest.approx(1 / 10 + (5 + 5 + 3) / 100, rel=1e-15)


def test_youngs_interval_minimises_the_first_order():
    for pause in (10, 300):
        best = minimum(lambda interval, pause=pause: first_order_waste(M, interval, pause, 60), 1, M)
        assert best == pytest.approx(young_interval(M, pause), rel=1e-4)  # a valley is flat: 1e-8 of waste is 1e-4 here


@pytest.mark.parametrize("ratio", [1e-4, 1e-3, 1e-2, 0.1, 0.5])
def test_dalys_interval_is_close_to_the_minimum_of_his_complete_model(ratio):
    """The first term that he leaves out is of the order of (delta / 2M)^(3/2), relative to the interval."""
    pause = ratio * M
    best = minimum(lambda interval: -goodput(M, interval, pause, 300), 1e-3 * pause, 5 * M)
    assert daly_interval(M, pause) == pytest.approx(best, rel=(ratio / 2) ** 1.5 + 1e-4)
    assert young_interval(M, pause) > best  # Young's is too long; by how much depends on delta / M
    assert goodput(M, daly_interval(M, pause), pause) >= goodput(M, young_interval(M, pause), pause)


def test_dalys_interval_ends_at_the_mtbf():
    assert daly_interval(100.0, 200.0) == daly_interval(100.0, 1e6) == 100.0
    assert daly_interval(100.0, 199.999) == pytest.approx(100.0, rel=0.12)  # 2 (1 + 1/3 + 1/9) - 2 = 8/9


def test_the_interval_is_not_shorter_than_a_write():
    assert best_interval(M, 10) == best_interval(M, 10, write=400) == daly_interval(M, 10)
    assert best_interval(M, 10, write=600) == 600
    longer = [goodput(M, interval, 10, 300, 600) for interval in (600, 700, 800, 2000)]
    assert longer == sorted(longer, reverse=True)


def test_a_write_behind_training_does_not_move_the_minimum():
    bests = [minimum(lambda tau, write=write: -goodput(M, tau, 60, 300, write), 600, M) for write in (0, 600)]
    assert bests[0] == pytest.approx(bests[1], rel=1e-4)


# ── Goodput ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_goodput_is_dalys_complete_model():
    work, tau, pause, recovery = 500 * HOUR, 1800, 300, 600
    daly = M * exp(recovery / M) * expm1((tau + pause) / M) * work / tau
    assert expected_wall_time(work, M, tau, pause, recovery) == pytest.approx(daly, rel=1e-12)
    assert goodput(M, tau, pause, recovery) == pytest.approx(work / daly, rel=1e-12)


def test_without_failures_saves_alone_cost():
    for write in (0, 50):
        assert goodput(1e15, 100, 25, 1000, write) == pytest.approx(100 / 125, rel=1e-10)


def test_saves_that_cost_nothing_leave_recovery_and_the_write():
    assert goodput(100.0, 1e-9, 0.0, 20.0) == pytest.approx(exp(-0.2), rel=1e-9)
    tiny = goodput(M, 1e-6, 0.0, 0.0)
    assert tiny == pytest.approx(1, rel=1e-9)


def test_an_asynchronous_save_costs_its_pause_and_its_write_at_each_failure():
    both = goodput(M, 1500, 10, 300, 900)
    assert both == pytest.approx(goodput(M, 1500, 10, 300) * exp(-900 / M), rel=1e-14)
    assert both > goodput(M, 1500, 910, 300)  # rather than to stand still for all of it


@pytest.mark.parametrize("pause", [0.001, 0.1, 1.0])
def test_the_first_order_is_right_in_the_limit(pause):
    """What it leaves out is of second order: with R = 0 and Young's interval a third of the waste's square."""
    interval = young_interval(M, pause)
    first, exact = first_order_waste(M, interval, pause), 1 - goodput(M, interval, pause)
    assert first - exact == pytest.approx(first**2 / 3, rel=2 * first + 1e-6 / first)  # and then of third; and rounding
    with_all = first_order_waste(M, interval, pause, pause, min(pause, interval))
    assert with_all == pytest.approx(1 - goodput(M, interval, pause, pause, min(pause, interval)), rel=2 * with_all)


def test_the_first_order_is_weak_for_long_saves():
    interval = young_interval(M, 300)
    assert first_order_waste(M, interval, 300) == pytest.approx(0.232, abs=5e-4)
    assert 1 - goodput(M, interval, 300) == pytest.approx(0.215, abs=5e-4)
    assert first_order_waste(100, 200, 100) > 1 > 1 - goodput(100, 200, 100)  # a share of more than all


def test_a_run_that_never_ends():
    assert goodput(1.0, 1000.0, 10.0) == 0.0 and expected_wall_time(1.0, 1.0, 1000.0, 10.0) == inf
    assert 0 < goodput(1.0, 600.0, 10.0) < 1e-200
    assert expected_wall_time(0.0, M, 600, 10) == 0.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: cluster_mtbf(0.0, 8), "gpu_mtbf must be positive and finite, got 0"),
        (lambda: cluster_mtbf(10.0, 0), "gpus must be 1 or more, got 0"),
        (lambda: gpu_mtbf(nan, 8), "cluster_mtbf must be positive and finite, got nan"),
        (lambda: no_failure_probability(1.0, -1.0), "time must be 0 or more and finite, got -1"),
        (lambda: young_interval(1.0, -2.0), "pause must be 0 or more and finite, got -2"),
        (lambda: goodput(1.0, 0.0, 1.0), "interval must be positive and finite, got 0"),
        (lambda: goodput(1.0, 1.0, 1.0, recovery=inf), "recovery must be 0 or more and finite, got inf"),
        (lambda: goodput(9.0, 4.0, 1.0, write=5.0), "interval must be at least write, 5: .* got 4"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
