"""Tables of what each rank of a run has counted, for ``minidist train --tables`` and in part for its summary."""

from dataclasses import dataclass
from statistics import fmean

from rich.console import Console
from rich.table import Table

from minidist.analysis.breakdown import KINDS as KINDS_OF_TIME
from minidist.analysis.breakdown import NO_CORE, shares_of_time
from minidist.analysis.utilization import Utilization
from minidist.cli.output import titled
from minidist.flops import PHASES
from minidist.ledger import KINDS
from minidist.train.result import Run

HEADINGS = {  # in 80 columns
    "products": "pro-\nducts",
    "elementwise": "element-\nwise",
    "optimizer": "opti-\nmizer",
    "communication": "commu-\nnication",
    "waiting": "waiting\nfor ranks",
    NO_CORE: "for a\ncore",
}


@dataclass(frozen=True)
class RunUtilization:
    """Utilization of one run: FLOP/s, and shares of time.

    Attributes:
        whole: all ranks together.
        ranks: each rank.
        time: for each rank the share of each kind of time in the traced steps; see analysis/breakdown.py.
    """

    whole: Utilization
    ranks: list[Utilization]
    time: list[dict[str, float]]

    def as_dict(self) -> dict:
        """Return the content that ``--json`` writes."""
        return {
            **self.whole.as_dict(),
            "ranks": [used.as_dict() | {"time": time} for used, time in zip(self.ranks, self.time, strict=True)],
        }

    def table(self) -> Table:
        columns = ("rank", "model GFLOP/s", "peak GFLOP/s", "MFU", "HFU")
        table = titled("model FLOP/s, and their share of the measured peak", right=columns)
        for name, used in [*((str(number), used) for number, used in enumerate(self.ranks)), ("all", self.whole)]:
            if name == "all":
                if len(self.ranks) == 1:
                    break
                table.add_section()
            shares = (f"{share:.1%}" for share in (used.mfu, used.hfu))
            table.add_row(name, f"{used.speed / 1e9:,.2f}", f"{used.peak / 1e9:,.2f}", *shares)
        return table

    def time_table(self) -> Table:
        kinds = [HEADINGS.get(kind, kind) for kind in KINDS_OF_TIME]
        table = titled("where the time of the last steps went, %", right=["rank", *kinds])
        for number, time in enumerate(self.time):
            table.add_row(str(number), *(f"{100 * time[kind]:.1f}" for kind in KINDS_OF_TIME))
        return table


def utilization_of(result: Run) -> RunUtilization | None:
    """Compute the utilization of a run from its counts, times and logs; None if no step of it was traced."""
    if not result.steps_here or not all(rank.log for rank in result.ranks):
        return None
    ranks = [Utilization.of_rank(rank.step_seconds, rank.step_flops, rank.peak_flops) for rank in result.ranks]
    time = shares_of_time([rank.log for rank in result.ranks], [rank.seconds_without_core for rank in result.ranks])
    return RunUtilization(Utilization.of_run(ranks), ranks, time)


def print_tables(console: Console, result: Run, used: RunUtilization | None) -> None:
    """Print traffic, collectives, memory, matrix products, utilization, and where the time went."""
    if result.layout.world_size > 1:
        several = 0 < result.layout.node_size < result.layout.world_size
        console.print(_traffic_table(result, several))
        console.print(_collectives_table(result.ranks[0].collectives, several))
    if result.layout.servers:
        console.print(staleness_table(result))
    console.print(_memory_table(result))
    console.print(_compute(result), soft_wrap=True)
    if used is not None:
        console.print(used.table())
        console.print(used.time_table())


def _traffic_table(result: Run, several_nodes: bool) -> Table:
    columns = ["bytes_sent", "messages_sent", "bytes_received", "messages_received"]
    columns += ["bytes_between_nodes"] * several_nodes
    headings = _headings(["rank", *columns], several_nodes)
    table = titled("traffic per rank, payload only", right=headings, overflow="fold")
    for number, rank in enumerate(result.ranks):
        moved = rank.traffic.as_dict()
        table.add_row(str(number), *(f"{moved[column]:,}" for column in columns))
    return table


def _collectives_table(rows: list[dict], several_nodes: bool) -> Table:
    counts = ["calls", "bytes_sent"] + ["bytes_between_nodes"] * several_nodes
    columns = ("axis", "collective", "dtype"), _headings(["elements_per_call", *counts], several_nodes)
    table = titled("collectives and sends of rank 0, one step", *columns, overflow="fold")
    for row in rows:
        size = f"{row['elements']:,}" if row["elements"] else "varies"
        table.add_row(row["axis"], row["name"], row["dtype"], size, *(f"{row[count]:,}" for count in counts))
    return table


def _headings(names: list[str], narrow: bool) -> list[str]:
    """Return the headings of columns; if narrow, each word has a line of its own."""
    return [name.replace("_", "\n" if narrow else " ") for name in names]


def _memory_table(result: Run) -> Table:
    names = {kind: kind for kind in KINDS} | {"peak": "total at once"}
    if result.config.experts:
        names["experts"] = "experts trained here"  # parameters, or shards of them
    table = titled("peak memory per rank, bytes", right=["rank", *names.values()], overflow="fold")
    for number, rank in enumerate(result.ranks):
        table.add_row(str(number), *(f"{rank.memory[kind]:,}" for kind in names))
    return table


def _compute(result: Run) -> str:
    counted = [(phase, result.ranks[0].step_flops.get(phase, 0) / result.steps_here) for phase in PHASES]
    found = ", ".join(f"{count / 1e6:,.1f} MFLOP {phase}" for phase, count in counted if count)
    return f"matrix products of rank 0, one step: {found}"


def staleness_line(result: Run) -> str:
    """Describe the staleness of all gradients that the first server took; "" for a run without servers."""
    stale = [push.staleness for push in result.pushes]
    if not stale:
        return ""
    return (
        f"staleness: {len(stale):,} gradients were applied {fmean(stale):.2f} updates late on average, and "
        f"{max(stale):,} at most"
    )


def staleness_table(result: Run) -> Table:
    """Tabulate the staleness of each worker's gradients, on the first server."""
    pushes = result.pushes
    columns = ("worker", "gradients", "mean", "largest", "last, of all updates")
    table = titled("staleness of each worker's gradients, updates", right=columns)
    for worker in sorted({push.worker for push in pushes}):
        own = [push for push in pushes if push.worker == worker]
        stale = [push.staleness for push in own]
        table.add_row(
            str(worker), f"{len(own):,}", f"{fmean(stale):.2f}", f"{max(stale):,}", f"{pushes.index(own[-1]) + 1:,}"
        )
    return table
