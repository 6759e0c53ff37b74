"""How long it takes to go on after a rank has died: from a checkpoint on the disk, and from copies in peers' memory.

    python benchmarks/failures.py [--dp N] [--width N] [--layers N] [--rounds N]

The same rank is killed in the same step, just after a checkpoint or a copy, and a new rank takes its place. The time
runs from the moment at which the failure is known until all ranks are ready to take a step: ranks start, a model is
initialized, and the state is read. It is measured where everything else is equal, and once more for a new start that
reads nothing. Detection is counted by itself: a killed process is noticed at once, a hanging one after the patience.
"""

import argparse
import tempfile
from statistics import median

from rich.console import Console
from rich.table import Table

from minidist.comm.runtime.warm import preload
from minidist.train.checkpoint.peers import PeerCopies
from minidist.train.checkpoint.saver import Saving
from minidist.train.config import TrainConfig
from minidist.train.elastic import Elasticity, Interruption, run_elastic
from minidist.train.faults import Fault
from minidist.train.layout import Layout
from minidist.train.result import Run, RunOptions

STEP = 2  # after which the state is kept, and in which the rank dies


def interrupted(
    config: TrainConfig, layout: Layout, kept: str, kind: str = "kill", patience: float = 60.0
) -> tuple[Run, Interruption]:
    """A run in which rank 1 fails: state is kept on the "disk", in "memory", or not yet ("nothing")."""
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
    """Seconds to go on, by where the state is."""
    table = Table(title=f"seconds to go on after a killed rank, {layout}", title_justify="left")
    table.add_column("state from")
    for column in ("detect", "restart", "pause of a save or copy"):
        table.add_column(column, justify="right")
    for kept in ("nothing", "disk", "memory"):
        runs = [interrupted(config, layout, kept) for _ in range(rounds)]
        pauses = [pause for result, _ in runs for rank in result.ranks for pause in rank.pauses + rank.copy_pauses]
        columns = [median(it.detect for _, it in runs), median(it.restart for _, it in runs), median(pauses)]
        table.add_row(kept, *(f"{seconds:.3f}" for seconds in columns))
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
    console.print(recovery_table(config, Layout(dp=options.dp), options.rounds))


if __name__ == "__main__":
    main()
