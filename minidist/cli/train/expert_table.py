"""The table of experts that ``minidist train`` prints for a model that has any."""

from rich.table import Table

from minidist.analysis.expert_load import ExpertLoad
from minidist.train.result import Run


def expert_table(result: Run) -> Table:
    """For each mixture, how evenly the last step's tokens chose its experts."""
    load, moe = ExpertLoad.of(result.ranks[0].expert_counts), result.config.moe
    table = Table(title=f"choices of each of {moe.experts} experts, last step", title_justify="left")
    columns = ["layer", "fewest", "mean", "most", "most / mean", "dropped"]
    for column in columns + ["nodes of a token"] * (moe.expert_nodes > 1):
        table.add_column(column, justify="right")
    tokens = result.config.tokens_of(range(len(result.losses) - 1, len(result.losses)))
    for row, layer in enumerate(result.config.model.sparse_layers):
        counts = load.tokens[-1, row]
        visits = [f"{load.visits[-1, row] / tokens:.2f}"] * (moe.expert_nodes > 1)
        table.add_row(
            str(layer),
            f"{counts.min():,}",
            f"{counts.mean():,.0f}",
            f"{counts.max():,}",
            f"{load.imbalance[-1, row]:.2f}",
            f"{load.dropped[-1, row] / counts.sum():.1%}",
            *visits,
        )
    return table
