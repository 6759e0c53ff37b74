"""A large-batch experiment: steps to one loss for several batches and learning rates, and what they say together.

``MEASURED`` is the one of ``python benchmarks/large_batches.py``, to read and to fit again.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from minidist.plan.batches.tradeoff import Tradeoff, fit_tradeoff

MEASURED = Path(__file__).with_name("experiment.json")
Rule = Callable[[float, float, float], float]  # of large_batches.py: a rate, its batch and another batch to a rate


@dataclass(frozen=True)
class Run:
    """One run that ends at the target loss.

    Attributes:
        batch: samples in a step. rate: the learning rate after warm-up.
        steps: to the target; None for a run that was given up.
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
    """The gradient noise scale over one quarter of a run's steps.

    Attributes:
        quarter: 0 to 3. loss: on held-out text, at its end.
        samples: B_simple.
    """

    seed: int
    quarter: int
    loss: float
    samples: float


@dataclass(frozen=True)
class Ramped:
    """One run over so many samples, at the full batch (``ramp`` is "") or with a batch that grows to it."""

    seed: int
    ramp: str
    steps: int
    loss: float


@dataclass(frozen=True)
class BatchExperiment:
    """What was measured.

    Attributes:
        target: the loss to reach, on held-out text, in nats per token. base: the batch whose best rate the rules scale.
        context: tokens in a sample.
        ramp_samples: of each run in ``ramps``. ramp_batch: the full batch.
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
        content = json.loads(path.read_text(encoding="utf-8"))
        for name, kind in (("runs", Run), ("noise", Noise), ("ramps", Ramped)):
            content[name] = tuple(kind(**one) for one in content[name])
        return cls(**content)

    def write(self, path: Path) -> None:
        """One run a line."""
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
        """Runs of the first seed, which has tried all rates, that came to the target."""
        first = [run for run in self.runs if (run.optimizer, run.batch, run.seed) == (optimizer, batch, self.seeds[0])]
        return [run for run in first if run.steps is not None]

    def best_rate(self, optimizer: str, batch: int) -> float:
        """The rate with the fewest steps, by the first seed."""
        reached = self.reached(optimizer, batch)
        if not reached:
            raise ValueError(f"no rate tried reached {self.target:g} with {optimizer} and batch {batch}: try others")
        return min(reached, key=lambda run: run.steps).rate

    def rate_by(self, rule: Rule, optimizer: str, batch: int) -> float:
        """The rate that a rule makes of the base's best one."""
        return rule(self.best_rate(optimizer, self.base), self.base, batch)

    def steps(self, optimizer: str, batch: int, rate: float) -> list[float | None]:
        """Steps of every seed's run with these settings."""
        return [run.steps for run in self.runs if (run.optimizer, run.batch, run.rate) == (optimizer, batch, rate)]

    def mean_steps(self, optimizer: str, batch: int, rate: float) -> float | None:
        """Over the seeds; None where one of them was given up, or none was run."""
        found = self.steps(optimizer, batch, rate)
        return None if None in found or not found else fmean(found)

    def first_steps(self, optimizer: str, batch: int, rate: float) -> float | None:
        """Steps of the first seed, the only one that has run all rates: to compare rates by."""
        wanted = (optimizer, batch, rate, self.seeds[0])
        found = [run.steps for run in self.runs if (run.optimizer, run.batch, run.rate, run.seed) == wanted]
        return found[0] if found else None

    def best_steps(self, optimizer: str) -> dict[int, float]:
        """By batch, at its best rate."""
        return {batch: self.mean_steps(optimizer, batch, self.best_rate(optimizer, batch)) for batch in self.batches}

    def tradeoff(self, optimizer: str) -> Tradeoff:
        """The hyperbola through the mean steps at the best rates."""
        return fit_tradeoff(self.best_steps(optimizer))

    def tradeoffs(self, optimizer: str) -> list[Tradeoff]:
        """One for each seed by itself, at the same rates."""
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
        """B_simple in a quarter of a run, of every seed."""
        return [one.samples for one in self.noise if one.quarter == quarter]

    def ramped(self, ramp: str) -> list[Ramped]:
        return [one for one in self.ramps if one.ramp == ramp]
