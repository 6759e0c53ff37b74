"""Step time of tensor-parallel layouts, compared with one process with one BLAS thread, and where the time goes.

    python benchmarks/tensor_parallel.py --png where.png

The layouts take turns with one process, round by round; a ratio is the median over rounds. "waiting" is the time that a
rank spends in a collective before the last rank has entered it (minidist/analysis/breakdown.py). The row "apart" is the
machine's upper limit: as many single processes at the same time, each with the full work, which share only caches and
memory. If splitting the work among them cost nothing, a step would take 1/N of that.
"""

import argparse
import statistics

import breakdown_picture
from data_parallel import train_alone
from rich.console import Console
from rich.table import Table

import minidist as md
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RunOptions
from minidist.train.trainer import run

BATCH = {"global_batch": 4, "micro_batch": 4, "context": 128, "layers": 4, "heads": 8, "steps": 8}
SIZES = {width: TrainConfig(width=width, **BATCH) for width in (128, 256, 512)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layouts", nargs="*", default=["tp=2", "tp=2,sp=1"])
    parser.add_argument("--width", type=int, choices=SIZES, nargs="+", default=[256, 512])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--png", metavar="PATH", help="draw where the time of the last round's last step goes")
    options = parser.parse_args()
    layouts = [Layout.parse(text) for text in options.layouts]
    most = max(layout.world_size for layout in layouts)

    pictures = {}
    for width in options.width:
        config = SIZES[width]
        times: dict[str, list[float]] = {}
        shares: dict[str, list[dict[str, float]]] = {}
        clusters = {size: md.Cluster(size) for size in {1, most, *(layout.world_size for layout in layouts)}}
        tried = [(str(layout), layout, None) for layout in (Layout(), *layouts)]
        for _ in range(options.rounds):
            for name, layout, function in (*tried, (f"{most} apart", Layout(tp=most), train_alone)):
                cluster = clusters[layout.world_size]
                result = run(cluster, config, layout, RunOptions(trace=True), rank_function=function)
                times.setdefault(name, []).append(max(rank.seconds for rank in result.ranks) / config.steps)
                if function is None:
                    found = breakdown_picture.seconds([rank.log for rank in result.ranks])
                    shares.setdefault(name, []).append(found[0])
                    pictures[f"width {width}, {name}"] = found
        for cluster in clusters.values():
            cluster.close()

        table = Table(title=f"width {width}: {config.layers} layers, {config.micro_batch} x {config.context} tokens")
        table.add_column("layout")
        for column in ("ms a step", "of one", "least to most", "compute", "comm.", "waiting"):
            table.add_column(column, justify="right")
        for name, values in times.items():
            ratios = [value / base for value, base in zip(values, times["dp=1"], strict=True)]
            spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
            parts = [
                f"{100 * statistics.median(one[kind] / sum(one.values()) for one in shares[name]):.0f} %"
                for kind in breakdown_picture.KINDS
                if name in shares
            ]
            table.add_row(
                name, f"{1e3 * statistics.median(values):.1f}", f"{statistics.median(ratios):.2f}", spread, *parts
            )
        Console().print(table)
    if options.png:
        breakdown_picture.draw(pictures, "where the time of a step goes").savefig(options.png, dpi=110)


if __name__ == "__main__":
    main()
