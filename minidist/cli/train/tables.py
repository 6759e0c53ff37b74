"""The results of ``minidist train`` as tables and lines."""

from rich.console import Console
from rich.table import Table

from minidist.cli.train.checkpoint_flags import print_saves
from minidist.cli.train.expert_table import expert_table
from minidist.cli.train.utilization import RunUtilization
from minidist.flops import PHASES
from minidist.ledger import KINDS
from minidist.train.result import Run


def print_run(console: Console, result: Run, used: RunUtilization | None) -> None:
    first = result.ranks[0]
    if result.layout.world_size > 1:
        table = Table(title="traffic per rank, payload only", title_justify="left")
        several = 0 < result.layout.node_size < result.layout.world_size
        columns = ["bytes_sent", "messages_sent", "bytes_received", "messages_received"]
        columns += ["bytes_between_nodes"] * several
        for column in ("rank", *columns):
            _add_count(table, column, several)
        for number, rank in enumerate(result.ranks):
            moved = rank.traffic.as_dict()
            table.add_row(str(number), *(f"{moved[column]:,}" for column in columns))
        console.print(table)
        console.print(_collectives_table(first.collectives, several))
    console.print(_memory_table(result))
    if result.config.experts:
        console.print(expert_table(result))
    console.print(_compute(result), soft_wrap=True)
    if used is not None:
        console.print(used.table())
        console.print(used.time_table())
    if first.sample is not None:
        console.print("text from the model:", style="bold")
        console.print("The " + printable(first.sample), soft_wrap=True)
    if result.config.precision == "fp16":
        skipped = f"{first.skipped_steps} of {len(first.losses)} steps skipped after an overflow"
        console.print(f"loss scale: {first.loss_scale:,g} at the end, {skipped}")
    console.print(f"loss: {first.losses[0]:.4f} at the start, {first.losses[-1]:.4f} at the end")
    console.print(f"validation loss: {first.validation_loss:.4f} nats per byte")
    console.print(f"speed: {result.tokens_per_second:,.0f} tokens/s")
    print_saves(console, result)
    console.print(f"fingerprint: {result.fingerprint}", soft_wrap=True)


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


def printable(text: bytes) -> str:
    """The text without control characters, which could take over the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text.decode("utf-8", errors="replace"))
