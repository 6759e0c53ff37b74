"""Arrival order of gradients at a parameter server: live, or simulated so that it can be repeated.

With ``live`` arrivals a server takes gradients as they come, and no two runs are alike. A *seeded* order comes from a
simulation instead: each worker takes a given time for a step, with a little seeded noise, and waits where the bound on
staleness requires it. A server that takes the gradients in that order gives each worker the same weights each time,
whatever the real workers' speeds: the whole run repeats to the bit, and its simulated clock compares methods.

Stale synchronous parallel bounds how far fast workers run ahead: Ho et al., "More Effective Distributed ML via a Stale
Synchronous Parallel Parameter Server" (NeurIPS 2013). A worker's clock counts the steps that it has ended. It may begin
the next one while it is at most ``staleness`` steps ahead of the slowest. So the weights that it reads lack updates of
the last few steps only, and convergence can be proved. With 0 all workers take every step together (bulk synchronous
parallel); without a bound no worker ever waits.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from minidist.nn.random import generator
from minidist.overrides import overridable

NOISE = 0.2  # a step takes up to this share longer, at random
SLOWEST = 1000.0  # largest time of a worker's step


@dataclass(frozen=True)
class Arrival:
    """Arrival of the gradient that a worker computed in its step ``step``; the time is in simulated seconds."""

    worker: int
    step: int
    seconds: float


@overridable
def may_begin(clocks: Sequence[int], worker: int, staleness: float) -> bool:
    """Return whether a worker may begin its next step.

    Args:
        clocks: number of steps that each worker has ended.
        worker: number of the worker.
        staleness: largest number of steps that it may be ahead of the slowest; infinite for no bound.
    """
    return clocks[worker] - min(clocks) <= staleness


def read_arrivals(text: str, workers: int) -> list[float] | None:
    """Return the time that each worker takes for a step, relative to the others; None for ``live``.

    Args:
        text: ``live``, ``seeded`` (equal times), or a time for each worker as in ``1+1+4``.
        workers: number of workers.

    Raises:
        ValueError: if the text is none of these, a time is out of bounds, or the number of workers is another one.
    """
    if text == "live":
        return None
    if text == "seeded":
        return [1.0] * workers
    try:
        seconds = [float(part) for part in text.split("+")] if text.isascii() and "_" not in text else []
    except ValueError:
        seconds = []
    if not seconds:
        raise ValueError(f"arrivals={text}: choose live, seeded, or how long each worker takes, as in arrivals=1+1+4")
    if not all(0 < each <= SLOWEST for each in seconds):
        raise ValueError(f"arrivals={text}: the time of each worker must be above 0 and at most {SLOWEST:g}")
    if len(seconds) != workers:
        raise ValueError(f"arrivals={text} has the times of {len(seconds)} workers, but dp={workers}")
    return seconds


def seeded_order(seconds: Sequence[float], steps: int, staleness: float, seed: int) -> list[Arrival]:
    """Simulate workers that wait by SSP's rule, and return all arrivals of a run, in order.

    Args:
        seconds: time of each worker's step, before noise.
        steps: training steps per worker.
        staleness: the bound of ``may_begin``; with 0 all workers begin each step together.
        seed: random seed of the noise.
    """
    clocks = [0] * len(seconds)  # steps that each worker has ended
    working: list[tuple[float, int]] = []  # heap of (time when done, worker)

    def begin(worker: int, now: float) -> None:
        noise = generator("arrival", seed, worker, clocks[worker]).uniform(0, NOISE)
        heapq.heappush(working, (now + seconds[worker] * (1 + noise), worker))

    waiting = set(range(len(seconds)))
    order: list[Arrival] = []
    now = 0.0
    while True:
        for worker in sorted(waiting):
            if clocks[worker] < steps and may_begin(clocks, worker, staleness):
                waiting.remove(worker)
                begin(worker, now)
        if not working:
            return order
        now, worker = heapq.heappop(working)
        order.append(Arrival(worker, clocks[worker], now))
        clocks[worker] += 1
        waiting.add(worker)
