"""Measure how long saves pause training, and how long a run takes to continue after a rank has died.

    python benchmarks/failures.py [--dp N] [--width N] [--layers N] [--rounds N]

The same rank is killed in the same step, just after a checkpoint or a copy, and a new rank takes its place. The time
to restart runs from the moment at which the failure is known until all ranks are ready to take a step: ranks start, a
model is initialized, and the state is read. With copies in memory the survivors stay, so one rank starts; otherwise all
do. "read" is the time to read the state, on the slowest rank. (Here a disk is as fast as memory, because the system
still has the files in memory. GEMINI compares with storage at the other end of a network.)

A save pauses training from the end of a step until the next may begin: in mode sync until the checkpoint is committed,
in mode async for the snapshot, and for the rest of the previous save if that has not ended. The last save of a run,
which the run waits for, is left out.
"""

import argparse
import tempfile
from dataclasses import replace
from statistics import median

from rich.console import Console
from rich.table import Table

from minidist.comm.runtime.clusters import WarmClusters, preload
from minidist.train.checkpoint.peers import PeerCopies
from minidist.train.checkpoint.saver import MODES, Saving
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.resilience.elastic import Elasticity, Interruption, run_elastic
from minidist.train.resilience.faults import Fault
from minidist.train.result import Run, RunOptions
from minidist.train.trainer import run

STEP = 2  # after which the state is kept, and in which the rank dies


def interrupted(
    config: TrainConfig, layout: Layout, kept: str, kind: str = "kill", patience: float = 60.0
) -> tuple[Run, Interruption]:
    """Run until rank 1 fails, and beyond; the state is kept on the "disk", in "memory", or not yet ("nothing")."""
    with tempfile.TemporaryDirectory() as folder:
        every = STEP if kept != "nothing" else 10 * config.steps
        options = RunOptions(
            saving=Saving(folder, every, mode="sync") if kept != "memory" else None,
            peer_copies=PeerCopies(every) if kept == "memory" else None,
            faults=(Fault(1, STEP, kind),),
        )
        result, [interruption] = run_elastic(config, layout, options, Elasticity("restart", patience=patience))
        return result, interruption


def recovery_table(config: TrainConfig, layout: Layout, rounds: int) -> Table:
    """Tabulate the seconds until the run continues, by where the state is."""
    table = Table(title=f"seconds to go on after a killed rank, {layout}", title_justify="left")
    table.add_column("state from")
    for column in ("detect", "restart", "of which read", "pause of a save or copy"):
        table.add_column(column, justify="right")
    for kept in ("nothing", "disk", "memory"):
        runs = [interrupted(config, layout, kept) for _ in range(rounds)]
        ranks = [result.ranks for result, _ in runs]
        columns = [
            [it.detect for _, it in runs],
            [it.restart for _, it in runs],
            [max(rank.restore_seconds for rank in one) for one in ranks],
            [pause for one in ranks for rank in one for pause in rank.pauses + rank.copy_pauses],
        ]
        table.add_row(kept, *(f"{median(seconds):.3f}" for seconds in columns))
    return table


def pauses_table(config: TrainConfig, layout: Layout, rounds: int, every: int = 5) -> Table:
    """Tabulate how long a save pauses training, by mode; the slowest rank counts."""
    config = replace(config, steps=4 * every)
    table = Table(title=f"milliseconds that a save pauses training, {layout}", title_justify="left")
    table.add_column("mode")
    for column in ("median", "longest", "a step"):
        table.add_column(column, justify="right")
    with WarmClusters() as clusters:
        for mode in MODES * rounds:  # in turns
            with tempfile.TemporaryDirectory() as folder:
                options = RunOptions(saving=Saving(folder, every, mode=mode))
                result = run(clusters(layout.world_size), config, layout, options)
            pauses = [max(pause) for pause in zip(*(rank.pauses[:-1] for rank in result.ranks), strict=True)]
            step = median(max(each) for each in zip(*(rank.compute_seconds for rank in result.ranks), strict=True))
            table.add_row(mode, *(f"{1e3 * value:.1f}" for value in (median(pauses), max(pauses), step)))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("dp", 4), ("width", 128), ("layers", 4), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    config = TrainConfig(
        layers=options.layers, heads=4, width=options.width, context=16, global_batch=options.dp, micro_batch=1, steps=4
    )
    console = Console(highlight=False)
    preload("minidist.train.trainer")
    console.print(pauses_table(config, Layout(dp=options.dp), options.rounds))
    console.print(recovery_table(config, Layout(dp=options.dp), options.rounds))


if __name__ == "__main__":
    main()
