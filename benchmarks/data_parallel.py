"""Tokens per second of data-parallel layouts, as a multiple of one process with one BLAS thread.

    python benchmarks/data_parallel.py dp=2 dp=2,sync=naive

The layouts take turns with one process, round by round; a ratio is the median over rounds. The row "independent" is the
machine's upper limit: as many single processes at the same time, which share caches and memory but no data.
"""

import argparse
import statistics
from dataclasses import replace
from unittest.mock import patch

from rich.console import Console
from rich.table import Table

import minidist as md
from minidist.train import trainer
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RunOptions
from minidist.train.trainer import run, train_rank

SIZES = {
    "small": TrainConfig(width=64, layers=2, context=64, global_batch=16, micro_batch=4, steps=60),
    "medium": TrainConfig(width=128, layers=4, context=128, global_batch=16, micro_batch=4, steps=12),
}


def train_alone(world, config: TrainConfig, layout: Layout, options: RunOptions):
    """Train on this rank as in a single process, at the same time as the other ranks."""
    with patch.object(trainer, "find_gpus"):  # it is about all ranks
        return train_rank(world.new_group([world.rank]), config, Layout(), options)


def independent(world, config: TrainConfig, layout: Layout, options: RunOptions):
    """Train on this rank's share of the batch alone."""
    return train_alone(world, replace(config, global_batch=config.global_batch // world.size), layout, options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layouts", nargs="*", default=["dp=2", "dp=2,sync=bucketed", "dp=2,sync=naive"])
    parser.add_argument("--size", choices=SIZES, nargs="+", default=list(SIZES))
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    layouts = [Layout.parse(text) for text in options.layouts]
    most = max(layout.dp for layout in layouts)

    for size in options.size:
        config = SIZES[size]
        speeds: dict[str, list[float]] = {}
        with md.Cluster(1) as one:
            clusters = {layout.dp: md.Cluster(layout.dp) for layout in layouts}
            for _ in range(options.rounds):
                speeds.setdefault("one process", []).append(run(one, config, Layout()).tokens_per_second)
                for layout in layouts:
                    speed = run(clusters[layout.dp], config, layout).tokens_per_second
                    speeds.setdefault(str(layout), []).append(speed)
                apart = run(clusters[most], config, Layout(dp=most), rank_function=independent)
                speeds.setdefault(f"{most} independent", []).append(apart.tokens_per_second)
            for cluster in clusters.values():
                cluster.close()
        table = Table(title=f"{size}: width {config.width}, {config.layers} layers, context {config.context}")
        table.add_column("layout")
        table.add_column("tokens/s", justify="right")
        table.add_column("times one process", justify="right")
        table.add_column("least to most", justify="right")
        for name, values in speeds.items():
            ratios = [value / base for value, base in zip(values, speeds["one process"], strict=True)]
            spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
            table.add_row(name, f"{statistics.median(values):,.0f}", f"{statistics.median(ratios):.2f}", spread)
        Console().print(table)


if __name__ == "__main__":
    main()
