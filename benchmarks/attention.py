"""Time and memory of a training step with tiled attention, compared with plain, in one process.

    python benchmarks/attention.py

The two take turns, with one micro-batch of one sample; plain attention with selective recomputation runs beside them.
The time is the median ratio to plain attention in the same round. Bytes are the ledger's peak of saved activations.
"""

import argparse
import statistics

from rich.console import Console
from rich.table import Table

import minidist as md
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.trainer import run

WAYS = {
    "plain": ("plain", "none"),
    "plain, recompute=selective": ("plain", "selective"),
    "tiled": ("tiled", "none"),
    "tiled, recompute=selective": ("tiled", "selective"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--context", type=int, action="append", help="only this length; may be given twice")
    options = parser.parse_args()

    table = Table(title="one training step of 2 layers, width 64, 4 heads, tiles of 128 tokens")
    table.add_column("context")
    table.add_column("attention")
    for column in ("time", "MB of activations", "bytes per token"):
        table.add_column(column, justify="right")
    with md.Cluster(1) as cluster:
        for context in options.context or (512, 1024, 2048):
            seconds, found = {way: [] for way in WAYS}, {}
            for _ in range(options.rounds):
                for way, (attention, recompute) in WAYS.items():
                    config = TrainConfig(context=context, global_batch=1, micro_batch=1, steps=3, attention=attention)
                    (found[way],) = run(cluster, config, Layout(recompute=recompute)).ranks
                    seconds[way].append(found[way].seconds)
            for way in WAYS:
                ratio = statistics.median(a / b for a, b in zip(seconds[way], seconds["plain"], strict=True))
                held = found[way].memory["activations"]
                table.add_row(str(context), way, f"{ratio:.2f}", f"{held / 1e6:.2f}", f"{held / context:,.0f}")
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
