"""Time and memory of recomputation, compared with keeping every activation, in one process.

    python benchmarks/recompute.py

The three modes take turns. The time is the median ratio to the run without recomputation in the same round. FLOPs are
those of the matrix products of a step, counted; bytes are the ledger's peak of saved activations.
"""

import argparse
import statistics
from dataclasses import replace

from rich.console import Console
from rich.table import Table

import minidist as md
from minidist.nn.recompute import MODES
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.trainer import run

SIZES = {  # width x layers, context
    "64 x 2, 64": TrainConfig(global_batch=16),
    "128 x 4, 128": TrainConfig(layers=4, width=128, context=128, global_batch=8),
    "256 x 8, 256": TrainConfig(layers=8, width=256, heads=8, context=256, global_batch=4),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()

    table = Table(title="one process: recomputation compared with none (model: width x layers, context)")
    for column in ("model", "precision", "recompute", "time", "FLOPs", "MB of activations", "share"):
        table.add_column(
            column, justify="right" if column in ("time", "FLOPs", "MB of activations", "share") else "left"
        )
    with md.Cluster(1) as cluster:
        for name, sizes in SIZES.items():
            for precision in ("fp32", "bf16"):
                config = replace(sizes, precision=precision, steps=options.steps)
                seconds, ranks = {mode: [] for mode in MODES}, {}
                for _ in range(options.rounds):
                    for mode in MODES:  # in turns, so that a machine that slows down slows all
                        (ranks[mode],) = run(cluster, config, Layout(recompute=mode)).ranks
                        seconds[mode].append(ranks[mode].seconds)
                for mode in MODES:
                    pairs = zip(seconds[mode], seconds["none"], strict=True)
                    flops, bytes_held = sum(ranks[mode].flops.values()), ranks[mode].memory["activations"]
                    table.add_row(
                        name, precision, mode,
                        f"{statistics.median(a / b for a, b in pairs):.2f}",
                        f"{flops / sum(ranks['none'].flops.values()):.2f}",
                        f"{bytes_held / 1e6:.2f}",
                        f"{100 * bytes_held / ranks['none'].memory['activations']:.0f} %",
                    )  # fmt: skip
    Console().print(table)


if __name__ == "__main__":
    main()
