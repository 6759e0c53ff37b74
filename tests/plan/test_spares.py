"""Spares and peers' memory: against other forms of the formulas, against counting, and at their ends."""

from itertools import combinations
from math import exp, factorial

import pytest

from minidist.plan.failures.peer_memory import recoverable_probability
from minidist.plan.failures.spares import in_repair_probabilities, speed_with_spares, waiting_share


def erlang_b(load: float, lines: int) -> float:
    """Erlang's formula by its recursion, B(n) = a B(n-1) / (n + a B(n-1))."""
    blocked = 1.0
    for line in range(1, lines + 1):
        blocked = load * blocked / (line + load * blocked)
    return blocked


@pytest.mark.parametrize("load", [0.01, 1.0, 8.0, 300.0])
@pytest.mark.parametrize("spares", [0, 1, 8, 200])
def test_waiting_is_erlangs_formula(load, spares):
    assert waiting_share(1.0, load, spares, 512, 512) == pytest.approx(erlang_b(load, spares + 1), rel=1e-10)


def test_without_spares_a_run_that_waits_works_and_waits_in_turn():
    assert speed_with_spares(3.0, 1.0, 0, 64, 64) == pytest.approx(3 / 4)
    assert waiting_share(3.0, 1.0, 0, 64, 64) == pytest.approx(1 / 4)


@pytest.mark.parametrize(("mtbf", "machines"), [(1.0, 1000), (1.0, 8), (0.1, 3)])
def test_without_spares_and_without_waiting_each_machine_works_and_is_repaired_in_turn(mtbf, machines):
    one = mtbf * machines
    assert speed_with_spares(mtbf, 5.0, 0, machines, 1) == pytest.approx(one / (one + 5.0), rel=1e-12)


def test_in_a_large_cluster_the_missing_machines_are_the_tail_of_a_poisson_distribution():
    missing = sum((n - 3) * exp(-5) * 5**n / factorial(n) for n in range(4, 60))
    speed = speed_with_spares(1.0, 5.0, 3, 10**5, 1)
    assert 1 - speed == pytest.approx(missing / 10**5, rel=1e-3)  # but for what fails less often: 1e-5, some times over


def test_it_may_go_on_smaller_down_to_a_number():
    speeds = [speed_with_spares(1.0, 5.0, 2, 8, least) for least in range(1, 9)]
    assert speeds == sorted(speeds, reverse=True) and speeds[0] > speeds[-1]
    assert speeds[-1] == pytest.approx(1 - waiting_share(1.0, 5.0, 2, 8, 8), rel=1e-12)


def test_repairs_without_time_or_enough_spares_cost_nothing():
    assert speed_with_spares(1.0, 0.0, 0, 8, 8) == 1.0 and waiting_share(1.0, 0.0, 0, 8, 8) == 0.0
    assert speed_with_spares(1.0, 5.0, 60, 8, 8) == pytest.approx(1.0, abs=1e-12)


def test_large_clusters_fit_floats():
    shares = in_repair_probabilities(0.1, 1000.0, 12_000, 8, 8)  # 10,000^10,000 / 10,000! does not
    assert sum(shares) == pytest.approx(1.0) and max(shares) == pytest.approx(shares[10_000], rel=1e-9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, 1.0, 0, 8, 8), "mtbf must be positive"),
        ((1.0, -1.0, 0, 8, 8), "repair 0 or more"),
        ((1.0, 1.0, -1, 8, 8), "spares must be 0 or more, got -1"),
        ((1.0, 1.0, 0, 8, 9), "needs 1 to all of its 8 machines to go on, not 9"),
    ],
)
def test_bad_input_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        speed_with_spares(*arguments)


# ── Peers' memory ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_geminis_figures():
    assert recoverable_probability(16, 2, 2) == pytest.approx(0.933, abs=5e-4)
    assert recoverable_probability(16, 2, 3) == 0.8


@pytest.mark.parametrize(("machines", "copies"), [(8, 2), (9, 3), (8, 4), (6, 1), (4, 4)])
def test_it_counts_what_all_choices_count(machines, copies):
    groups = [set(range(first, first + copies)) for first in range(0, machines, copies)]
    for failed in range(machines + 1):
        choices = [set(choice) for choice in combinations(range(machines), failed)]
        good = sum(not any(group <= choice for group in groups) for choice in choices)
        assert recoverable_probability(machines, copies, failed) == good / len(choices)


def test_fewer_failures_than_copies_are_always_recoverable():
    assert recoverable_probability(1024, 4, 3) == 1.0 > recoverable_probability(1024, 4, 4)
    assert recoverable_probability(1024, 2, 513) == 0.0  # a group must lose both


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((16, 3, 2), "groups of 3 do not divide 16 machines"),
        ((16, 0, 2), "groups of 0 do not divide"),
        ((16, 2, 17), "0 to 16 machines can fail, not 17"),
    ],
)
def test_groups_that_cannot_be_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        recoverable_probability(*arguments)
