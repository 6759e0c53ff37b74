"""How stale the gradients were that a parameter server applied: a line in the summary, a row for each worker."""

from statistics import fmean

from rich.table import Table

from minidist.train.result import Run


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
    table = Table(title="staleness of each worker's gradients, updates", title_justify="left")
    for column in ("worker", "gradients", "mean", "largest", "last, of all updates"):
        table.add_column(column, justify="right")
    for worker in sorted({push.worker for push in pushes}):
        own = [push for push in pushes if push.worker == worker]
        stale = [push.staleness for push in own]
        table.add_row(
            str(worker), f"{len(own):,}", f"{fmean(stale):.2f}", f"{max(stale):,}", f"{pushes.index(own[-1]) + 1:,}"
        )
    return table
