"""Failures of a cluster, the best interval between saves, and the share of time that is then useful: arithmetic alone.

Failures come at random: the time to the next one is exponential, whatever happened before. All times are in one unit,
here seconds; a function that only turns one time into another takes any unit.

    M       mean time between failures (MTBF) of the cluster
    tau     training between two saves, without the saves
    delta   time that one save stops training
    W       time that a save is then written in the background before it counts (0: it counts when training goes on)
    R       time that a failure takes before training starts again: to detect it and to restart

Young (1974, CACM 17(9), p. 530) weighs tau / 2 of lost training against delta. Daly (2006, Future Generation Computer
Systems 22(3), p. 303) has the complete expected time, with failures during saves and restarts, and a better interval.

Simplified: failures are independent, where real ones come in bursts and follow the age of a part; a save does not slow
the training during which it is written; every failure is noticed, which silent corruption is not.

Further down: the failures of Llama 3 405B's training; the probability that peers still hold the memory of failed
machines; the cost of machines that are being repaired, with spares or without.
"""

from math import comb, exp, expm1, inf, isfinite, log, sqrt

from minidist.plan.scaling.laws import check


def cluster_mtbf(gpu_mtbf: float, gpus: int) -> float:
    """MTBF of a cluster in which any GPU's failure stops all, in the unit of ``gpu_mtbf``.

    A GPU includes its share of everything else that may fail: its node, the network, the software.

    Raises:
        ValueError: if the MTBF is not positive or there is no GPU.
    """
    check(gpu_mtbf=gpu_mtbf)
    return gpu_mtbf / _positive_count(gpus)


def gpu_mtbf(cluster_mtbf: float, gpus: int) -> float:
    """MTBF of one GPU, from that of a cluster of ``gpus``: the inverse of ``cluster_mtbf``."""
    check(cluster_mtbf=cluster_mtbf)
    return cluster_mtbf * _positive_count(gpus)


def expected_failures(mtbf: float, time: float) -> float:
    """Mean number of failures in a running time."""
    check(mtbf=mtbf)
    _check_not_negative(time=time)
    return time / mtbf


def no_failure_probability(mtbf: float, time: float) -> float:
    """Probability of no failure in a running time."""
    return exp(-expected_failures(mtbf, time))


def young_interval(mtbf: float, pause: float) -> float:
    """Young's interval: sqrt(2 delta M), which minimizes waste to first order. Good as long as delta is far below M."""
    check(mtbf=mtbf)
    _check_not_negative(pause=pause)
    return sqrt(2 * pause * mtbf)


def daly_interval(mtbf: float, pause: float) -> float:
    """Daly's interval: Young's with two more terms, close to the best one of his complete model.

    sqrt(2 delta M) (1 + sqrt(delta / 2M) / 3 + delta / 2M / 9) - delta for delta below 2M; M beyond, where hardly any
    interval is finished.
    """
    young = young_interval(mtbf, pause)
    ratio = pause / (2 * mtbf)
    return young * (1 + sqrt(ratio) / 3 + ratio / 9) - pause if ratio < 1 else mtbf


def best_interval(mtbf: float, pause: float, write: float = 0.0) -> float:
    """Interval to choose: Daly's, but not below the time that a save is written in the background.

    The write adds the same loss to every failure, however often the run saves. So it does not move the minimum; but a
    second snapshot would have to wait until the first is written.
    """
    _check_not_negative(write=write)
    return max(daly_interval(mtbf, pause), write)


def first_order_waste(mtbf: float, interval: float, pause: float, recovery: float = 0.0, write: float = 0.0) -> float:
    """Share of time that is not useful, to first order: delta / tau + (tau / 2 + W + R) / M.

    The terms are the cost of saves, the training that a failure undoes, and the recovery from it. Training during W is
    undone too, because the save that is being written does not count yet.

    For large terms the sum is no share, and may pass 1. It leaves out failures during saves and restarts (which makes
    it too small), and it is relative to the useful time (which makes it too large for a share of all time). With the
    interval chosen well and R = 0 it is too large, by about the square of the waste over 3.
    """
    _check_run(mtbf, interval, pause, recovery, write)
    return pause / interval + (interval / 2 + write + recovery) / mtbf


def goodput(mtbf: float, interval: float, pause: float, recovery: float = 0.0, write: float = 0.0) -> float:
    """Share of all time that is useful training in a long run, without approximation.

    After each recovery the run starts from its last committed save, and lasts for a time X that is exponential. The
    k-th save after that is committed at k (tau + delta) + W. So the mean number of committed saves is the sum over k of
    the probabilities that X is longer, exp(-W/M) / (exp((tau + delta)/M) - 1), and each keeps tau of training. The mean
    time from one recovery to the next is M, plus M (exp(R/M) - 1) for the recovery, which a failure begins anew.

        goodput = (tau / M) exp(-(R + W)/M) / (exp((tau + delta)/M) - 1)

    For W = 0 this is Daly's complete model.

    Raises:
        ValueError: if a time is negative, or saves come faster than they are written.
    """
    _check_run(mtbf, interval, pause, recovery, write)
    segment = (interval + pause) / mtbf
    grown = expm1(segment) if segment < 700 else inf  # exp of more than 709 does not fit a float
    return interval / mtbf * exp(-(recovery + write) / mtbf) / grown


def _check_run(mtbf: float, interval: float, pause: float, recovery: float, write: float) -> None:
    check(mtbf=mtbf, interval=interval)
    _check_not_negative(pause=pause, recovery=recovery, write=write)
    if interval < write:
        raise ValueError(
            f"interval must be at least write ({write:g}), got {interval:g}: only one save is written at a time"
        )


def _check_not_negative(**values: float) -> None:
    for name, value in values.items():
        if not (isfinite(value) and value >= 0):
            raise ValueError(f"{name} must be 0 or more and finite, got {value:g}")


def _positive_count(gpus: int) -> int:
    if gpus < 1:
        raise ValueError(f"gpus must be 1 or more, got {gpus}")
    return gpus


# Llama 3 405B's training (The Llama 3 Herd of Models, 2024, arXiv:2407.21783, section 3.3.4 and table 5): 54 days on
# 16,384 H100 GPUs, 466 interruptions, of which 47 were planned. The table prints 30.1 % for faulty GPUs. That does not
# follow from its counts, which add up to the 419 of the text: 148 of them are 35.3 %.
DAYS = 54
GPUS = 16_384
PLANNED = 47
UNEXPECTED = {  # cause -> interruptions
    "faulty GPU": 148,
    "GPU HBM3 memory": 72,
    "software bug": 54,
    "network switch or cable": 35,
    "host maintenance": 32,
    "GPU SRAM memory": 19,
    "GPU system processor": 17,
    "NIC": 7,
    "NCCL watchdog timeout": 7,
    "silent data corruption": 6,
    "GPU thermal interface and sensor": 6,
    "SSD": 3,
    "power supply": 3,
    "server chassis": 2,
    "IO expansion board": 2,
    "dependency": 2,
    "CPU": 2,
    "system memory": 2,
}


def llama3_mtbf_hours() -> float:
    """Mean hours between unexpected interruptions of the whole cluster."""
    return DAYS * 24 / sum(UNEXPECTED.values())


def llama3_gpu_mtbf_hours() -> float:
    """Mean hours between failures of one GPU and its share of everything else."""
    return gpu_mtbf(llama3_mtbf_hours(), GPUS)


def recoverable_probability(machines: int, copies: int, failed: int) -> float:
    """Probability that no group of ``copies`` machines has failed as a whole, if any ``failed`` machines fail at once.

    GEMINI (Wang et al., SOSP 2023) keeps each machine's checkpoint in the memory of m machines: the N machines form
    groups of m, and each machine of a group holds the state of all of it. A run restarts from memory unless a whole
    group has failed; then it goes back to slower storage.

    The count is exact. C(N - jm, k - jm) of the choices of k machines include j given groups; inclusion and exclusion
    over the groups leaves the choices that include no whole group.

    Raises:
        ValueError: if ``copies`` does not divide ``machines``, or ``failed`` is not from 0 to ``machines``.
    """
    if copies < 1 or machines < 1 or machines % copies:
        raise ValueError(f"copies must be a divisor of machines ({machines}), got {copies}")
    if not 0 <= failed <= machines:
        raise ValueError(f"failed must be from 0 to machines ({machines}), got {failed}")
    groups = machines // copies
    recoverable = sum(
        (-1) ** lost * comb(groups, lost) * comb(machines - lost * copies, failed - lost * copies)
        for lost in range(failed // copies + 1)
    )
    return recoverable / comb(machines, failed)


def in_repair_probabilities(mtbf: float, repair: float, spares: int, machines: int, least: int) -> list[float]:
    """Return the shares of all time in which 0, 1, ... machines are in repair. With the last number the run waits.

    A failure takes one machine out for a repair of T. A spare takes its place at once if one stands by. Otherwise the
    run waits for a repair, or goes on with fewer machines; in ``torchrun --nnodes=MIN:MAX``, MIN decides.

    Machines in repair are a queue. All N machines together fail once in M on average, fewer of them less often, and
    machines that stand by or wait do not fail. Repairs run in parallel. So the number in repair is that of a loss
    system with as many lines as machines can be missing (Erlang 1917; Engset 1918 if fewer fail less often). Its
    probabilities depend on T/M alone, not on the distribution of repair times: p(n) is proportional to (T/M)^n / n!,
    times the speeds v(0) ... v(n-1) of the run with fewer machines in repair.

    Args:
        mtbf: mean time between failures of the cluster, while all machines run.
        repair: mean repair time of a machine, in the same unit.
        spares: number of machines that stand by.
        machines: number of machines that work at once.
        least: fewest machines with which the run goes on.

    Raises:
        ValueError: if a number is out of range.
    """
    if not (0 < mtbf < inf and 0 <= repair < inf):
        raise ValueError(f"mtbf must be positive and repair 0 or more, both finite; got {mtbf:g} and {repair:g}")
    if spares < 0:
        raise ValueError(f"spares must be 0 or more, got {spares}")
    if not 1 <= least <= machines:
        raise ValueError(f"least must be from 1 to machines ({machines}), got {least}")
    waits = spares + machines - least + 1
    if repair == 0:
        return [1.0] + [0.0] * waits
    logs = [0.0]  # logarithms, as powers and factorials of this size do not fit a float
    for n in range(1, waits + 1):
        logs.append(logs[-1] + log(repair / mtbf / n * _speed(n - 1, spares, machines)))
    largest = max(logs)
    weights = [exp(value - largest) for value in logs]
    total = sum(weights)
    return [weight / total for weight in weights]


def speed_with_spares(mtbf: float, repair: float, spares: int, machines: int, least: int) -> float:
    """Mean speed of the run over all time: 1 with all machines at work, 0 while the run waits.

    Its product with ``goodput`` is the goodput of the run: exact for a run that waits (``least == machines``) and
    detects failures at once. For a run that goes on with fewer machines it is approximate: machines rejoin at once and
    without a restart (torchrun restarts for them), and failures cost the same share of time at any size.
    """
    shares = in_repair_probabilities(mtbf, repair, spares, machines, least)
    return sum(share * _speed(n, spares, machines) for n, share in enumerate(shares[:-1]))


def _speed(in_repair: int, spares: int, machines: int) -> float:
    """Speed of a run that goes on with this many machines in repair, as a share of full speed."""
    return 1 - max(0, in_repair - spares) / machines
