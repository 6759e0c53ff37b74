"""What ``minidist train`` asks and says about going on after failures: ``--elastic``, ``--patience``."""

import argparse
import re

from rich.console import Console
from rich.table import Table

from minidist.cli.flags import integer, real
from minidist.train.checkpoint.peers import PeerCopies
from minidist.train.checkpoint.saver import Saving
from minidist.train.layout import Layout
from minidist.train.resilience.elastic import ON_FAILURE, Elasticity, Interruption
from minidist.train.result import RunOptions


def add_elastic(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("going on after failures")
    group.add_argument(
        "--elastic",
        action="store_true",
        help="go on from the last checkpoint or copy when ranks fail, with --save or --peer-copies",
    )
    group.add_argument(
        "--peer-copies",
        type=integer,
        default=0,
        metavar="N",
        help="every --save-every steps, keep each rank's part of the state in its memory and in that of N more ranks, "
        "with --elastic (default: 0)",
    )
    group.add_argument(
        "--on-failure",
        choices=ON_FAILURE,
        help="shrink goes on in the best layout of the ranks that are left, restart starts the rank again in the same "
        "layout; with --elastic (default: shrink)",
    )
    group.add_argument(
        "--max-restarts",
        type=integer,
        metavar="N",
        help="failures after which the run ends, with --elastic (default: 10)",
    )
    group.add_argument(
        "--patience",
        type=real,
        metavar="SECONDS",
        help="time without a report from any rank after which those that wait for no other count as hanging "
        "(default: no limit, or 60 with --elastic)",
    )


def elasticity_of(options: argparse.Namespace, run_options: RunOptions) -> Elasticity | None:
    """How the run is to go on after a failure; None if a failure ends it.

    Raises:
        ValueError: if a flag needs another.
    """
    given = {"on_failure": options.on_failure, "max_restarts": options.max_restarts}
    given = {name: value for name, value in given.items() if value is not None}
    if options.patience is not None:
        given["patience"] = options.patience
    elasticity = Elasticity(**given)
    if options.elastic:
        if run_options.saving is None and run_options.peer_copies is None:
            raise ValueError("--elastic goes on from checkpoints or from copies: add --save DIR or --peer-copies 1")
        return elasticity
    if run_options.peer_copies is not None:
        raise ValueError("--peer-copies are for ranks that survive a failure: add --elastic")
    if given.keys() - {"patience"}:
        raise ValueError("--on-failure and --max-restarts say how to go on after a failure: add --elastic")
    return None


def peer_copies_of(options: argparse.Namespace, layout: Layout) -> PeerCopies | None:
    """What to keep in memory; None for nothing.

    Raises:
        ValueError: for a number of copies that there cannot be.
    """
    if options.peer_copies == 0:
        return None
    if options.peer_copies >= layout.world_size:
        raise ValueError(
            f"--peer-copies {options.peer_copies} needs as many ranks beside each, and layout {layout} has "
            f"{layout.world_size} in all"
        )
    return PeerCopies(Saving.every if options.save_every is None else options.save_every, options.peer_copies)


def interruptions_table(interruptions: list[Interruption]) -> Table:
    table = Table(title="interruptions, and the seconds that each cost", title_justify="left")
    table.add_column("step", justify="right")
    for column in ("failure", "went on in", "from"):
        table.add_column(column)
    for column in ("detect", "restart", "recompute"):
        table.add_column(column, justify="right")
    for it in interruptions:
        failure = re.split(r": | \(", it.why)[0]  # the rest has been printed when it happened
        seconds = [f"{value:.2f}" for value in (it.detect, it.restart, it.recompute)]
        table.add_row(str(it.step), failure, str(it.after), it.source.rpartition("/")[2], *seconds)
    return table


def print_interruption(console: Console, interruption: Interruption) -> None:
    """One line as the run goes on."""
    again = interruption.step - interruption.resumed
    work = f", {again} step{'s' * (again != 1)} again" if again else ""
    if interruption.lost:
        console.print(interruption.lost, soft_wrap=True)
    console.print(
        f"step {interruption.step}: {interruption.why}; going on in {interruption.after} from "
        f"{interruption.source.rpartition('/')[2]}{work}",
        soft_wrap=True,
    )
