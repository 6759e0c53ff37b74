"""One training step of rank 0 as data parallelism sees it: its phases, its all-reduces, and what backward hides."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from minidist.analysis.steps import hidden_share, kind_of, step_length, traced_step
from minidist.comm.placement import Link
from minidist.show.demos.shared import lanes
from minidist.show.demos.shared.gpus import on_links
from minidist.trace import Event

PHASES = ("forward", "backward", "optimizer")
FREE = Link(1e18, 1e-9)  # on which a message takes next to no time


@dataclass(frozen=True)
class Step:
    """A step, measured here or on another clock.

    Args:
        sync: how gradients are summed, one of ``parallel.data.SYNCS``.
        log: rank 0's phases, waits and collectives, in ns from the beginning of the step.
        end: ns, when the last rank ends it.
        full: time at which each bucket is full, in ns; () where there are none or where nobody knows.
    """

    sync: str
    log: Sequence[Event]
    end: int
    full: Sequence[int] = ()

    @classmethod
    def of(cls, sync: str, logs: Sequence[list], full: Sequence[int] = ()) -> "Step":
        """The last step of a run, from the ranks' logs."""
        step = traced_step(logs)
        return cls(sync, [event for event in step[0] if kind_of(event)], step_length(step), full)

    @cached_property
    def phases(self) -> dict[str, Event]:
        return {kind: next(event for event in self.log if kind_of(event) == kind) for kind in PHASES}

    @cached_property
    def backward_ends(self) -> int:
        return self.phases["backward"].end

    @cached_property
    def sums(self) -> list[Event]:
        """The all-reduces of gradients, also skipped ones: all but the last, which is the loss's."""
        return lanes.communications(self.log)[:-1]

    @cached_property
    def loss(self) -> Event:
        return lanes.communications(self.log)[-1]

    @cached_property
    def sent(self) -> list[Event]:
        return [event for event in self.sums if not lanes.is_dropped(event)]

    @cached_property
    def dropped(self) -> list[Event]:
        return [event for event in self.sums if lanes.is_dropped(event)]

    @cached_property
    def summed(self) -> int:
        """When the last all-reduce of gradients has ended."""
        return max(self.backward_ends, *(event.end for event in self.sums))

    def past(self, time: int) -> "Step":
        """Return the step's events until a time."""
        past = [Event(e.name, e.track, e.start, min(e.end, time)) for e in self.log if e.start < time]
        return Step(self.sync, past, self.end, self.full)

    @property
    def communication(self) -> int:
        """Total time of all-reduces, in ns."""
        return sum(event.end - event.start for event in self.log if event.track == "communication")

    @property
    def hidden(self) -> float:
        """The share of that time which backward hides."""
        return hidden_share(self.log)


def full_times(overlapped: Sequence[list], chip: str) -> list[int]:
    """When backward has filled each bucket, in ns: when it leaves if messages take no time."""
    return [event.start for event in Step.of("overlapped", on_links(overlapped, FREE, chip).logs).sums]
