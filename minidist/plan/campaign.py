"""Arithmetic of a whole training, from the time of its step: days, what failures take, what it costs."""

from dataclasses import dataclass

from minidist.plan.failures.goodput import best_interval, cluster_mtbf, goodput
from minidist.plan.planned_run import PlannedRun

HOUR, DAY = 3600, 86400


@dataclass(frozen=True)
class Campaign:
    """A run until it has seen so many tokens.

    Attributes:
        steps: optimizer steps. busy_days: without failures. goodput: the share of time that is useful training.
        days: with failures. gpu_hours: paid for. cost: in the currency of the price; None without one.
        failures: expected. save_interval: seconds between saves that wastes the least.
    """

    tokens: float
    steps: float
    busy_days: float
    goodput: float
    days: float
    gpu_hours: float
    cost: float | None
    failures: float
    save_interval: float


def campaign(
    run: PlannedRun,
    tokens: float,
    gpu_mtbf_hours: float,
    save_seconds: float,
    restart_seconds: float,
    price: float | None = None,
) -> Campaign:
    """The whole training of ``tokens`` tokens.

    Args:
        gpu_mtbf_hours: mean time between failures of one GPU; any failure stops all.
        save_seconds: how long a save stops training. restart_seconds: from a failure until training goes on.
        price: of one GPU for an hour.
    """
    gpus = run.cluster.world_size
    mtbf = cluster_mtbf(gpu_mtbf_hours, gpus) * HOUR
    interval = best_interval(mtbf, save_seconds)
    useful = goodput(mtbf, interval, save_seconds, restart_seconds)
    busy = tokens / run.tokens_per_second
    whole = busy / useful if useful else float("inf")
    hours = whole / HOUR * gpus
    return Campaign(
        tokens,
        tokens / run.tokens,
        busy / DAY,
        useful,
        whole / DAY,
        hours,
        None if price is None else price * hours,
        whole / mtbf,
        interval,
    )
