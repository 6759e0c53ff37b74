"""Compare the cluster's clock with real runs: this machine is the cluster, with measured links and speed.

    python benchmarks/clock.py

A link is measured by messages that two ranks exchange and add up (alpha: empty ones; beta: those of 4 MiB), a core by
a run of one rank: seconds per byte of each operation, and seconds around an operation. With these, all-reduces and the
steps of two ranks are predicted, of which nothing was measured before. Steps are timed without a trace. Overlap is left
out: here the core that computes also moves the messages.
"""

import argparse
import statistics
import time
from collections import Counter
from functools import partial

import numpy as np
from rich.console import Console
from rich.table import Table

import minidist as md
from minidist import trace
from minidist.analysis.replay import replay
from minidist.analysis.report import report
from minidist.comm.point_to_point import sendrecv
from minidist.plan.cluster.topologies import single_switch
from minidist.plan.cluster.topology import Link
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RunOptions
from minidist.train.trainer import run

RANKS = 2
LARGE = 4 << 20  # bytes
SIZES = (1 << 10, 64 << 10, 1 << 20, 16 << 20)
CONFIGS = {
    width: TrainConfig(width=width, heads=4, context=64, global_batch=16, micro_batch=4, steps=8) for width in (64, 256)
}
LAYOUTS = [Layout(dp=2, sync="naive"), Layout(tp=2), Layout(tp=2, sp=1), Layout(pp=2)]


def median_seconds(function, repetitions: int) -> float:
    times = []
    for _ in range(repetitions):
        began = time.perf_counter()
        function()
        times.append(time.perf_counter() - began)
    return statistics.median(times[repetitions // 4 :])


def exchange(world, nbytes: int) -> float:
    """Return the seconds to exchange a message each way and add it to an array, as all-reduces do."""
    mine, theirs = np.zeros(nbytes // 4, np.float32), np.zeros(nbytes // 4, np.float32)
    md.barrier(world)
    return median_seconds(lambda: sendrecv(mine, 1 - world.rank, theirs, 1 - world.rank, world, np.add), 60)


def measured_link() -> Link:
    with md.Cluster(RANKS) as cluster:
        alpha, long = (max(cluster.run(exchange, nbytes)) for nbytes in (0, LARGE))
    return Link(LARGE / (long - alpha), alpha)


class Speed:
    """Times of this machine's kernels, from a run of one rank."""

    def __init__(self, log: list, step_seconds: float) -> None:
        kernels = [entry for entry in log if isinstance(entry, trace.Kernel)]
        events = [entry for entry in log if isinstance(entry, trace.Event)]
        steps = sum(event.track == "step" for event in events)
        nbytes, seconds = Counter(), Counter()
        for kernel in kernels:
            nbytes[span_of(kernel.name)] += kernel.nbytes
        for event in events:
            seconds[event.name] += (event.end - event.start) / 1e9
        self.per_byte = {name: seconds[name] / nbytes[name] for name in nbytes}
        self.around = (step_seconds - sum(seconds[name] for name in nbytes) / steps) / (len(kernels) / steps)

    def seconds(self, kernel: trace.Kernel) -> float:
        return self.per_byte[span_of(kernel.name)] * kernel.nbytes + self.around


def span_of(kernel: str) -> str:
    """Return the span that holds a kernel's time."""
    return "optimizer" if kernel in ("adamw", "clip") else kernel


def reduce(world, nbytes: int, algorithm: str) -> tuple[float, list]:
    array = np.zeros(nbytes // 4, np.float32)
    call = partial(md.all_reduce, array, group=world, algorithm=algorithm)

    def once() -> float:
        md.barrier(world)
        began = time.perf_counter()
        call()
        return time.perf_counter() - began

    times = [once() for _ in range(40)]
    md.barrier(world)
    trace.start()
    call()
    return statistics.median(times[10:]), trace.stop()


def reduces(link: Link) -> list[tuple[str, float, float]]:
    rows = []
    with md.Cluster(RANKS) as cluster:
        for algorithm in ("tree", "ring"):
            for nbytes in SIZES:
                found = cluster.run(reduce, nbytes, algorithm)
                clock = replay([log for _, log in found], single_switch(RANKS, link), lambda kernel: 0.0).seconds
                rows.append((f"all-reduce, {algorithm}, {nbytes >> 10} KiB", max(t for t, _ in found), clock))
    return rows


def timed(layout: Layout, config: TrainConfig) -> tuple[float, list[list]]:
    """Return the seconds of a step, and the logs of a run like it."""
    ends: list[float] = []
    with md.Cluster(layout.world_size) as cluster:
        run(
            cluster, config, layout, RunOptions(progress=True),
            lambda step, loss: ends.append(time.perf_counter()),
        )  # fmt: skip
        traced = run(cluster, config, layout, RunOptions(trace=True))
    return float(statistics.median(np.diff(ends)[2:])), [rank.log for rank in traced.ranks]


def steps(link: Link) -> list[tuple[str, float, float]]:
    rows = []
    for width, config in CONFIGS.items():
        real, (log,) = timed(Layout(), config)
        speed = Speed(log, real)
        for layout in LAYOUTS:
            real, logs = timed(layout, config)
            here = single_switch(layout.world_size, link)
            rows.append((f"step, width {width}, {layout}", real, report(replay(logs, here, speed.seconds)).seconds))
    return rows


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    console = Console()
    link = measured_link()
    console.print(f"a link: {link.latency * 1e6:.1f} µs and {link.bandwidth / 1e9:.2f} GB/s")
    table = Table(title="this machine on the clock", title_justify="left")
    for column in ("", "real, ms", "clock, ms", "clock / real"):
        table.add_column(column, justify="left" if not column else "right")
    for name, real, clock in reduces(link) + steps(link):
        table.add_row(name, f"{real * 1e3:.3f}", f"{clock * 1e3:.3f}", f"{clock / real:.2f}")
    console.print(table)


if __name__ == "__main__":
    main()
