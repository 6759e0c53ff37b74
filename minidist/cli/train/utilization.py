"""How much of this machine's peak a run made use of, and where its time went: the numbers and two tables."""

from dataclasses import dataclass

from rich.table import Table

from minidist.analysis.utilization import KINDS, NO_CORE, Utilization, shares_of_time
from minidist.train.result import Run

HEADINGS = {  # in 80 columns
    "elementwise": "element-\nwise",
    "communication": "commu-\nnication",
    "waiting": "waiting for\nranks",
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
        """What ``--json`` writes."""
        return {
            **self.whole.as_dict(),
            "ranks": [used.as_dict() | {"time": time} for used, time in zip(self.ranks, self.time, strict=True)],
        }

    def table(self) -> Table:
        table = Table(title="model FLOP/s, and their share of the measured peak", title_justify="left")
        for column in ("rank", "model GFLOP/s", "peak GFLOP/s", "MFU", "HFU"):
            table.add_column(column, justify="right")
        for name, used in [*((str(number), used) for number, used in enumerate(self.ranks)), ("all", self.whole)]:
            if name == "all":
                if len(self.ranks) == 1:
                    break
                table.add_section()
            shares = (f"{100 * share:.1f} %" for share in (used.mfu, used.hfu))
            table.add_row(name, f"{used.speed / 1e9:,.2f}", f"{used.peak / 1e9:,.2f}", *shares)
        return table

    def time_table(self) -> Table:
        table = Table(title="where the time of the last steps went, %", title_justify="left")
        table.add_column("rank", justify="right")
        for kind in KINDS:
            table.add_column(HEADINGS.get(kind, kind), justify="right")
        for number, time in enumerate(self.time):
            table.add_row(str(number), *(f"{100 * time[kind]:.1f}" for kind in KINDS))
        return table


def utilization_of(result: Run) -> RunUtilization | None:
    """Compute the utilization of a run from its counts, times and logs; None if it took no step."""
    if not result.steps_here:
        return None
    ranks = [Utilization.of_rank(rank.step_seconds, rank.step_flops, rank.peak_flops) for rank in result.ranks]
    time = shares_of_time([rank.log for rank in result.ranks], [rank.seconds_without_core for rank in result.ranks])
    return RunUtilization(Utilization.of_run(ranks), ranks, time)
