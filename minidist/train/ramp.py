"""A batch that grows: small at first, where gradients agree and small batches are as good, then as large as configured.

The gradient noise scale grows while the loss falls (measuring/noise_scale.py), and so does the batch that pays off.
GPT-3 went from 32 thousand tokens to 3.2 million over its first 4 to 12 billion (Brown et al., 2020, table 2.1 and
appendix B).
The form is that of Megatron-LM's ``--rampup-batch-size START INCREMENT SAMPLES``: the batch grows by INCREMENT at equal
distances, and is full after SAMPLES samples. It depends on the step alone, so a run may be interrupted anywhere.
"""

from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache

from minidist.train.notation.numerals import whole_number


@dataclass(frozen=True)
class Ramp:
    """A batch size that grows from ``start`` to ``full``, by ``increment``, over the first ``samples`` of a run."""

    start: int
    increment: int
    samples: int
    full: int

    def batch_at(self, step: int) -> int:
        """Samples in a step, counted from 0."""
        stages = _stages(self)
        return stages[bisect_right(stages, step, key=lambda stage: stage[0]) - 1][1]

    @property
    def sizes(self) -> range:
        """All sizes that a step has in a long run."""
        return range(self.start, self.full + 1, self.increment)


@lru_cache
def _stages(ramp: Ramp) -> tuple[tuple[int, int], ...]:
    """Return pairs of a first step and the samples of each step from it on. A large step may pass over a size.

    The size after ``consumed`` samples is start + increment * (consumed // (samples / increments)), in whole numbers.
    """
    increments = (ramp.full - ramp.start) // ramp.increment
    found, first, consumed = [], 0, 0
    for grown in range(increments):
        size = ramp.start + grown * ramp.increment
        missing = (grown + 1) * ramp.samples - increments * consumed  # to the next size, times increments
        steps = max(0, -(-missing // (increments * size)))  # rounded up
        if steps:
            found.append((first, size))
        first, consumed = first + steps, consumed + steps * size
    return (*found, (first, ramp.full))


def read_ramp(text: str, full: int, micro_batch: int) -> Ramp:
    """The ramp written START,INCREMENT,SAMPLES.

    Args:
        full: samples of a step at its end. micro_batch: of which all sizes must be multiples.

    Raises:
        ValueError: for what cannot be, with the nearest numbers that can.
    """
    what = f"rampup_batch_size {text}"
    try:
        start, increment, samples = (whole_number(part) for part in text.replace(" ", "").split(","))
    except ValueError:
        raise ValueError(f"{what}: write START,INCREMENT,SAMPLES in whole numbers, such as 16,8,480") from None
    for name, size in (("start", start), ("increment", increment)):
        if size < 1 or size % micro_batch:
            nearest = max(1, round(size / micro_batch)) * micro_batch
            raise ValueError(f"{what}: the {name} must be a multiple of micro_batch {micro_batch}: choose {nearest}")
    if start >= full:
        raise ValueError(f"{what}: the batch grows to global_batch {full}, and must start below it")
    if (full - start) % increment:
        fitting = [n for n in range(micro_batch, full - start + 1, micro_batch) if (full - start) % n == 0]
        nearest = min(fitting, key=lambda n: abs(n - increment))
        raise ValueError(
            f"{what}: from {start} to global_batch {full} are {full - start} samples, which steps of {increment} do "
            f"not divide: choose an increment of {nearest}"
        )
    if samples < 0:
        raise ValueError(f"{what}: the samples over which the batch grows must not be negative")
    return Ramp(start, increment, samples, full)
