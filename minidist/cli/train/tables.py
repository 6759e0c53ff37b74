"""What ``minidist train --tables`` prints: everything that a run has counted, rank by rank."""

from rich.console import Console
from rich.table import Table

from minidist.cli.train.staleness import staleness_table
from minidist.cli.train.utilization import RunUtilization
from minidist.flops import PHASES
from minidist.ledger import KINDS
from minidist.train.result import Run


def print_tables(console: Console, result: Run, used: RunUtilization | None) -> None:
    """Traffic, collectives, memory, matrix products, utilization, and where the time went."""
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
    table = Table(title="traffic per rank, payload only", title_justify="left")
    columns = ["bytes_sent", "messages_sent", "bytes_received", "messages_received"]
    columns += ["bytes_between_nodes"] * several_nodes
    for column in ("rank", *columns):
        _add_count(table, column, several_nodes)
    for number, rank in enumerate(result.ranks):
        moved = rank.traffic.as_dict()
        table.add_row(str(number), *(f"{moved[column]:,}" for column in columns))
    return table


def _collectives_table(rows: list[dict], several_nodes: bool) -> Table:
    table = Table(title="collectives and sends of rank 0, one step", title_justify="left")
    for column in ("axis", "collective", "dtype"):
        table.add_column(column, overflow="fold")
    counts = ["calls", "bytes_sent"] + ["bytes_between_nodes"] * several_nodes
    for column in ("elements_per_call", *counts):
        _add_count(table, column, several_nodes)
    for row in rows:
        size = f"{row['elements']:,}" if row["elements"] else "varies"
        table.add_row(row["axis"], row["name"], row["dtype"], size, *(f"{row[count]:,}" for count in counts))
    return table


def _add_count(table: Table, name: str, narrow: bool) -> None:
    """A column of numbers, none of which is cut; if narrow, each word of its heading has a line of its own."""
    table.add_column(name.replace("_", "\n" if narrow else " "), justify="right", overflow="fold")


def _memory_table(result: Run) -> Table:
    table = Table(title="peak memory per rank, bytes", title_justify="left")
    names = {kind: kind for kind in KINDS} | {"peak": "total at once"}
    if result.config.experts:
        names["experts"] = "experts trained here"  # parameters, or shards of them
    for column in ("rank", *names.values()):
        table.add_column(column, justify="right")
    for number, rank in enumerate(result.ranks):
        table.add_row(str(number), *(f"{rank.memory[kind]:,}" for kind in names))
    return table


def _compute(result: Run) -> str:
    steps = max(1, result.steps_here)
    counted = [(phase, result.ranks[0].step_flops.get(phase, 0) / steps) for phase in PHASES]
    found = ", ".join(f"{count / 1e6:,.1f} MFLOP {phase}" for phase, count in counted if count)
    return f"matrix products of rank 0, one step: {found}"
