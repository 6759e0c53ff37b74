"""The tradeoff of the batch size: steps against samples, and the learning rate for each. Arithmetic alone.

McCandlish et al. (2018, arXiv 1812.06162, section 2): to reach a loss takes at least S_min steps, however large the
batch, and at least E_min samples, however small. In between

    (S / S_min - 1) (E / E_min - 1) = 1,      E = B S,      B_crit = E_min / S_min

so at the critical batch size both are twice their minimum. The gradient noise scale estimates B_crit.

The learning rate. Noise adds up as the square root of the number of samples, the gradient as the number. As long as a
batch is mostly noise, twice the batch halves the noise of a step, and a step may be twice as long: the linear rule
(Goyal et al., 2017, arXiv 1706.02677), for SGD below B_crit. Adam divides a step by the root of the gradient's mean
square, which below B_crit is mostly noise too and falls with the root of the batch. That division gives half of the
growth, and the rate needs only the square root (Malladi et al., 2022, arXiv 2205.10287). McCandlish et al. measured
powers of the batch between 0.5 and 1 for Adam. Above B_crit neither rule holds, and the best rate stays the same.

Warm-up. Both rules assume that weights move slowly, which they do not at the beginning: a long step overshoots there,
and Adam's second moments are means of few steps. A rate that rises over some hundreds of steps lets both settle (Goyal
et al., section 2.2).

``MEASURED`` is the experiment of ``python benchmarks/large_batches.py``: steps to one loss for several batches and
learning rates, and their evaluation.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from math import inf, sqrt
from pathlib import Path
from statistics import fmean

import numpy as np
from msgspec import convert

from minidist.plan.scaling.laws import check


def steps_to_loss(batch: float, critical_batch: float, least_steps: float) -> float:
    """Steps to a loss: S = S_min (1 + B_crit / B)."""
    check(batch=batch, critical_batch=critical_batch, least_steps=least_steps)
    return least_steps * (1 + critical_batch / batch)


def samples_to_loss(batch: float, critical_batch: float, least_steps: float) -> float:
    """Samples to a loss: E = E_min (1 + B / B_crit), with E_min = B_crit S_min."""
    return batch * steps_to_loss(batch, critical_batch, least_steps)


@dataclass(frozen=True)
class Tradeoff:
    """Minimum cost of a loss: S_min steps, with huge batches, and E_min samples, with tiny ones."""

    least_steps: float
    least_samples: float

    @property
    def critical_batch(self) -> float:
        """B_crit, in samples."""
        return self.least_samples / self.least_steps

    def steps(self, batch: float) -> float:
        return steps_to_loss(batch, self.critical_batch, self.least_steps)


def fit_tradeoff(steps: Mapping[int, float | None]) -> Tradeoff:
    """Fit a hyperbola to measured steps to one loss: S = S_min + E_min / B, by least squares of relative errors.

    Args:
        steps: batch, in samples -> measured steps; at least two batches.

    Raises:
        ValueError: for fewer than two batches, a run that was given up (None), or steps that no hyperbola fits: they do
            not fall as the batch grows, or they fall faster than it grows.
    """
    if len(steps) < 2:
        raise ValueError(f"the tradeoff has two constants: measure at least two batch sizes, not {len(steps)}")
    batches, measured = (np.array(values, np.float64) for values in (list(steps), list(steps.values())))
    check(batch=batches.min(), steps=measured.min())
    shares = np.stack([1 / measured, 1 / (batches * measured)], axis=1)  # (sizes, 2), terms that add up to 1
    (least_steps, least_samples), *_ = np.linalg.lstsq(shares, np.ones(len(steps)), rcond=None)
    if least_steps <= 0:
        raise ValueError("steps fall faster than the batch grows: compare batches at their best learning rates")
    if least_samples <= 0:
        raise ValueError("steps do not fall as the batch grows: measure smaller batches")
    return Tradeoff(float(least_steps), float(least_samples))


def linear_rate(rate: float, base: float, batch: float) -> float:
    """Scale a rate by the linear rule: k times the batch, k times the rate. For SGD, below the critical batch size."""
    check(rate=rate, base=base, batch=batch)
    return rate * batch / base


def square_root_rate(rate: float, base: float, batch: float) -> float:
    """Scale a rate by the square-root rule: k times the batch, sqrt(k) times the rate. For Adam and similar methods."""
    check(rate=rate, base=base, batch=batch)
    return rate * sqrt(batch / base)


MEASURED = Path(__file__).with_suffix(".json")
Rule = Callable[[float, float, float], float]  # (rate, its batch, another batch) -> rate for the other batch


@dataclass(frozen=True)
class Run:
    """Run that ends at the target loss.

    Attributes:
        batch: samples in a step. rate: learning rate after warm-up.
        steps: steps to the target; None for a run that was given up.
    """

    optimizer: str
    batch: int
    rate: float
    seed: int
    steps: float | None

    @property
    def samples(self) -> float | None:
        return None if self.steps is None else self.batch * self.steps


@dataclass(frozen=True)
class Noise:
    """Gradient noise scale over one quarter of a run's steps.

    Attributes:
        quarter: 0 to 3. loss: final loss, on held-out text.
        samples: the noise scale, B_simple, in samples.
    """

    seed: int
    quarter: int
    loss: float
    samples: float


@dataclass(frozen=True)
class Ramped:
    """Run over ``ramp_samples`` samples, at the full batch (``ramp`` is "") or with a batch that grows to it."""

    seed: int
    ramp: str
    steps: int
    loss: float


@dataclass(frozen=True)
class BatchExperiment:
    """Measurements of the experiment.

    Attributes:
        target: loss to reach, on held-out text, in nats per token. base: batch whose best rate the rules scale.
        context: tokens in a sample.
        ramp_samples: samples of each run in ``ramps``. ramp_batch: the full batch.
    """

    target: float
    base: int
    context: int
    ramp_samples: int
    ramp_batch: int
    runs: tuple[Run, ...]
    noise: tuple[Noise, ...]
    ramps: tuple[Ramped, ...]

    @classmethod
    def read(cls, path: Path = MEASURED) -> "BatchExperiment":
        return convert(json.loads(path.read_text(encoding="utf-8")), cls)

    def write(self, path: Path) -> None:
        """Write the experiment as JSON, with one run on a line."""
        parts = []
        for name, value in vars(self).items():
            if isinstance(value, tuple):
                lines = ",\n".join(f"  {json.dumps(asdict(one))}" for one in value)
                parts.append(f' "{name}": [\n{lines}\n ]')
            else:
                parts.append(f' "{name}": {json.dumps(value)}')
        path.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")

    @property
    def optimizers(self) -> list[str]:
        return list(dict.fromkeys(run.optimizer for run in self.runs))

    @property
    def batches(self) -> list[int]:
        return sorted({run.batch for run in self.runs})

    @property
    def seeds(self) -> list[int]:
        return sorted({run.seed for run in self.runs})

    def reached(self, optimizer: str, batch: int) -> list[Run]:
        """Return the first seed's runs that reached the target. Only this seed has tried all rates."""
        first = [run for run in self.runs if (run.optimizer, run.batch, run.seed) == (optimizer, batch, self.seeds[0])]
        return [run for run in first if run.steps is not None]

    def best_rate(self, optimizer: str, batch: int) -> float:
        """Return the rate with which the first seed took the fewest steps."""
        reached = self.reached(optimizer, batch)
        if not reached:
            raise ValueError(
                f"no rate tried reaches a loss of {self.target:g} with {optimizer} and batch {batch}: try others"
            )
        return min(reached, key=lambda run: run.steps or inf).rate

    def rate_by(self, rule: Rule, optimizer: str, batch: int) -> float:
        """Return the rate for a batch that a rule derives from the base's best rate."""
        return rule(self.best_rate(optimizer, self.base), self.base, batch)

    def steps(self, optimizer: str, batch: int, rate: float) -> list[float | None]:
        """Return the steps of every seed's run with these settings."""
        return [run.steps for run in self.runs if (run.optimizer, run.batch, run.rate) == (optimizer, batch, rate)]

    def mean_steps(self, optimizer: str, batch: int, rate: float) -> float | None:
        """Return the mean steps over the seeds; None if there is no run, or one was given up."""
        found = self.steps(optimizer, batch, rate)
        reached = [steps for steps in found if steps is not None]
        return fmean(reached) if reached and len(reached) == len(found) else None

    def first_steps(self, optimizer: str, batch: int, rate: float) -> float | None:
        """Return the steps of the first seed, by which rates are compared: no other seed has run all of them."""
        wanted = (optimizer, batch, rate, self.seeds[0])
        found = [run.steps for run in self.runs if (run.optimizer, run.batch, run.rate, run.seed) == wanted]
        return found[0] if found else None

    def best_steps(self, optimizer: str) -> dict[int, float | None]:
        """Return batch -> mean steps to the target, at that batch's best rate."""
        return {batch: self.mean_steps(optimizer, batch, self.best_rate(optimizer, batch)) for batch in self.batches}

    def tradeoff(self, optimizer: str) -> Tradeoff:
        """Fit the hyperbola to the mean steps at the best rates."""
        return fit_tradeoff(self.best_steps(optimizer))

    def tradeoffs(self, optimizer: str) -> list[Tradeoff]:
        """Fit the hyperbola to the steps of each seed by itself, at the same rates."""
        best = {batch: self.best_rate(optimizer, batch) for batch in self.batches}
        return [
            fit_tradeoff(
                {
                    run.batch: run.steps
                    for run in self.runs
                    if (run.optimizer, run.seed, run.rate) == (optimizer, seed, best[run.batch])
                }
            )
            for seed in self.seeds
        ]

    def noise_scale(self, quarter: int) -> list[float]:
        """Return the noise scale B_simple of every seed in a quarter of its run, in samples."""
        return [one.samples for one in self.noise if one.quarter == quarter]

    def ramped(self, ramp: str) -> list[Ramped]:
        return [one for one in self.ramps if one.ramp == ramp]
