"""A run with a parameter server on the simulated clock: each gradient, and the versions that it was made for."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from minidist.parallel.loosened.arrivals import read_arrivals, seeded_order
from minidist.train.layout import Layout
from minidist.train.result import Run


@dataclass(frozen=True)
class Landing:
    """A gradient that came to the server. All times are simulated seconds.

    Attributes:
        worker, step: whose, and of which of its steps, counted from 0.
        begin, end: times at which the worker pulled the weights, and its gradient was there.
        read: the version of the weights that it was computed with.
        found: the version that it was applied to.
        ahead: steps that the worker was ahead of the slowest when it began.
        again: whether this very gradient had been applied before.
    """

    worker: int
    step: int
    begin: float
    end: float
    read: int
    found: int
    ahead: int
    again: bool

    @property
    def staleness(self) -> int:
        return self.found - self.read


@dataclass(frozen=True)
class Recorded:
    """A run as its server saw it.

    Attributes:
        landings: the landings in order.
        made: time at which the server had each version.
        losses: loss of its weights on the same samples, after every N gradients of N workers; the first before any.
        fingerprint: fingerprint at the end.
    """

    layout: Layout
    landings: Sequence[Landing]
    made: Sequence[float]
    losses: Sequence[float]
    fingerprint: str

    @classmethod
    def of(cls, run: Run) -> "Recorded":
        """What happened in a run of ``train_watched`` with one server.

        Raises:
            RuntimeError: if a gradient was not computed with the bits of the version that the server's log names.
        """
        layout, config, server = run.layout, run.config, run.ranks[run.layout.dp]
        order = seeded_order(read_arrivals(layout.arrivals, layout.dp) or (), config.steps, layout.slack, config.seed)
        ends = {(arrival.worker, arrival.step): arrival.seconds for arrival in order}
        made = [0.0] * (2 + max(push.found for push in server.pushes))
        for push in server.pushes:  # a synchronous server's update waits for the last of them
            made[push.found + 1] = max(made[push.found + 1], ends[push.worker, push.step])
        landings: list[Landing] = []
        for push in sorted(server.pushes, key=lambda push: ends[push.worker, push.step]):
            key, begin = (push.worker, push.step), made[push.read]
            slowest = min(
                sum(end <= begin for (worker, _), end in ends.items() if worker == one) for one in range(layout.dp)
            )
            again = any((one.worker, one.step) == key for one in landings)
            landings.append(Landing(*key, begin, ends[key], push.read, push.found, push.step - slowest, again))
        check_versions(landings, [rank.arrays["weights"] for rank in run.ranks])
        return cls(layout, landings, made, server.arrays["losses"].tolist(), run.fingerprint)

    @property
    def workers(self) -> int:
        return self.layout.dp

    @property
    def times(self) -> list[float]:
        """When the server had the weights of each loss."""
        ends = [landing.end for landing in self.landings if not landing.again]
        return [0.0, *ends[self.workers - 1 :: self.workers]]

    def by(self, seconds: float) -> list[Landing]:
        """Those until a time."""
        return [landing for landing in self.landings if landing.end <= seconds]

    def reaches(self, loss: float) -> float:
        """When the loss is that low, between two measurements in proportion; infinite if it never is."""
        below = next((place for place, one in enumerate(self.losses) if one <= loss), None)
        if below is None:
            return float("inf")
        if below == 0:
            return 0.0
        before, after = self.losses[below - 1 : below + 1]
        start, end = self.times[below - 1 : below + 1]
        return start + (end - start) * (before - loss) / (before - after)


def check_versions(landings: Sequence[Landing], weights: Sequence[np.ndarray]) -> None:
    """Raises RuntimeError if a worker took a step with other weights than the version that it is said to have read.

    Args:
        weights: the digests of each rank, the server's last: see ``train_watched``.
    """
    *workers, server = weights
    for one in landings:
        if workers[one.worker][one.step] != server[one.read]:
            raise RuntimeError(
                f"worker {one.worker} took its step {one.step} with other weights than version {one.read}: this is a "
                "bug in minidist"
            )
