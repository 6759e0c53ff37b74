"""Failures: formulas against published figures, numeric minima, a Markov chain and counting; and the simulation.

The simulation knows no formula. Its timelines are worked out by hand here, and long runs of it meet the formulas.
"""

from itertools import combinations, product
from math import exp, expm1, sqrt
from types import SimpleNamespace

import numpy as np
import pytest

from minidist.plan import failing_run
from minidist.plan.failing_run import MICROSECONDS, Machines, simulate
from minidist.plan.goodput import (
    DAYS,
    GPUS,
    PLANNED,
    UNEXPECTED,
    best_interval,
    cluster_mtbf,
    daly_interval,
    expected_failures,
    first_order_waste,
    goodput,
    gpu_mtbf,
    in_repair_probabilities,
    llama3_gpu_mtbf_hours,
    llama3_mtbf_hours,
    no_failure_probability,
    recoverable_probability,
    speed_with_spares,
    young_interval,
)

HOUR = 3600
M = 3.09 * HOUR  # Llama 3's
NEVER = 1e9  # seconds


def test_rates_are_those_of_llama_3():
    assert sum(UNEXPECTED.values()) == 419 and 419 + PLANNED == 466 and (DAYS, GPUS) == (54, 16_384)
    printed = {"GPU HBM3 memory": 17.2, "network switch or cable": 8.4, "GPU SRAM memory": 4.5, "faulty GPU": 35.3}
    assert {cause: round(100 * UNEXPECTED[cause] / 419, 1) for cause in printed} == printed  # but the last: 30.1 there
    assert llama3_mtbf_hours() == pytest.approx(3.09, abs=0.005) and round(llama3_gpu_mtbf_hours()) == 50_677
    assert cluster_mtbf(50_677, 16_384) == pytest.approx(3.09, abs=0.005)
    assert gpu_mtbf(cluster_mtbf(1000.0, 64), 64) == 1000.0  # a power of two: exact
    assert expected_failures(3.0, 24.0) == 8.0 and no_failure_probability(3.0, 3.0) == exp(-1)


def test_intervals_are_those_of_the_papers_and_of_numeric_minima():
    """Daly's figures 3, 4 and 5: delta = 5 min, M = 24 h, 6 h and 15 min. All in minutes."""
    for mtbf, minutes in ((24 * 60, 117), (6 * 60, 57), (15, 9.1)):
        assert daly_interval(mtbf, 5) == pytest.approx(minutes, abs=0.5 if minutes > 10 else 0.05)
    near = np.linspace(0.5, 1.5, 10_001)  # steps of 1e-4
    for pause in (10, 300):
        young = young_interval(M, pause)
        assert min(near, key=lambda x, pause=pause, at=young: first_order_waste(M, x * at, pause, 60)) == 1
    for ratio, write in product((1e-4, 1e-2, 0.5), (0, 30)):
        pause, daly = ratio * M, daly_interval(M, ratio * M)
        best = max(near, key=lambda x, at=daly, more=(pause, 300, write): goodput(M, x * at, *more))
        # the first term that he leaves out is of the order of (delta / 2M)^(3/2), relative to the interval
        assert best == pytest.approx(1, abs=(ratio / 2) ** 1.5 + 1e-4) and young_interval(M, pause) > best * daly
    assert daly_interval(100.0, 200.0) == daly_interval(100.0, 1e6) == 100.0
    assert daly_interval(100.0, 199.999) == pytest.approx(100.0, rel=0.12)  # 2 (1 + 1/3 + 1/9) - 2 = 8/9
    assert best_interval(M, 10, write=400) == daly_interval(M, 10) and best_interval(M, 10, write=600) == 600


def test_goodput_is_dalys_complete_model_and_the_first_order_its_limit():
    work, tau, pause, recovery = 500 * HOUR, 1800, 300, 600
    daly = M * exp(recovery / M) * expm1((tau + pause) / M) * work / tau
    assert goodput(M, tau, pause, recovery) == pytest.approx(work / daly, rel=1e-12)
    assert goodput(1e15, 100, 25, 1000, write=50) == pytest.approx(100 / 125, rel=1e-10)  # without failures
    assert goodput(100.0, 1e-9, 0.0, 20.0) == pytest.approx(exp(-0.2), rel=1e-9)  # saves that cost nothing
    assert goodput(1.0, 1000.0, 10.0) == 0.0
    assert 0 < goodput(1.0, 600.0, 10.0) < 1e-200
    for pause in (0.001, 0.1, 1.0):  # what it leaves out is a third of the waste's square, and then of third order
        interval = young_interval(M, pause)
        first, exact = first_order_waste(M, interval, pause), 1 - goodput(M, interval, pause)
        assert first - exact == pytest.approx(first**2 / 3, rel=2 * first + 1e-6 / first)  # and rounding
        more = pause, min(pause, interval)  # R, and W
        with_all = first_order_waste(M, interval, pause, *more)
        assert with_all == pytest.approx(1 - goodput(M, interval, pause, *more), rel=2 * with_all)
        assert first_order_waste(M, interval, pause, 0, more[1]) - first == pytest.approx(more[1] / M, rel=1e-6)


def test_machines_in_repair_are_a_markov_chain():
    """The oracle is its stationary distribution, from a linear system: failures by speed, repairs in parallel."""
    for mtbf, repair, spares, machines, least in product((1.0, 0.2), (0.1, 1.0, 8.0), (0, 1, 4), (3, 8), (1, 2, 3)):
        speeds = [1 - max(0, n - spares) / machines for n in range(spares + machines - least + 1)]
        rates = np.diag([speed / mtbf for speed in speeds], 1)
        rates += np.diag([n / repair for n in range(1, len(speeds) + 1)], -1)
        balance = (rates - np.diag(rates.sum(axis=1))).T
        balance[-1] = 1.0  # in place of one equation that follows from the others: shares add up to 1
        shares = np.linalg.solve(balance, np.eye(len(rates))[-1])
        case = mtbf, repair, spares, machines, least
        assert in_repair_probabilities(*case) == pytest.approx(shares.tolist(), rel=1e-9), case
        assert speed_with_spares(*case) == pytest.approx(shares[:-1] @ speeds, rel=1e-9)
    assert speed_with_spares(1.0, 0.0, 0, 8, 8) == 1.0 and in_repair_probabilities(1.0, 0.0, 0, 8, 8)[-1] == 0.0
    shares = in_repair_probabilities(0.1, 1000.0, 12_000, 8, 8)  # 10,000^10,000 / 10,000! does not fit a float
    assert sum(shares) == pytest.approx(1.0) and max(shares) == pytest.approx(shares[10_000], rel=1e-9)


def test_peers_memory_counts_what_all_choices_count():
    assert recoverable_probability(16, 2, 2) == pytest.approx(0.933, abs=5e-4)  # GEMINI's figures
    assert recoverable_probability(16, 2, 3) == 0.8
    for machines, copies in ((8, 2), (9, 3), (8, 4), (6, 1), (4, 4)):
        groups = [set(range(first, first + copies)) for first in range(0, machines, copies)]
        for failed in range(machines + 1):
            choices = [set(choice) for choice in combinations(range(machines), failed)]
            good = sum(not any(group <= choice for group in groups) for choice in choices)
            assert recoverable_probability(machines, copies, failed) == good / len(choices)
    assert recoverable_probability(1024, 2, 513) == 0.0  # a group must lose both


TIMELINES = {  # seconds from each failure to the next, the machines, seconds in all, and where they go
    "trains to 10, 22, 25 (failure), 39; saves to 12, 24, 40 (the end)": (
        [25], {"interval": 10, "pause": 2, "detection": 1, "restart": 3}, 40,
        {"useful": 30, "saving": 5, "lost": 1, "detecting": 1, "restarting": 3}),
    "a failure in a save loses the whole interval": (
        [11], {"interval": 10, "pause": 2, "restart": 3}, 14, {"saving": 1, "lost": 10, "restarting": 3}),
    "the snapshot at 12 is not yet written": (
        [16.9], {"interval": 10, "pause": 2, "write": 5, "restart": 3}, 19.9,
        {"saving": 2, "lost": 14.9, "restarting": 3}),
    "the snapshot at 12 is written at 17": (
        [17.1], {"interval": 10, "pause": 2, "write": 5, "restart": 3}, 20.1,
        {"useful": 10, "saving": 2, "lost": 5.1, "restarting": 3}),
    "waits from 6 to 25; the failure 2 s after the first comes 19 s later, at 26; waits from 27 to 46": (
        [5, 2], {"interval": 10, "pause": 2, "detection": 1, "restart": 3, "machines": 2, "least": 2, "repair": 20}, 50,
        {"useful": 1, "lost": 5, "detecting": 2, "restarting": 4, "waiting": 38}),
    "a spare takes its place at once; the second failure, at 6, waits until 25, when the first is back": (
        [5, 1], {"interval": 10, "pause": 2, "machines": 2, "least": 2, "spares": 1, "repair": 20}, 30,
        {"useful": 5, "lost": 6, "waiting": 19}),
    "fewer fail less often: of 60 s, 30 s with 3 of 4 use up 22.5, so the next comes at 72.5, after a save at 65": (
        [5, 60], {"interval": 10, "pause": 0, "machines": 4, "least": 1, "repair": 30}, 73,
        {"useful": 22.5 + 30 + 0.375, "lost": 12.5, "missing": 7.5 + 0.125}),
}  # fmt: skip


def test_timelines_are_those_worked_out_by_hand(monkeypatch):
    for what, (gaps, machines, total, expected) in TIMELINES.items():
        left = [*gaps, NEVER]
        random = SimpleNamespace(exponential=lambda mean, left=left: left.pop(0))
        monkeypatch.setattr(failing_run, "generator", lambda *names, random=random: random)
        spent = simulate(Machines(M, **machines), total)
        assert {part: time / MICROSECONDS for part, time in spent.parts.items() if time} == expected, what
        assert spent.failures == len(gaps), what


def test_the_parts_add_up_to_the_total_exactly_and_a_seed_names_a_run():
    for setup in (
        Machines(M, 777.7, 33.3, write=500, restart=100, machines=7, least=3, spares=1, repair=9 * HOUR),
        Machines(100.0, interval=200, pause=50, detection=7, restart=90, machines=3, least=1, repair=250),
    ):
        spent = simulate(setup, 1_234_567.8901)
        assert spent.total == 1_234_567_890_100 and min(spent.parts.values()) >= 0 < spent.lost
        assert sum(map(spent.share, spent.parts)) == pytest.approx(1, rel=1e-15)
        assert simulate(setup, 1e6, seed=3) == simulate(setup, 1e6, seed=3) != simulate(setup, 1e6, seed=4)


N = 20_000  # failures of a long run


def deviations(parts: float) -> float:
    """Five standard deviations of a sum of so many independent exponential times, relative to it."""
    return 5 * sqrt(2 / parts)


def test_long_runs_agree_with_the_complete_model():
    for interval, pause, write in ((daly_interval(M, 60), 60, 0), (1500, 10, 900)):
        spent = simulate(Machines(M, interval, pause, write, detection=60, restart=300), N * M)
        expected = 1 - goodput(M, interval, pause, 360, write)
        tolerance = deviations(N) * expected
        assert 1 - spent.share("useful") == pytest.approx(expected, abs=tolerance), (interval, pause, write)
        assert tolerance < expected - (1 - goodput(M, interval, pause, 360)) or write < 900  # a long write is seen
    spent = simulate(Machines(100.0, interval=200, pause=50, detection=30, restart=60), N * 100.0)
    useful = goodput(100.0, 200, 50, recovery=90)  # hardly an interval is finished
    kept = useful * N * 100.0 / 200  # intervals, each kept or not: a count, so about Poisson as well
    assert useful < 0.08 and spent.share("useful") == pytest.approx(useful, rel=deviations(kept))
