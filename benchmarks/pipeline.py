"""Compare a pipeline's measured bubble with the formula's, for several schedules and numbers of micro-batches.

    python benchmarks/pipeline.py --png pipelines.png

Each rank needs a core. The measured bubble is the share of the ranks' time in which they are idle, from the first
action of a step to the last, in the trace of each round's last step; the table shows the median. The column "costs" is
the bubble of the same schedule with the measured times of its actions (the median of each stage's forwards and
backwards) but no time for messages: the formula for stages with their real, unequal times.
"""

import argparse
import statistics
from collections import defaultdict
from dataclasses import replace

from rich.console import Console
from rich.table import Table

import minidist as md
from minidist.analysis.steps import slots_of
from minidist.parallel.tools.schedule_check import bubble, timeline
from minidist.parallel.tools.schedules import schedule
from minidist.show.figures import pipelines
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RunOptions
from minidist.train.trainer import run

CONFIG = TrainConfig(width=256, layers=4, heads=4, context=128, micro_batch=4, steps=4)
LAYOUTS = ("pp=2,schedule=gpipe", "pp=2", "pp=2,virtual=2", "pp=2,schedule=zb-h1")


def with_real_costs(slots, planned) -> float:
    """Return the bubble of a schedule whose actions take their median time in these slots."""
    took = defaultdict(list)
    for row in slots:
        for slot in row:
            took[slot.action.stage, slot.action.kind].append(slot.end - slot.start)
    costs = {key: statistics.median(times) for key, times in took.items()}
    return bubble(timeline(planned, lambda action: costs[action.stage, action.kind]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layouts", nargs="*", default=LAYOUTS)
    parser.add_argument("--micro-batches", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--png", metavar="PATH", help="draw the last round with the most micro-batches")
    options = parser.parse_args()

    table = Table(title=f"bubble: {CONFIG.layers} layers of width {CONFIG.width}, micro-batches of 4 x 128 tokens")
    for column in ("layout", "micro-batches", "formula", "costs", "measured", "ms a step", "of 1F1B's"):
        table.add_column(column, justify="right" if column != "layout" else "left")
    pictures = {}
    for count in options.micro_batches:
        config, measured, costs, times = replace(CONFIG, global_batch=4 * count), {}, {}, {}
        layouts = [Layout.parse(text) for text in options.layouts]
        clusters = {layout.world_size: md.Cluster(layout.world_size) for layout in layouts}
        for _ in range(options.rounds):
            for layout in layouts:  # in turns, so that a machine that slows down slows all
                result = run(clusters[layout.world_size], config, layout, RunOptions(trace=True))
                slots = slots_of([rank.log for rank in result.ranks])
                planned = schedule(layout.schedule, layout.pp, count, layout.virtual)
                measured.setdefault(layout, []).append(bubble(slots))
                costs.setdefault(layout, []).append(with_real_costs(slots, planned))
                times.setdefault(layout, []).append(max(rank.seconds for rank in result.ranks) / config.steps)
                pictures[str(layout)] = slots
        for cluster in clusters.values():
            cluster.close()
        base = next((times[layout] for layout in layouts if layout.schedule == "1f1b"), None)
        for layout in layouts:
            formula = bubble(timeline(schedule(layout.schedule, layout.pp, count, layout.virtual)))
            ratio = statistics.median(a / b for a, b in zip(times[layout], base, strict=True)) if base else float("nan")
            table.add_row(
                str(layout),
                str(count),
                *(
                    f"{100 * value:.1f} %"
                    for value in (formula, *map(statistics.median, (costs[layout], measured[layout])))
                ),
                f"{1e3 * statistics.median(times[layout]):.0f}",
                f"{ratio:.2f}",
            )
        table.add_section()
    Console(width=110).print(table)
    if options.png:
        pipelines.draw(pictures, "seconds").savefig(options.png, dpi=110)


if __name__ == "__main__":
    main()
