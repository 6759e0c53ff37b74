"""Compare a mixture of experts with a dense model of the same FLOPs: loss, load, time of a step, and bytes sent.

    python benchmarks/experts.py --steps 400

8 experts of half an MLP's hidden units, 2 for each token, take the FLOPs of the MLP. The crossover is arithmetic
(minidist/plan/expert_traffic.py), with links between nodes that are slower than those inside.
"""

import argparse
import statistics

from rich.console import Console
from rich.table import Table

import minidist as md
from minidist.analysis.traffic import ExpertLoad
from minidist.plan.expert_traffic import Links, smallest_k
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RunOptions
from minidist.train.trainer import run

MIXTURE = {"experts": 8, "expert_hidden": 2 * TrainConfig.width}
MODELS = {
    "dense": {},
    "experts, no balance": MIXTURE | {"bias_rate": 0.0},
    "experts, balance loss": MIXTURE | {"bias_rate": 0.0, "aux_loss": 0.01},
    "experts, balance loss over the global batch": MIXTURE
    | {"bias_rate": 0.0, "aux_loss": 0.01, "aux_scope": "global_batch"},
    "experts, bias (the default)": MIXTURE,
}
TIMED = {"dense": ({}, "dp=1"), "experts": (MIXTURE, "dp=1"), "dp=2": (MIXTURE, "dp=2"), "ep": (MIXTURE, "dp=2,ep=2")}


def losses(steps: int, lr: float) -> Table:
    table = Table("model", title=f"{steps} steps of the default model, peak learning rate {lr:g}")
    for column in ("MFLOP a step", "validation loss", "busiest expert / mean, last 10 steps", "idle experts"):
        table.add_column(column, justify="right")
    with md.Cluster(1) as cluster:
        for name, changes in MODELS.items():
            config = TrainConfig(steps=steps, lr=lr, **changes)
            (rank,) = run(cluster, config, Layout(), RunOptions(validate=True)).ranks
            load = ExpertLoad.of(rank.expert_counts[-10:]) if rank.expert_counts else None
            table.add_row(
                name,
                f"{sum(rank.flops.values()) / steps / 1e6:,.0f}",
                f"{rank.validation_loss:.4f}",
                f"{load.imbalance.mean():.2f}" if load else "",
                f"{(load.tokens.sum(axis=0) == 0).sum()} of {load.tokens[0].size}" if load else "",
            )
    return table


def step_times(rounds: int) -> Table:
    seconds: dict[str, list[float]] = {name: [] for name in TIMED}
    for _ in range(rounds):
        for name, (changes, text) in TIMED.items():
            layout = Layout.parse(text)
            with md.Cluster(layout.world_size) as cluster:
                result = run(cluster, TrainConfig(steps=10, **changes), layout)
            seconds[name].append(max(rank.seconds for rank in result.ranks))
    table = Table("model", "layout", title="time of a step / one process' with experts")
    table.add_column("median", justify="right")
    for name, (changes, text) in TIMED.items():
        ratios = [a / b for a, b in zip(seconds[name], seconds["experts"], strict=True)]
        table.add_row("8 experts" if changes else "dense", text, f"{statistics.median(ratios):.2f}")
    return table


def crossover(slower: float) -> Table:
    title = (
        "from which k on the all-to-alls of a mixture take longer than tensor parallelism's all-reduces, for the same\n"
        f"micro-batch / for the same batch; links between nodes {slower:g} times slower, t fills a node"
    )
    table = Table("expert-parallel ranks", title=title)
    nodes = (4, 8, 16, 32, 64)
    for size in nodes:
        table.add_column(f"{size} GPUs a node", justify="right")
    for ranks in (4, 8, 16, 32, 64, 128):
        found = []
        for size in nodes:
            links = Links(slower, 1.0, size)
            both = (smallest_k(ranks, size, 256, links, same_batch) for same_batch in (False, True))
            found.append(" / ".join(str(k) for k in both))
        table.add_row(str(ranks), *found)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400, help="of the runs whose losses are compared; 0 for none")
    parser.add_argument("--lr", type=float, default=TrainConfig.lr, help="of those runs (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds; 0 for none")
    options = parser.parse_args()
    console = Console(width=130)
    if options.steps:
        console.print(losses(options.steps, options.lr))
    if options.rounds:
        console.print(step_times(options.rounds))
    console.print(crossover(10.0))


if __name__ == "__main__":
    main()
