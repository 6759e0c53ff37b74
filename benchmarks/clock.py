"""The cluster's clock beside real runs: this machine as the cluster, its links and its speed measured.

    python benchmarks/clock.py

First the machine is measured: a link by messages that go to and fro between two ranks (alpha: an empty one; beta: one
of 4 MiB), and a core by operations as training runs them (a large product, a large sum of two arrays, and one of a few
elements, of which only the time around it is left). Nothing is fitted to the runs that follow. Then training steps and
all-reduces are timed, and replayed on the clock with those five numbers. Steps are timed without a trace. Overlap is
left out: here the core that computes also moves the messages.
"""

import argparse
import statistics
import time
from functools import partial

import numpy as np
from rich.console import Console
from rich.table import Table

import minidist as md
from minidist import trace
from minidist.analysis.clock.as_if import Pace
from minidist.analysis.clock.replay import replay
from minidist.analysis.clock.report import report
from minidist.nn.arithmetic import matmul
from minidist.nn.tensor import Tensor
from minidist.plan.hardware import Accelerator
from minidist.plan.topologies import single_switch
from minidist.plan.topology import Link
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
LAYOUTS = [Layout(), Layout(dp=2, sync="naive"), Layout(tp=2), Layout(tp=2, sp=1), Layout(pp=2)]


def median_seconds(function, repetitions: int) -> float:
    times = []
    for _ in range(repetitions):
        began = time.perf_counter()
        function()
        times.append(time.perf_counter() - began)
    return statistics.median(times[repetitions // 4 :])


def to_and_fro(world, nbytes: int) -> float:
    """Seconds of one message, half of the time there and back."""
    array = np.zeros(nbytes, np.uint8)

    def once() -> None:
        if world.rank == 0:
            md.send(array, 1, world)
            md.recv(array, 1, world)
        else:
            md.recv(array, 0, world)
            md.send(array, 0, world)

    return median_seconds(once, 40) / 2


def operations(world) -> tuple[float, float, float]:
    """FLOP/s of products, bytes/s of elementwise operations, and seconds around an operation, all ranks at once."""
    small, large = Tensor(np.ones(4, np.float32)), Tensor(np.ones(LARGE // 4, np.float32))
    matrix = Tensor(np.ones((512, 512), np.float32))
    md.barrier(world)
    around = median_seconds(lambda: small + small, 2000)
    moving = median_seconds(lambda: large + large, 40) - around
    product = median_seconds(lambda: matmul(matrix, matrix), 40) - around
    return 2 * 512**3 / product, 3 * LARGE / moving, around


def measured() -> tuple[Link, Pace]:
    """This machine, as the slowest rank sees it."""
    with md.Cluster(RANKS) as cluster:
        alpha, long = (cluster.run(to_and_fro, nbytes)[0] for nbytes in (0, LARGE))
        speeds = cluster.run(operations)
    flops, bandwidth = (min(column) for column in list(zip(*speeds, strict=True))[:2])
    here = Accelerator("this machine", memory=1.0, memory_bandwidth=bandwidth, flops={"fp32": flops}, source="measured")
    return Link(LARGE / (long - alpha), alpha), Pace(here, 1.0, 1.0, max(speed[2] for speed in speeds))


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


def steps(link: Link, pace: Pace) -> list[tuple[str, float, float]]:
    rows = []
    for width, config in CONFIGS.items():
        for layout in LAYOUTS:
            ends: list[float] = []
            with md.Cluster(layout.world_size) as cluster:
                run(cluster, config, layout, RunOptions(), None)
                run(
                    cluster, config, layout, RunOptions(progress=True),
                    lambda step, loss, ends=ends: ends.append(time.perf_counter()),
                )  # fmt: skip
                traced = run(cluster, config, layout, RunOptions(trace=True))
            real = statistics.median(np.diff(ends)[2:])
            here = single_switch(layout.world_size, link)
            clock = report(replay([rank.log for rank in traced.ranks], here, pace.seconds), here).seconds
            rows.append((f"step, width {width}, {layout}", real, clock))
    return rows


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    console = Console()
    link, pace = measured()
    console.print(
        f"a link: {link.latency * 1e6:.1f} µs and {link.bandwidth / 1e9:.2f} GB/s; a core: "
        f"{pace.accelerator.flops['fp32'] / 1e9:.0f} GFLOP/s, {pace.accelerator.memory_bandwidth / 1e9:.1f} GB/s, "
        f"{pace.overhead * 1e6:.1f} µs around an operation"
    )
    table = Table(title="this machine on the clock", title_justify="left")
    for column in ("", "real, ms", "clock, ms", "clock / real"):
        table.add_column(column, justify="left" if not column else "right")
    for name, real, clock in reduces(link) + steps(link, pace):
        table.add_row(name, f"{real * 1e3:.3f}", f"{clock * 1e3:.3f}", f"{clock / real:.2f}")
    console.print(table)


if __name__ == "__main__":
    main()
