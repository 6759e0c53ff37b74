"""Stragglers: which ranks are slower than the others, how much, and since when.

All ranks of a run meet in every step, so one slow rank slows all of them, and the time of a step does not show whose
fault it is. The time that a rank *computes* does (comm's cores.py): a rank that waits computes nothing.

MegaScale finds stragglers in this way: about 0.5 % of its machines were some 10 % slow (Jiang et al., "MegaScale:
Scaling Large Language Model Training to More Than 10,000 GPUs", NSDI 2024). Simplified: MegaScale times single code
segments by CUDA events; here the clock of the host times a step's forward and backward.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from minidist.overrides import overridable

WINDOW = 7  # steps: a median over them ignores up to three odd ones, such as one with a garbage collection
TICK = 1e-9  # seconds
THRESHOLD = 1.8  # on a shared machine; on dedicated GPUs, which vary less, a lower one finds MegaScale's 10 %


@overridable
def slow_ranks(seconds: np.ndarray, threshold: float = THRESHOLD) -> dict[int, float]:
    """Return the slow ranks, and how many times as long as the others each of them takes.

    A rank's time is its median over the steps, so fewer than half of them may be odd. It is compared with the median of
    the other ranks' times: without the rank itself, so that one of two ranks can be found, and by a median, so that a
    few slow ranks do not hide each other.

    Healthy ranks do not reach the threshold. Noise that comes and goes disappears in the medians. Noise that lasts for
    many steps comes from a core that one rank shares and another does not: two hardware threads of one core do some 1.3
    times the work of one, so each takes some 1.5 times as long, and no clock of the system shows it.

    Args:
        seconds: (steps, ranks), time to compute one micro-batch, for ranks that do the same work.
        threshold: a rank is slow if it takes more than this many times as long.

    Returns:
        rank, a column of ``seconds`` -> its factor. Empty if there is no step or only one rank.
    """
    seconds = np.asarray(seconds)
    if seconds.shape[0] == 0 or seconds.shape[1] < 2:
        return {}
    times = np.median(seconds, axis=0)  # (ranks,)
    factors = [times[rank] / np.median(np.delete(times, rank)) for rank in range(len(times))]
    return {rank: float(factor) for rank, factor in enumerate(factors) if factor > threshold}


def same_work(shape: tuple[int, int, int, int], by_chunk: bool = False, experts: int = 1) -> list[list[int]]:
    """Return the groups of ranks whose times can be compared: ranks that do the same work for one micro-batch.

    Args:
        shape: (pp, dp, cp, tp), shape of the mesh. Stages of a pipeline have different layers.
        by_chunk: whether cp ranks have different work, as in a ring, where late tokens have more keys.
        experts: number of dp ranks, next to each other, that share the experts. Ranks with different experts get
            different numbers of tokens.

    Returns:
        Lists of ranks, which may have one rank only; together they are all ranks.
    """
    pp, dp, cp, tp = shape
    places = np.arange(pp * dp * cp * tp).reshape(pp, dp // experts, experts, cp if by_chunk else 1, -1, tp)
    return places.transpose(0, 2, 3, 1, 4, 5).reshape(pp * experts * places.shape[3], -1).tolist()


@dataclass
class Straggler:
    """A rank that was slow for some steps."""

    rank: int  # in the world
    factor: float  # how many times as long as the others it took, over these steps; above 1 and finite
    since: int  # the first of them
    until: int | None = None  # the last of them; None while it is slow

    def __str__(self) -> str:
        verb, when = "is", f"since step {self.since}"
        if self.until is not None:
            verb, when = "was", f"from step {self.since} to step {self.until}"
        return f"rank {self.rank} {verb} {self.factor:.1f} times as slow as the others {when}"


class StragglerWatch:
    """A watch that finds stragglers while a run goes on, from what its ranks report.

    Args:
        groups: lists of ranks that are compared, as from ``same_work``.
        window: number of the latest steps to compare. No rank is judged before it has run that number of steps.
    """

    def __init__(self, groups: Sequence[Sequence[int]], window: int = WINDOW) -> None:
        self.window = window
        self.logs = {rank: log for log in map(_Log, groups) for rank in log.ranks}
        self.found: list[Straggler] = []  # all so far, in the order in which they were found

    def add(self, rank: int, step: int, seconds: float) -> list[Straggler]:
        """Note how long a rank computed in a step, per micro-batch; return the stragglers that this reveals."""
        log = self.logs[rank]
        if not log.add(rank, step, seconds) or len(log.rows) < self.window:
            return []
        before = len(self.found)
        slow = {log.ranks[column]: factor for column, factor in slow_ranks(np.array(log.rows[-self.window :])).items()}
        known = {each.rank: each for each in self.found if each.rank in log.ranks and each.until is None}
        for rank, factor in slow.items():
            if rank not in known:
                known[rank] = Straggler(rank, factor, log.began(rank, factor, self.window))
                self.found.append(known[rank])
        for rank, straggler in known.items():
            if rank not in slow:  # in noise its last slow step may seem to come before the first
                straggler.until = max(straggler.since, log.ended(rank, straggler.factor, self.window))
            factor = log.factor(rank, straggler.since, straggler.until)
            straggler.factor = factor if factor > 1 else straggler.factor
        return self.found[before:]


class _Log:
    """The times of some ranks, step by step: a row for each step of which all of them have reported."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self.ranks = list(ranks)
        self.coming: dict[int, dict[int, float]] = {}  # step -> rank -> seconds
        self.steps: list[int] = []
        self.rows: list[list[float]] = []

    def add(self, rank: int, step: int, seconds: float) -> bool:
        """Note a rank's time in a step; return whether all ranks have reported this step now."""
        row = self.coming.setdefault(step, {})
        row[rank] = max(seconds, TICK)  # a clock may have stood still
        if len(row) < len(self.ranks):
            return False
        del self.coming[step]
        self.steps.append(step)
        self.rows.append([row[each] for each in self.ranks])
        return True

    def ratios(self, rank: int) -> np.ndarray:
        """Return the rank's time in each step, in units of the others' median: (steps,)."""
        rows, column = np.array(self.rows), self.ranks.index(rank)
        return rows[:, column] / np.median(np.delete(rows, column, axis=1), axis=1)

    def began(self, rank: int, factor: float, window: int) -> int:
        """Return the first slow step of the last ones: most steps after it are slow, and most before it are not."""
        votes = self.votes(rank, factor)[-window:]
        return self.steps[-window:][int(np.argmax(np.cumsum(votes[::-1])[::-1]))]

    def ended(self, rank: int, factor: float, window: int) -> int:
        """Return the last slow step of a rank that was slow before the last ``window`` steps."""
        votes = self.votes(rank, factor)[-window - 1 :]  # with the step before, which was slow: perhaps none of them is
        return self.steps[-window - 1 :][int(np.argmax(np.cumsum(votes)))]

    def votes(self, rank: int, factor: float) -> np.ndarray:
        """Return 1 for each step in which the rank was slow, nearer to ``factor`` than to 1, and else -1: (steps,)."""
        return np.where(self.ratios(rank) > (1 + factor) / 2, 1, -1)

    def factor(self, rank: int, first: int, last: int | None) -> float:
        """Return the median ratio over the steps from ``first`` to ``last``."""
        meant = [first <= step and (last is None or step <= last) for step in self.steps]
        return float(np.median(self.ratios(rank)[meant]))
