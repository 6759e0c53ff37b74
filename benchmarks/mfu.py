"""MFU of three model sizes on this machine, and where the rest of the time goes.

    python benchmarks/mfu.py

Sizes and layouts take turns, round by round; a figure is the median over rounds and ranks. "MFU" is against the peak
that the ranks measure after their last step (train/measuring/evaluate.py). "while computing" leaves out the time in
which a rank waits for others or for a core, so it is the same on a busy machine; with more ranks than cores it means
nothing. The next four columns are shares of that time, the last three shares of all time, in percent, in the last two
steps. Tracing these takes a few microseconds for each operation, which is part of the smallest model's operations and
"rest".
"""

import argparse
import statistics

from rich.console import Console
from rich.table import Table

import minidist as md
from minidist.analysis.breakdown import COMPUTE, KINDS
from minidist.analysis.utilization import Utilization
from minidist.cli.train.tables import HEADINGS, utilization_of
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import Run, RunOptions
from minidist.train.trainer import run

SIZES = {
    64: TrainConfig(steps=10),  # the default model
    256: TrainConfig(width=256, layers=4, heads=4, context=128, global_batch=16, micro_batch=4, steps=5),
    1024: TrainConfig(width=1024, layers=2, heads=8, context=128, global_batch=8, micro_batch=4, steps=4),
}


def figures(result: Run) -> list[dict[str, float]]:
    """Return each rank's MFU, over all time and while it computed, and its shares of time."""
    used = utilization_of(result)
    found = []
    for rank, whole, time in zip(result.ranks, used.ranks, used.time, strict=True):
        computing = Utilization.of_rank(rank.compute_seconds, rank.step_flops, rank.peak_flops)
        busy = sum(time[kind] for kind in COMPUTE) or 1.0  # 0 where it hardly ever had a core
        shares = time | {kind: time[kind] / busy for kind in COMPUTE}
        found.append({"MFU": whole.mfu, "while\ncomputing": computing.mfu, **shares, "peak": rank.peak_flops})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layouts", nargs="*", default=["dp=1", "dp=2", "tp=2"])
    parser.add_argument("--width", type=int, choices=SIZES, nargs="+", default=list(SIZES))
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    layouts = [Layout.parse(text) for text in options.layouts]
    clusters = {layout.world_size: md.Cluster(layout.world_size) for layout in layouts}
    found: dict[tuple[int, str], list[dict[str, float]]] = {}
    for _ in range(options.rounds):
        for width in options.width:
            for layout in layouts:
                asked = RunOptions(trace=True, measure_peak=True)
                result = run(clusters[layout.world_size], SIZES[width], layout, asked)
                found.setdefault((width, str(layout)), []).extend(figures(result))
    for cluster in clusters.values():
        cluster.close()

    columns = ("MFU", "while\ncomputing", *COMPUTE, *(kind for kind in KINDS if kind not in COMPUTE))
    peaks = [rank["peak"] / 1e9 for ranks in found.values() for rank in ranks]
    table = Table(
        title=f"peak of a rank: {statistics.median(peaks):.0f} GFLOP/s ({min(peaks):.0f} to {max(peaks):.0f})"
    )
    for column in ("width", "layout"):
        table.add_column(column)
    for column in columns:
        table.add_column(HEADINGS.get(column, column), justify="right")
    for (width, layout), ranks in found.items():
        medians = (100 * statistics.median(rank[column] for rank in ranks) for column in columns)
        table.add_row(str(width), layout, *(f"{value:.1f}" for value in medians))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
