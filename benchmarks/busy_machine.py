"""Measure what waiting costs next to other programs: steps and small all-reduces, alone and next to busy loops.

    python benchmarks/busy_machine.py
    taskset -c 0,1 python benchmarks/busy_machine.py --loops 4

``--loops`` programs compute all the time next to the ranks, by default two for each core. With ``--apart`` each has a
session of its own, as a browser has: Linux may then schedule it as another group
(/proc/sys/kernel/sched_autogroup_enabled). "always yields" are the same ranks without what
minidist/comm/transports/cores.py learns: they give up the core at every wait, even if that takes a whole time slice.
All take turns, round by round; a ratio is the median over rounds. "cores" is the CPU time of all ranks, divided by the
time that passed.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
from rich.console import Console
from rich.table import Table

import minidist as md
from minidist.comm.transports.cores import Core
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RunOptions
from minidist.train.trainer import train_rank

CONFIG = TrainConfig(global_batch=8, micro_batch=4, steps=10)
REPETITIONS = 60
NBYTES = 1 << 10
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
ONE, YIELDS = "a step of one process", ", always yields"


def one_rank(world, work, wait: str, *args) -> tuple[float, float]:
    """Return the seconds of one piece of work, and this rank's CPU seconds for it."""
    learned = Core.crowded
    if wait == YIELDS:
        Core.crowded = False
    try:
        md.barrier(world)
        cpu, began = time.process_time(), time.perf_counter()
        pieces = work(world, *args)
        return (time.perf_counter() - began) / pieces, (time.process_time() - cpu) / pieces
    finally:
        Core.crowded = learned


def steps(world, layout: Layout) -> int:
    train_rank(world, CONFIG, layout, RunOptions())
    return CONFIG.steps


def reduces(world) -> int:
    array = np.zeros(NBYTES // 4, np.float32)
    for _ in range(REPETITIONS):
        md.all_reduce(array, group=world)
    return REPETITIONS


@contextmanager
def busy_loops(count: int, apart: bool) -> Iterator[None]:
    loops = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=apart) for _ in range(count)
    ]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def measure(layout: Layout, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Return way -> for each round, the seconds of one piece of its work, and the CPU seconds of all ranks."""
    ranks = layout.world_size
    ways = {ONE: (1, steps, "", Layout())}
    for wait in ("", YIELDS):
        ways[f"a step, {layout}{wait}"] = (ranks, steps, wait, layout)
        ways[f"all-reduce, 1 KiB, {ranks} ranks{wait}"] = (ranks, reduces, wait)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    with ExitStack() as stack:
        clusters = {size: stack.enter_context(md.Cluster(size)) for size in {1, ranks}}
        for _ in range(rounds):
            for name, (size, work, wait, *args) in ways.items():
                seconds, cpu = zip(*clusters[size].run(one_rank, work, wait, *args), strict=True)
                found[name].append((max(seconds), sum(cpu)))
    return found


def ratios(of: list[tuple[float, float]], to: list[tuple[float, float]]) -> str:
    """Return the median, the least and the greatest ratio of the seconds, taken round by round."""
    found = [mine / theirs for (mine, _), (theirs, _) in zip(of, to, strict=True)]
    return f"{statistics.median(found):.2f} ({min(found):.2f} to {max(found):.2f})"


def tabulate(title: str, found: dict, quiet: dict) -> Table:
    table = Table("", title=title)
    for column in ("ms", "cores", "of 0 loops", "of one process", "of always yields"):
        table.add_column(column, justify="right")
    for name, values in found.items():
        seconds = statistics.median(value for value, _ in values)
        idle = statistics.median(value for value, _ in quiet[name])
        cores = statistics.median(cpu / value for value, cpu in values)
        one = ratios(values, found[ONE]) if "step" in name else ""
        yields = ratios(values, found[name + YIELDS]) if name + YIELDS in found else ""
        table.add_row(name, f"{1e3 * seconds:.2f}", f"{cores:.2f}", f"{seconds / idle:.1f}", one, yields)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layout", nargs="?", default="tp=2")
    parser.add_argument("--loops", type=int, default=2 * CORES)
    parser.add_argument("--apart", action="store_true", help="run each loop in a session of its own")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    layout = Layout.parse(options.layout)

    quiet: dict = {}
    for count in (0, options.loops):
        with busy_loops(count, options.apart):
            found = measure(layout, options.rounds)
        quiet = quiet or found
        Console(width=130).print(tabulate(f"beside {count} busy loops, {CORES} cores", found, quiet))


if __name__ == "__main__":
    main()
