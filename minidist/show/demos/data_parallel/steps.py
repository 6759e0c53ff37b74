"""One training step of rank 0 as data parallelism sees it: its phases, its all-reduces, and what backward hides."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from minidist.analysis.steps import hidden_share, kind_of, step_length, traced_step
from minidist.show.demos.shared.on_gpus import communications
from minidist.trace import Event

PHASES = ("forward", "backward", "optimizer")


@dataclass(frozen=True)
class Step:
    """A step on any clock: rank 0's phases and collectives, and the end of the last rank, in ns."""

    log: Sequence[Event]
    end: int

    @classmethod
    def of(cls, logs: Sequence[list]) -> "Step":
        """The last step of a run, from the ranks' logs."""
        step = traced_step(logs)
        return cls([event for event in step[0] if kind_of(event)], step_length(step))

    @cached_property
    def sums(self) -> list[Event]:
        """The all-reduces of gradients, also skipped ones: all but the last, which is the loss's."""
        return communications(self.log)[:-1]

    @property
    def hidden(self) -> float:
        """The share of the time of all-reduces that backward hides."""
        return hidden_share(self.log)
