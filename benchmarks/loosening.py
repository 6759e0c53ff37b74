"""Measure what looser steps cost and save: loss after equal steps, equal bytes and equal time, by method and seed.

    python benchmarks/loosening.py [--json minidist/analysis/loosened.json] [--png loosening.png]

About ten minutes on two cores. Four workers train a small model with each method, with three seeds: the same
steps and samples for all. Bytes are counted by the runs. Time is that of a cluster's clock, on four sites with slow
links (sites.toml): a short run of each method is recorded and replayed there; a parameter server is a fifth site.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import minidist.backend  # noqa: F401, isort: skip (first: it pins the BLAS to one thread before NumPy loads it)
from rich.console import Console
from rich.progress import track

from minidist.analysis.loosened import Experiment, Method, Run
from minidist.analysis.replay import as_if
from minidist.comm.runtime.clusters import WarmClusters, preload
from minidist.plan.cluster.hardware import ClusterSpec
from minidist.show.figures.loosened import draw, table
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RunOptions
from minidist.train.trainer import run

CONFIG = TrainConfig(global_batch=16, micro_batch=4, steps=200, lr=1e-3)
WORKERS = 4
METHODS = {  # a name, and what is added to dp=4
    "data parallelism": "",
    "bf16": "compress=bf16",
    "int8": "compress=int8",
    "one bit": "compress=onebit",
    "one bit, no feedback": "compress=onebit,error_feedback=0",
    "top 1 %": "compress=topk:0.01",
    "top 1 %, no feedback": "compress=topk:0.01,error_feedback=0",
    "PowerSGD, rank 2": "compress=powersgd:2",
    "PowerSGD, no feedback": "compress=powersgd:2,error_feedback=0",
    "one step late": "sync=delayed",
    "server, staleness 2": "sync=server,staleness=2,arrivals=seeded",
    "asynchronous": "sync=async,arrivals=seeded",
    "asynchronous, one of 4x": "sync=async,arrivals=1+1+1+4",
    "average every 8": "sync=local,local_steps=8,outer_lr=1,outer_momentum=0",
    "DiLoCo, every 8": "sync=local,local_steps=8",
    "DiLoCo, every 40": "sync=local,local_steps=40",
    "DiLoCo, 2 fragments": "sync=local,local_steps=8,fragments=2",
}
WITH_SGD = {  # error feedback is made for steps that are linear in the gradients
    "SGD: data parallelism": "",
    "SGD: top 1 %": "compress=topk:0.01",
    "SGD: top 1 %, no feedback": "compress=topk:0.01,error_feedback=0",
    "SGD: one bit": "compress=onebit",
    "SGD: one bit, no feedback": "compress=onebit,error_feedback=0",
}
SGD = {"optimizer": "sgd", "lr": 0.5, "weight_decay": 0.0}
SEEDS = (0, 1, 2)
SITES = Path(__file__).with_name("sites.toml")


def layout_of(settings: str) -> Layout:
    return Layout.parse(",".join(filter(None, (f"dp={WORKERS}", settings))))


def seconds_per_step(clusters: WarmClusters, layout: Layout) -> float:
    """Return seconds on the cluster's clock, from a run that is long enough for two rounds of local steps."""
    steps = 2 * layout.local_steps if layout.sync == "local" else 8
    spec = ClusterSpec.parse(f"{SITES}:{layout.world_size}x1")
    config = replace(CONFIG, steps=steps, warmup=1)
    options = RunOptions(trace=True, links=spec.links)
    result = run(clusters(layout.world_size), config, replace(layout, node_size=1), options)
    replayed = as_if([rank.log for rank in result.ranks], spec)
    return replayed.seconds / (layout.local_steps if layout.sync == "local" else len(replayed.steps))


def measured(name: str, settings: str, clusters: WarmClusters) -> Method:
    """Run a method with each seed, and once on the clock."""
    layout, config = layout_of(settings), replace(CONFIG, **SGD) if name in WITH_SGD else CONFIG
    runs = []
    for seed in SEEDS:
        result = run(clusters(layout.world_size), replace(config, seed=seed), layout, RunOptions(validate=True))
        sent = [int(rank.traffic.sent[:, 0].sum()) for rank in result.ranks[:WORKERS]]
        runs.append(Run(seed, result.losses, result.ranks[0].validation_loss, sum(sent) / WORKERS / CONFIG.steps))
    return Method(name, str(layout), seconds_per_step(clusters, layout), runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="PATH", help="write the measurements to this file")
    parser.add_argument("--png", metavar="PATH", help="draw them to this file")
    options = parser.parse_args()
    console = Console()
    preload("minidist.train.trainer")
    with WarmClusters() as clusters:
        methods = []
        for name, settings in track((METHODS | WITH_SGD).items(), console=console):
            methods.append(measured(name, settings, clusters))
            if options.json:
                Experiment(methods).write(Path(options.json))
    experiment = Experiment(methods)
    console.print(table(experiment))
    if options.json:
        experiment.write(Path(options.json))
    if options.png:
        draw(experiment).savefig(options.png, dpi=110)


if __name__ == "__main__":
    main()
