"""An experiment with looser steps: the same samples by several methods, over bytes and over time.

``MEASURED`` is the file that ``python benchmarks/loosening.py`` writes.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from msgspec import convert

MEASURED = Path(__file__).with_name("loosened.json")
WINDOW = 10  # steps over which losses are averaged: a step's own loss depends on its samples


@dataclass(frozen=True)
class Run:
    """One run with one seed."""

    seed: int
    losses: list[float]  # of each step
    validation_loss: float  # at the end
    bytes_per_step: float  # that a worker sends, averaged over workers and steps


@dataclass(frozen=True)
class Method:
    """Runs that differ by their seed alone."""

    name: str  # in words
    layout: str  # as flags and layouts have it
    seconds_per_step: float  # on the cluster's clock
    runs: list[Run]

    @property
    def steps(self) -> int:
        return len(self.runs[0].losses)

    @property
    def bytes_per_step(self) -> float:
        return self.runs[0].bytes_per_step

    @property
    def validation_losses(self) -> list[float]:
        return [run.validation_loss for run in self.runs]

    def curves(self) -> list[list[float]]:
        """Return the loss curve of each seed: at each step the mean over the last ``WINDOW`` steps."""
        return [[fmean(run.losses[max(0, n - WINDOW) : n]) for n in range(1, self.steps + 1)] for run in self.runs]

    def after(self, steps: float) -> tuple[list[float], bool]:
        """Return each seed's loss after ``steps`` steps, or its final loss, and whether the run has that many steps."""
        last = min(self.steps, max(1, int(steps + 1e-9)))  # a quotient, which may be below a whole number by rounding
        return [curve[last - 1] for curve in self.curves()], steps <= self.steps


@dataclass(frozen=True)
class Experiment:
    """Measurements of several methods, of which the first is the one that the others are compared with."""

    methods: list[Method]

    @property
    def equal_bytes(self) -> float:
        """Bytes that a worker sends in a tenth of the first method's run."""
        return self.methods[0].bytes_per_step * self.methods[0].steps / 10

    @property
    def equal_seconds(self) -> float:
        """Seconds that half of the first method's run takes."""
        return self.methods[0].seconds_per_step * self.methods[0].steps / 2

    def after_bytes(self, method: Method) -> tuple[list[float], bool]:
        return method.after(self.equal_bytes / method.bytes_per_step)

    def after_seconds(self, method: Method) -> tuple[list[float], bool]:
        return method.after(self.equal_seconds / method.seconds_per_step)

    def named(self, name: str) -> Method:
        return next(method for method in self.methods if method.name == name)

    @classmethod
    def read(cls, path: Path = MEASURED) -> "Experiment":
        return cls(convert(json.loads(path.read_text(encoding="utf-8")), list[Method]))

    def write(self, path: Path) -> None:
        """Write the methods to a JSON file, one a line."""
        lines = ",\n".join(json.dumps(asdict(method)) for method in self.methods)
        path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
