"""A parameter server's run on the simulated clock: gradients, and the versions they were made with and applied to."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from minidist.parallel.loosened.arrivals import read_arrivals, seeded_order
from minidist.train.layout import Layout
from minidist.train.result import Run


@dataclass(frozen=True)
class Landing:
    """A gradient that arrived at the server. All times are simulated seconds.

    Attributes:
        worker, step: the worker that computed it, and the number of that worker's step, counted from 0.
        begin, end: times at which the worker pulled the weights, and at which its gradient arrived.
        read: version of the weights that it was computed with.
        found: version of the weights that it was applied to.
        ahead: number of steps that the worker was ahead of the slowest when it began.
        again: whether the same gradient had been applied before.
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
        landings: gradients in the order of their arrival.
        made: time at which the server had each version of the weights.
        losses: loss of its weights on fixed samples, before the first and after every N gradients of N workers.
        fingerprint: fingerprint of the run.
    """

    layout: Layout
    landings: Sequence[Landing]
    made: Sequence[float]
    losses: Sequence[float]
    fingerprint: str

    @classmethod
    def of(cls, run: Run) -> "Recorded":
        """Collect what happened in a run of ``train_watched`` with one server.

        Raises:
            RuntimeError: if a gradient was not computed with the bits of the version that the server's log names.
        """
        layout, config, server = run.layout, run.config, run.ranks[run.layout.dp]
        order = seeded_order(read_arrivals(layout.arrivals, layout.dp) or (), config.steps, layout.slack, config.seed)
        ends = {(arrival.worker, arrival.step): arrival.seconds for arrival in order}
        made = [0.0] * (2 + max(push.found for push in server.pushes))
        for push in server.pushes:  # a synchronous server's update waits for the last push
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
        """Times at which the server had the weights of each loss."""
        ends = [landing.end for landing in self.landings if not landing.again]
        return [0.0, *ends[self.workers - 1 :: self.workers]]

    def by(self, seconds: float) -> list[Landing]:
        """Return the landings until a time."""
        return [landing for landing in self.landings if landing.end <= seconds]

    def reaches(self, loss: float) -> float:
        """Return when the loss falls to ``loss``, interpolated between two measurements; infinity if it never does."""
        below = next((place for place, one in enumerate(self.losses) if one <= loss), None)
        if below is None:
            return float("inf")
        if below == 0:
            return 0.0
        before, after = self.losses[below - 1 : below + 1]
        start, end = self.times[below - 1 : below + 1]
        return start + (end - start) * (before - loss) / (before - after)


def check_versions(landings: Sequence[Landing], weights: Sequence[np.ndarray]) -> None:
    """Raise RuntimeError if a worker took a step with other weights than the version that it is said to have read.

    Args:
        weights: digests of each rank's weights, the server's last: see ``train_watched``.
    """
    *workers, server = weights
    for one in landings:
        if workers[one.worker][one.step] != server[one.read]:
            raise RuntimeError(
                f"worker {one.worker} took its step {one.step} with other weights than version {one.read}: this is a "
                "bug in minidist"
            )
