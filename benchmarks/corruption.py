"""Test which flipped bits the checks of a run's numbers find, and measure what the checks cost.

    python benchmarks/corruption.py --rounds 5

One bit flips in step 3 of a run of 6, on rank 1 (on rank 0 if it is the only one). A cell says which rank the check
names; «element» means that it names the flipped element too; «late», that it names a later step; «no effect», that the
run ends on the fingerprint of the run without the flip. A check names the receiver of a wrong number, not its sender.
"""

import argparse
import statistics
from dataclasses import dataclass, replace

from rich.console import Console
from rich.table import Table

from minidist.comm.group import ProcessGroup
from minidist.comm.runtime.clusters import WarmClusters, preload
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.resilience.checks import CorruptedNumbers, Finding
from minidist.train.resilience.faults import FLIPS, Fault
from minidist.train.result import RunOptions
from minidist.train.trainer import run, train_rank

LAYOUTS = (
    "dp=1",
    "dp=2",
    "dp=3",
    "dp=4,algorithm=ring",
    "dp=4,algorithm=direct",
    "zero=1,dp=3",
    "zero=3,dp=3",
    "tp=2",
    "tp=2,dp=3",
    "pp=2",
    "cp=2",
    "ep=2,dp=4",
)
WAYS = (("vote", 1), ("vote", 3), ("replay", 1), ("replay", 3))
STEP = 3
CONFIG = TrainConfig(layers=2, heads=2, width=16, context=16, global_batch=16, micro_batch=2, steps=6, warmup=2)


@dataclass(frozen=True)
class Outcome:
    """Outcome of a run: what was found, what had been flipped if known, and the fingerprint if the run ended."""

    finding: Finding | None
    flipped: tuple | None
    fingerprint: str


def config_for(layout: Layout) -> TrainConfig:
    experts = {"experts": 4} if layout.ep > 1 else {}
    return replace(CONFIG, sequence_chunks=2 if layout.cp > 1 else 1, **experts)


def train_until_found(world: ProcessGroup, *arguments) -> Finding | str:
    """Train on this rank; return what a check has found, or else the fingerprint."""
    try:
        return train_rank(world, *arguments).fingerprint
    except CorruptedNumbers as error:
        return error.finding


def outcome(clusters: WarmClusters, layout: Layout, options: RunOptions) -> Outcome:
    flips = []

    def on_report(rank: int, event: tuple) -> None:
        if event[0] == "flipped":
            flips.append(event[1:])

    cluster = clusters(layout.world_size)
    results = cluster.run(train_until_found, config_for(layout), layout, options, on_report=on_report)
    if len(set(map(str, results))) > 1:
        raise RuntimeError(f"{layout}: the ranks do not agree: {results}")
    found = isinstance(results[0], Finding)
    return Outcome(results[0] if found else None, flips[0] if flips else None, "" if found else results[0])


def in_words(result: Outcome, fingerprint: str, culprit: int) -> str:
    finding = result.finding
    if finding is None:
        return "no effect" if result.fingerprint == fingerprint else "not found"
    if finding.rank is None:
        words = "found, nobody named"
    else:
        words = f"rank {finding.rank}" + ("" if finding.rank == culprit else ", which received it")
    if finding.element and result.flipped:
        name, index, *_ = result.flipped
        # a gradient is gone at the end of a step: what it was added to is not
        parameter = name.rpartition(" ")[2]
        same = finding.element.index == index and finding.element.name.rpartition(" ")[2] == parameter
        words += ", element" if same else ""
    words += "" if finding.step == STEP else f", late: step {finding.step}"
    return words + f" ({finding.way})"


def outcomes(clusters: WarmClusters, layouts: list[Layout]) -> Table:
    table = Table("layout", "flip in", title=f"one bit flips in step {STEP}: what is found")
    for way, every in WAYS:
        table.add_column(f"{way}, K = {every}")
    for layout in layouts:
        culprit = min(1, layout.world_size - 1)
        fingerprint = outcome(clusters, layout, RunOptions()).fingerprint
        for place in FLIPS:
            cells = []
            for way, every in WAYS:
                if way == "vote" and layout.world_size == 1:
                    cells.append("one rank: no vote")
                    continue
                faults = (Fault(culprit, STEP, "flip", place=place),)
                options = RunOptions(faults=faults, check_replicas=every, check_by=way)
                cells.append(in_words(outcome(clusters, layout, options), fingerprint, culprit))
            table.add_row(str(layout) if place == FLIPS[0] else "", place, *cells)
        table.add_section()
    return table


def costs(clusters: WarmClusters, rounds: int) -> Table:
    """Tabulate the time of runs of the default model with checks, relative to runs without; they take turns."""
    config = TrainConfig(steps=10)
    choices = [("none", RunOptions())] + [
        (f"{way}, K = {every}", RunOptions(check_replicas=every, check_by=way)) for way in ("vote", "replay")
        for every in (1, 10)
    ]  # fmt: skip
    seconds: dict[tuple[str, str], list[float]] = {}
    for _ in range(rounds):
        for text in ("dp=1", "dp=2"):
            layout = Layout.parse(text)
            for name, options in choices:
                if layout.world_size > 1 or options.check_by != "vote":
                    result = run(clusters(layout.world_size), config, layout, options)
                    seconds.setdefault((text, name), []).append(max(rank.seconds for rank in result.ranks))
    table = Table("layout", "check", title="time of a run of 10 steps / the same without checks, median")
    table.add_column("time", justify="right")
    for (text, name), measured in seconds.items():
        ratios = [a / b for a, b in zip(measured, seconds[text, "none"], strict=True)]
        table.add_row(text, name, f"{statistics.median(ratios):.2f}")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layouts", nargs="*", default=LAYOUTS, help="which to try (default: twelve)")
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds; 0 for none")
    options = parser.parse_args()
    console = Console(width=150)
    preload("minidist.train.trainer")
    with WarmClusters() as clusters:
        console.print(outcomes(clusters, [Layout.parse(text) for text in options.layouts]))
        if options.rounds:
            console.print(costs(clusters, options.rounds))


if __name__ == "__main__":
    main()
