"""What a larger batch buys: steps against samples, and how the learning rate follows. Arithmetic alone.

McCandlish et al. (2018, arXiv 1812.06162, section 2): to reach a loss takes at least S_min steps, however large the
batch, and at least E_min samples, however small. In between

    (S / S_min - 1) (E / E_min - 1) = 1,      E = B S,      B_crit = E_min / S_min

so at the critical batch size both are twice their least. The gradient noise scale estimates B_crit.

The learning rate. Noise adds up as the square root of the number of samples, the gradient as the number. As long as a
batch is mostly noise, twice the batch halves the noise of a step, and a step may be twice as long: the linear rule
(Goyal et al., 2017, arXiv 1706.02677), for SGD below B_crit. Adam divides a step by the root of the gradient's mean
square, which below B_crit is mostly noise too and falls with the root of the batch; so half of that growth is in it
already, and the square root is left (Malladi et al., 2022, arXiv 2205.10287). McCandlish et al. measured powers of the
batch between 0.5 and 1 for Adam. Above B_crit neither rule holds, and the best rate stays.

Warm-up. Both rules take weights as moving slowly, which they do not at the beginning: a long step overshoots there, and
Adam's second moments are means of few steps. A rate that rises over some hundreds of steps lets both settle (Goyal et
al., section 2.2).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt

import numpy as np


def steps_to_loss(batch: float, critical_batch: float, least_steps: float) -> float:
    """S = S_min (1 + B_crit / B)."""
    _check(batch=batch, critical_batch=critical_batch, least_steps=least_steps)
    return least_steps * (1 + critical_batch / batch)


def samples_to_loss(batch: float, critical_batch: float, least_steps: float) -> float:
    """E = E_min (1 + B / B_crit), with E_min = B_crit S_min."""
    return batch * steps_to_loss(batch, critical_batch, least_steps)


def speedup(batch: float, base: float, critical_batch: float) -> float:
    """How many times fewer steps than with the base batch."""
    return steps_to_loss(base, critical_batch, 1) / steps_to_loss(batch, critical_batch, 1)


@dataclass(frozen=True)
class Tradeoff:
    """What a loss takes at least: S_min steps, with endless batches, and E_min samples, with tiny ones."""

    least_steps: float
    least_samples: float

    @property
    def critical_batch(self) -> float:
        """B_crit, in samples."""
        return self.least_samples / self.least_steps

    def steps(self, batch: float) -> float:
        return steps_to_loss(batch, self.critical_batch, self.least_steps)


def fit_tradeoff(steps: Mapping[int, float]) -> Tradeoff:
    """The hyperbola through measured steps to one loss: S = S_min + E_min / B, by least squares of relative errors.

    Args:
        steps: measured, by batch, in samples; at least two.

    Raises:
        ValueError: for one batch, or steps that no hyperbola fits: those that do not fall as the batch grows, or that
            fall faster than it grows.
    """
    if len(steps) < 2:
        raise ValueError(f"the tradeoff has two constants: measure at least two batch sizes, not {len(steps)}")
    batches, measured = (np.array(values, np.float64) for values in (list(steps), list(steps.values())))
    _check(batch=batches.min(), steps=measured.min())
    shares = np.stack([1 / measured, 1 / (batches * measured)], axis=1)  # (sizes, 2), of what is to be 1
    (least_steps, least_samples), *_ = np.linalg.lstsq(shares, np.ones(len(steps)), rcond=None)
    if least_steps <= 0:
        raise ValueError("steps fall faster than the batch grows: compare batches at their best learning rates")
    if least_samples <= 0:
        raise ValueError("steps do not fall as the batch grows: measure smaller batches")
    return Tradeoff(float(least_steps), float(least_samples))


def linear_rate(rate: float, base: float, batch: float) -> float:
    """The linear rule: k times the batch, k times the rate. For SGD, below the critical batch size."""
    _check(rate=rate, base=base, batch=batch)
    return rate * batch / base


def square_root_rate(rate: float, base: float, batch: float) -> float:
    """The square-root rule: k times the batch, sqrt(k) times the rate. For Adam and its like."""
    _check(rate=rate, base=base, batch=batch)
    return rate * sqrt(batch / base)


def best_rate(rate: float, batch: float, critical_batch: float) -> float:
    """Best learning rate of SGD at a batch: rate / (1 + B_crit / B), ``rate`` being that of endless batches."""
    _check(rate=rate, batch=batch, critical_batch=critical_batch)
    return rate / (1 + critical_batch / batch)


def _check(**values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise ValueError(f"{name} must be above 0, got {value:g}")
