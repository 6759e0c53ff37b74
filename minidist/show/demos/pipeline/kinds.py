"""The five schedules: their plans, how long they take, what they store, and the formulas of their bubbles."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from minidist.parallel.tools.schedule_check import SLOTS, Slot, in_flight, timeline
from minidist.parallel.tools.schedules import Action, schedule
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout


@dataclass(frozen=True)
class Kind:
    """A schedule: its name here and in a Layout, the formula of its bubble, and the number of stages per rank."""

    name: str
    schedule: str
    formula: str
    share: Callable[[int, int], Fraction]  # (ranks, micro-batches) -> the value of the formula
    virtual: int = 1

    def layout(self, ranks: int) -> Layout:
        return Layout(pp=ranks, schedule=self.schedule, virtual=self.virtual)

    def planned(self, ranks: int, micro_batches: int) -> list[list[Action]]:
        return schedule(self.schedule, ranks, micro_batches, self.virtual)

    def slots(self, ranks: int, micro_batches: int) -> list[list[Slot]]:
        """Return the plan in slots."""
        return self.timed(self.planned(ranks, micro_batches))

    def timed(self, planned: Sequence[Sequence[Action]]) -> list[list[Slot]]:
        """Return any plan in slots; with several stages per rank, each stage takes proportionally less."""
        return timeline(planned, lambda action: SLOTS[action.kind] / self.virtual)

    def most_stored(self, ranks: int, micro_batches: int) -> float:
        """Return the most micro-batches stored on rank 0 at once; activations of one stage count as 1 / ``virtual``."""
        return in_flight(self.planned(ranks, micro_batches)[0]) / self.virtual


def end_of(rows: Sequence[Sequence[Slot]]) -> float:
    """Return the time at which the last rank is done."""
    return max(slot.end for row in rows for slot in row)


KINDS = (
    Kind("naive", "naive", "(p−1)/p", lambda p, m: Fraction(p - 1, p)),
    Kind("GPipe", "gpipe", "(p−1)/(m+p−1)", lambda p, m: Fraction(p - 1, m + p - 1)),
    Kind("1F1B", "1f1b", "(p−1)/(m+p−1)", lambda p, m: Fraction(p - 1, m + p - 1)),
    Kind("interleaved", "interleaved", "(p−1)/(2m+p−1)", lambda p, m: Fraction(p - 1, 2 * m + p - 1), virtual=2),
    Kind("ZB-H1", "zb-h1", "(p−1)/(3m+p−1)", lambda p, m: Fraction(p - 1, 3 * m + p - 1)),
)
BROKEN = KINDS[2]
NAIVE = KINDS[0]


def config_of(ranks: int, micro_batches: int, seed: int) -> TrainConfig:
    """Return a config with two layers per rank; on few ranks, so large that computing takes longer than sending."""
    few = ranks <= 4
    micro_batch = 2 if ranks == 2 else 1
    return TrainConfig(
        layers=2 * ranks,
        width=64 if few else 32,
        context=64 if few else 32,
        micro_batch=micro_batch,
        global_batch=micro_batches * micro_batch,
        steps=2 if few else 1,
        seed=seed,
    )
