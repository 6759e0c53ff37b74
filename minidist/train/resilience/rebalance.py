"""Rebalancing: data-parallel ranks that compute slower get fewer micro-batches, so that none waits long for another.

Every few steps all ranks compare how long a micro-batch takes them, and deal the micro-batches of a step out anew, in
proportion to their speeds: as many as before in all, consecutive ones for each rank. If one of four ranks takes 3 times
as long, 12 micro-batches are dealt as 4 + 4 + 1 + 3 in place of 3 + 3 + 3 + 3, and a step takes 4 units of time, not 9.

**No bit changes.** The micro-batch is the grain: its forward and backward, its samples and its dropout depend on its
number within the step, and never on the rank that computes it. The gradients of all micro-batches are summed in float64
and rounded once, so neither the order of the sum nor the rank that added a term shows; the losses likewise. The sum is
divided by the number of micro-batches of the step, not of a rank. So measured times, which no run repeats, may decide
who computes what. (``reduce_dtype`` float32 gives this up, as it does for layouts.)

Simplified: a pipeline keeps its micro-batches, because its schedule is made for their number. Ranks that share experts
meet in every micro-batch: there a slow rank is waited for less often, but the others run more micro-batches.
"""

from collections import deque
from collections.abc import Sequence

import numpy as np

from minidist.comm.collectives import all_gather_into_tensor
from minidist.overrides import overridable
from minidist.parallel.data import share_of
from minidist.train.hooks import StepHook
from minidist.train.share import Share

EVERY = 5  # steps between two comparisons: a rank's time is its median over them
GAIN = 0.2  # the least share of the slowest rank's time to save by dealing anew: on a shared machine times are noisy


@overridable
def deal(speeds: Sequence[float], micro_batches: int) -> list[int]:
    """Return how many micro-batches each rank gets, so that the last rank to finish ends as early as possible.

    Every rank gets one. Each of the others goes to the rank that would end first with one more; ties go to the first.
    (Greedy is optimal here, since micro-batches are all alike: a rank that ends later than the result's slowest has
    been the best choice for its last micro-batch, so no other rank could have taken it earlier.)

    Args:
        speeds: speed of each rank, in micro-batches per second or any other unit; positive.
        micro_batches: micro-batches to deal out, at least as many as ranks.

    Returns:
        A count for each rank; their sum is ``micro_batches``.

    Raises:
        ValueError: for fewer micro-batches than ranks, or a speed that is not positive.
    """
    if micro_batches < len(speeds):
        raise ValueError(f"{micro_batches} micro-batches are too few for {len(speeds)} ranks: each needs at least one")
    if not all(speed > 0 for speed in speeds):
        raise ValueError(f"speeds must be positive, got {list(speeds)}")
    counts = [1] * len(speeds)
    for _ in range(micro_batches - len(speeds)):
        ends = [(count + 1) / speed for count, speed in zip(counts, speeds, strict=True)]
        counts[ends.index(min(ends))] += 1
    return counts


def checked(counts: Sequence[int], before: Sequence[int]) -> list[int]:
    """Return the counts as integers.

    Raises:
        ValueError: if an override of ``deal`` left out a rank, or dealt out other micro-batches than there are.
    """
    if len(counts) != len(before) or sum(counts) != sum(before) or min(counts) < 1:
        raise ValueError(
            f"deal must give {len(before)} ranks at least 1 each of {sum(before)} micro-batches, got {list(counts)}"
        )
    return [int(count) for count in counts]


class Rebalance(StepHook):
    """Hook that deals micro-batches out anew between steps. Every rank has one.

    ``paces`` has the seconds of computing for one micro-batch in each step so far; ``counts`` has the current number of
    micro-batches of each data-parallel rank.
    """

    def __init__(self, share: Share, paces: Sequence[float], every: int = EVERY) -> None:
        self.world, self.model = share.world, share.model
        self.paces, self.every, layout = paces, every, share.layout
        self.shape = layout.dp, layout.cp * layout.tp  # of the mesh; rules.py refuses pipelines
        self.counts = [len(share_of(rank, layout.dp, share.config.micro_batches)) for rank in range(layout.dp)]
        self.seconds: deque[float] = deque(maxlen=every)

    def end_step(self, step: int, loss: float, last: bool) -> None:
        if not last:
            self.note(self.paces[-1])

    def note(self, seconds: float) -> None:
        """Note how long this rank computed for one micro-batch in the step; every few steps, compare and deal.

        All ranks call it after every step. They get the same counts, since they deal by the same times.
        """
        self.seconds.append(seconds)
        if len(self.seconds) < self.every:
            return
        times = self.times_of_all(float(np.median(self.seconds)))
        self.seconds.clear()
        counts = checked(deal((1 / times).tolist(), sum(self.counts)), self.counts)
        if max(counts * times) < (1 - GAIN) * max(self.counts * times):
            self.counts = counts
            place = self.world.rank // self.shape[1]  # in dp
            first = sum(counts[:place])
            mine = range(first, first + counts[place])
            self.model.take(mine, max(counts))

    def times_of_all(self, mine: float) -> np.ndarray:
        """Return the seconds that each data-parallel rank takes for a micro-batch: (dp,).

        Ranks of tp and cp work on the same micro-batches together, so the slowest of them counts.
        """
        times = np.empty(self.world.size)
        all_gather_into_tensor(times, np.array([mine]), self.world)
        return times.reshape(self.shape).max(axis=1)
