"""Logs and outcomes that several tests look at."""

from itertools import product

from minidist.trace import Event, Message
from minidist.train.layout import Layout
from minidist.verify.matrix import Combination, Outcome

MS = 1_000_000  # ns


def two_steps(late: int = 0) -> list:
    """A log of two steps; in the second one, 4 ms of collectives, of which 1 ms is under backward.

    Args:
        late: ns by which the second step is later.
    """
    events = [
        Event("forward 0", "compute", 1, 2),
        Event("step 0", "step", 0, 9 * MS),
        Event("forward 0", "compute", 10 * MS, 12 * MS),
        Message("send", 0, 1, 0, 8, 11 * MS),
        Event("backward 0", "compute", 12 * MS, 15 * MS),
        Event("all_reduce(SUM)", "communication", 14 * MS, 17 * MS),
        Event("all_reduce(SUM)", "communication", 16 * MS, 18 * MS),
        Event("sync gradients", "wait", 15 * MS, 18 * MS),
        Event("step 1", "step", 10 * MS, 20 * MS),
    ]
    return [
        Event(e.name, e.track, e.start + late, e.end + late) if isinstance(e, Event) and e.start >= 10 * MS else e
        for e in events
    ]


def outcome(text: str, same: bool, precision: str = "fp32") -> Outcome:
    """A run of the matrix, with made-up measurements."""
    return Outcome(Combination(precision, Layout.parse(text)), same, 0.1, 1, 1)


SP_MEETS_RECOMPUTE = [  # the bits differ where sp=1 and recompute=full meet, and nowhere else
    outcome(text, text != "tp=2,sp=1,recompute=full", precision)
    for text, precision in product(("tp=2,sp=1,recompute=full", "tp=2,sp=1", "tp=2,recompute=full"), ("fp32", "bf16"))
]
