"""Measure what one slow rank of four costs, and what rebalancing recovers: times of a step relative to no slow rank.

    python benchmarks/stragglers.py

Every rank sleeps: healthy ones for 9 times as long as they compute, the slow one for 29 times, so it takes 3 times as
long. Sleeping ranks need no core, so even on two cores the times are those of ranks with a core each.
The runs take turns. The table has medians over the steps of all rounds, without each run's first steps, before the
first rebalancing; next to them is the arithmetic: a step takes as long as its slowest rank.
"""

import argparse
import statistics
import time

from rich.console import Console
from rich.table import Table

import minidist as md
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.resilience.faults import Fault
from minidist.train.resilience.rebalance import EVERY, deal
from minidist.train.result import Run, RunOptions
from minidist.train.trainer import run

LAYOUT, SLOW, FACTOR = Layout(dp=4), 2, 3.0
SLEEPING = 10.0  # a healthy rank takes this many times as long as it computes
CONFIG = TrainConfig(layers=2, width=32, heads=2, context=32, global_batch=48, micro_batch=2)


def slowed(factors: list[float], rebalance: bool = False) -> RunOptions:
    faults = tuple(Fault(rank, 0, "slow", SLEEPING * factor) for rank, factor in enumerate(factors))
    return RunOptions(progress=True, faults=faults, rebalance=rebalance)


HEALTHY = [1.0] * LAYOUT.dp
ONE_SLOW = [FACTOR if rank == SLOW else 1.0 for rank in range(LAYOUT.dp)]
RUNS = {
    "no slow rank": slowed(HEALTHY),
    "no slow rank, --rebalance": slowed(HEALTHY, rebalance=True),
    "one slow rank": slowed(ONE_SLOW),
    "one slow rank, --rebalance": slowed(ONE_SLOW, rebalance=True),
}


def arithmetic(options: RunOptions) -> float:
    """Return the time of a step, in units of a healthy rank's micro-batch."""
    factors = [fault.factor / SLEEPING for fault in options.faults]
    speeds = [1 / factor for factor in factors] if options.rebalance else HEALTHY
    return max(count * factor for count, factor in zip(deal(speeds, CONFIG.micro_batches), factors, strict=True))


def timed(cluster: md.Cluster, config: TrainConfig, options: RunOptions) -> tuple[list[float], Run]:
    """Return the seconds of each step after the first rebalancing, and the run."""
    ends: list[float] = []
    result = run(cluster, config, LAYOUT, options, lambda step, loss: ends.append(time.perf_counter()))
    return [after - before for before, after in zip(ends[EVERY:], ends[EVERY + 1 :], strict=False)], result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=25)
    options = parser.parse_args()
    config = TrainConfig(**vars(CONFIG) | {"steps": options.steps})

    seconds: dict[str, list[float]] = {name: [] for name in RUNS}
    last: dict[str, Run] = {}
    with md.Cluster(LAYOUT.world_size) as cluster:
        for _ in range(options.rounds):
            for name, wanted in RUNS.items():  # in turns, so that a machine that slows down slows all
                steps, last[name] = timed(cluster, config, wanted)
                seconds[name] += steps
    fingerprints = {result.fingerprint for result in last.values()}
    assert len(fingerprints) == 1, "rebalancing has changed the bits"

    medians = {name: statistics.median(steps) for name, steps in seconds.items()}
    table = Table(
        "run", title=f"{LAYOUT}, {CONFIG.micro_batches} micro-batches; the slow rank is {FACTOR:g} times as slow"
    )
    for column in ("time of a step", "arithmetic", "micro-batches of each rank at the end"):
        table.add_column(column, justify="right")
    for name, wanted in RUNS.items():
        counts = [rank.micro_batch_counts[-1] for rank in last[name].ranks]
        table.add_row(
            name,
            f"{medians[name] / medians['no slow rank']:.2f}",
            f"{arithmetic(wanted) / arithmetic(RUNS['no slow rank']):.2f}",
            ", ".join(map(str, counts)),
        )
    console = Console()
    console.print(table)
    console.print(f"a step without a slow rank: {1e3 * medians['no slow rank']:.0f} ms; all runs have one fingerprint")


if __name__ == "__main__":
    main()
