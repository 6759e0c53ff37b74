"""Measure this machine's roofline, and products of decode and prefill against it. One thread, float32.

    python benchmarks/roofline.py [--png roofline.png]

The peak is that of the best of several square products; the bandwidth is that of the better of two loops over arrays
too large for the cache: a triad as in STREAM (McCalpin), in two NumPy calls that each read and write, and a dot
product, which only reads. A decode step multiplies one row for each sample with all weights, prefill one for each
token; here the weights are those of an MLP's first layer, 64 MiB. All take turns. Each time is the best of its rounds,
in seconds of this process's computing: waiting for a core does not count.
"""

import argparse
from collections.abc import Callable
from time import process_time

import numpy as np
from rich.console import Console
from rich.table import Table

import minidist  # noqa: F401  pins the BLAS to one thread
from minidist.plan.cluster.hardware import Accelerator
from minidist.plan.cluster.roofline import Work, attainable_flops, ridge_point
from minidist.show.figures.roofline import Dot, draw

WIDTH = 2048
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
SQUARES = (256, 512, 1024)
ELEMENTS = 1 << 24  # 64 MiB of float32


def product(rows: int, inner: int, columns: int) -> tuple[Work, Callable[[], object]]:
    """Return the work of a product (rows, inner) @ (inner, columns), and a call that computes it."""
    generator = np.random.default_rng(0)
    left, right = (generator.standard_normal(shape, np.float32) for shape in ((rows, inner), (inner, columns)))
    out = np.empty((rows, columns), np.float32)
    work = Work(2 * rows * inner * columns, 4 * (rows * inner + inner * columns + rows * columns))
    return work, lambda: np.matmul(left, right, out=out)


def loops() -> dict[str, tuple[Work, Callable[[], object]]]:
    """Return two loops that only move memory, with their work."""
    a, b, c = (np.ones(ELEMENTS, np.float32) for _ in range(3))

    def triad() -> None:
        np.multiply(c, np.float32(3), out=a)  # reads c, writes a
        np.add(a, b, out=a)  # reads a and b, writes a

    return {
        "triad": (Work(2 * ELEMENTS, 5 * 4 * ELEMENTS), triad),
        "dot product": (Work(2 * ELEMENTS, 2 * 4 * ELEMENTS), lambda: np.dot(a, b)),
    }


def best_seconds(calls: list[Callable[[], object]], rounds: int) -> list[float]:
    """Return the shortest time of each call; the calls take turns."""
    best = [float("inf")] * len(calls)
    for _ in range(rounds):
        for place, call in enumerate(calls):
            start = process_time()
            call()
            best[place] = min(best[place], process_time() - start)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--png", help="draw the roofline into this file")
    options = parser.parse_args()

    squares = {f"{side:,} x {side:,}": product(side, side, side) for side in SQUARES}
    layers = {batch: product(batch, WIDTH, 4 * WIDTH) for batch in BATCHES}
    measured = squares | loops() | layers
    seconds = dict(zip(measured, best_seconds([call for _, call in measured.values()], options.rounds), strict=True))
    speed = {name: measured[name][0].flops / seconds[name] for name in squares}
    bandwidth = {name: measured[name][0].nbytes / seconds[name] for name in ("triad", "dot product")}
    machine = Accelerator("this machine", 1.0, max(bandwidth.values()), {"fp32": max(speed.values())}, "measured")

    console = Console(width=110)
    console.print(f"peak: {max(speed.values()) / 1e9:.1f} GFLOP/s, of {max(speed, key=speed.get)}")
    console.print("memory: " + ", ".join(f"{name} {rate / 1e9:.1f} GB/s" for name, rate in bandwidth.items()))
    console.print(f"ridge point: {ridge_point(machine, 'fp32'):.1f} FLOPs per byte")
    table = Table(title=f"(rows, {WIDTH:,}) @ ({WIDTH:,}, {4 * WIDTH:,}), float32, one thread", title_justify="left")
    for column in ("rows", "FLOPs per byte", "ms", "GFLOP/s", "roofline", "share"):
        table.add_column(column, justify="right")
    for batch in BATCHES:
        work = measured[batch][0]
        reached, roof = work.flops / seconds[batch], attainable_flops(machine, "fp32", work.intensity)
        table.add_row(
            str(batch),
            f"{work.intensity:.2f}",
            f"{1e3 * seconds[batch]:.2f}",
            f"{reached / 1e9:.1f}",
            f"{roof / 1e9:.1f}",
            f"{reached / roof:.0%}",
        )
    console.print(table)
    if options.png:
        works = {batch: measured[batch][0] for batch in BATCHES}
        dots = [Dot(str(batch), work.intensity, work.flops / seconds[batch]) for batch, work in works.items()]
        series = {"decode and prefill: one layer, by rows": dots}
        title = "This machine, one thread: measured"
        draw(max(speed.values()), max(bandwidth.values()), series, title, "fp32").savefig(options.png, dpi=120)


if __name__ == "__main__":
    main()
