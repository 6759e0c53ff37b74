"""How often a cluster fails, how often a run should save, and how much of its time is then useful: arithmetic alone.

Failures come at random: the time to the next one is exponential, whatever happened before. All times are in one unit,
here seconds; a function that only turns one time into another takes any unit.

    M       mean time between failures (MTBF) of the cluster
    tau     training between two saves, without the saves
    delta   how long one save stops training
    W       how long a save is then written behind training, before it counts (0: it counts when training goes on)
    R       what a failure costs before training starts again: to detect it and to restart

Young (1974, CACM 17(9), p. 530) weighs tau / 2 of lost training against delta. Daly (2006, Future Generation Computer
Systems 22(3), p. 303) has the complete expected time, with failures during saves and restarts, and a better interval.

What is simplified: failures are independent, where real ones come in bursts and follow the age of a part; a save does
not slow the training behind which it is written; every failure is seen, which silent corruption is not.
"""

from math import exp, expm1, inf, isfinite, sqrt


def cluster_mtbf(gpu_mtbf: float, gpus: int) -> float:
    """The MTBF of a cluster in which any GPU's failure stops all, in the unit of ``gpu_mtbf``.

    A GPU stands here for its share of everything that may fail: its node, the network, the software.

    Raises:
        ValueError: if the MTBF is not positive or there is no GPU.
    """
    _check(gpu_mtbf=gpu_mtbf)
    return gpu_mtbf / _positive_count(gpus)


def gpu_mtbf(cluster_mtbf: float, gpus: int) -> float:
    """The MTBF of one GPU, from that of a cluster of ``gpus``: the way back."""
    _check(cluster_mtbf=cluster_mtbf)
    return cluster_mtbf * _positive_count(gpus)


def expected_failures(mtbf: float, time: float) -> float:
    """The mean number of failures in this time of running."""
    _check(mtbf=mtbf)
    _check_not_negative(time=time)
    return time / mtbf


def no_failure_probability(mtbf: float, time: float) -> float:
    """The probability of no failure in this time of running."""
    return exp(-expected_failures(mtbf, time))


def young_interval(mtbf: float, pause: float) -> float:
    """Young's interval: sqrt(2 delta M), the smallest waste to first order. Good as long as delta is far below M."""
    _check(mtbf=mtbf)
    _check_not_negative(pause=pause)
    return sqrt(2 * pause * mtbf)


def daly_interval(mtbf: float, pause: float) -> float:
    """Daly's interval: Young's with two more terms, close to the minimum of his complete model.

    sqrt(2 delta M) (1 + sqrt(delta / 2M) / 3 + delta / 2M / 9) - delta for delta below 2M; M beyond, where hardly any
    interval is finished.
    """
    young = young_interval(mtbf, pause)
    ratio = pause / (2 * mtbf)
    return young * (1 + sqrt(ratio) / 3 + ratio / 9) - pause if ratio < 1 else mtbf


def best_interval(mtbf: float, pause: float, write: float = 0.0) -> float:
    """The interval to choose: Daly's, and with saves written behind training not below the time that one takes.

    The write adds the same loss to every failure, however often the run saves. So it does not move the minimum; but a
    second snapshot would have to wait until the first is written.
    """
    _check_not_negative(write=write)
    return max(daly_interval(mtbf, pause), write)


def first_order_waste(mtbf: float, interval: float, pause: float, recovery: float = 0.0, write: float = 0.0) -> float:
    """The share of time that is not useful, to first order: delta / tau + (tau / 2 + W + R) / M.

    The terms are what saves cost, the training that a failure undoes, and the recovery from it. The training that was
    done during W is undone too, because what was then being written does not count yet.

    The sum is no share of anything for large terms, and may pass 1. It leaves out failures during saves and restarts
    (which makes it too small) and divides what the useful time pays by the useful time (too large for a share of all
    time). With the interval chosen well and R = 0 it is too large, by about the square of the waste over 3.
    """
    _check_run(mtbf, interval, pause, recovery, write)
    return pause / interval + (interval / 2 + write + recovery) / mtbf


def goodput(mtbf: float, interval: float, pause: float, recovery: float = 0.0, write: float = 0.0) -> float:
    """The share of all time that is useful training, in a long run. Nothing is approximated.

    After each recovery the run starts from its last committed save, and lasts for a time X that is exponential. The
    k-th save after that is committed at k (tau + delta) + W. So the mean number of committed saves is the sum over k of
    the probabilities that X is longer, exp(-W/M) / (exp((tau + delta)/M) - 1), and each keeps tau of training. The mean
    time from one recovery to the next is M, and M (exp(R/M) - 1) for the recovery, which a failure begins anew.

        goodput = (tau / M) exp(-(R + W)/M) / (exp((tau + delta)/M) - 1)

    For W = 0 this is Daly's complete model.

    Raises:
        ValueError: if a time is negative, or saves come faster than they are written.
    """
    _check_run(mtbf, interval, pause, recovery, write)
    segment = (interval + pause) / mtbf
    grown = expm1(segment) if segment < 700 else inf  # exp of more than 709 does not fit a float
    return interval / mtbf * exp(-(recovery + write) / mtbf) / grown


def expected_wall_time(
    work: float, mtbf: float, interval: float, pause: float, recovery: float = 0.0, write: float = 0.0
) -> float:
    """The expected time for this much training: M exp(R/M) (exp((tau + delta)/M) - 1) for each tau (Daly, for W = 0).

    It takes ``work`` as a whole number of intervals with a save after each, so it is weak where a run has few of them:
    it counts a save at the end, and a fraction of an interval as if failures found it as often as a whole one. With W,
    the time until the last save is written is left out. ``inf`` where no run would ever end.
    """
    _check_not_negative(work=work)
    useful = goodput(mtbf, interval, pause, recovery, write)
    return work / useful if useful else inf


def _check_run(mtbf: float, interval: float, pause: float, recovery: float, write: float) -> None:
    _check(mtbf=mtbf, interval=interval)
    _check_not_negative(pause=pause, recovery=recovery, write=write)
    if interval < write:
        raise ValueError(f"interval must be at least write, {write:g}: one save is written at a time; got {interval:g}")


def _check(**values: float) -> None:
    for name, value in values.items():
        if not (isfinite(value) and value > 0):
            raise ValueError(f"{name} must be positive and finite, got {value:g}")


def _check_not_negative(**values: float) -> None:
    for name, value in values.items():
        if not (isfinite(value) and value >= 0):
            raise ValueError(f"{name} must be 0 or more and finite, got {value:g}")


def _positive_count(gpus: int) -> int:
    if gpus < 1:
        raise ValueError(f"gpus must be 1 or more, got {gpus}")
    return gpus
