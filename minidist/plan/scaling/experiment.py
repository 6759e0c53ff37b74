"""A scaling experiment: runs at several budgets, what they predict for a larger one, and what came there.

``MEASURED`` is the one of ``python benchmarks/scaling.py``, to read and to fit again. N counts all parameters, those of
the embeddings too, and a budget is C = 6 N D, as in Hoffmann et al. (2022). The matrix products of models this small
take a few percent more, for their attention; ``Run.flops`` has them counted.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

from msgspec import convert

from minidist.plan.scaling.fit import Fit, IsoFlop, PowerLaw, fit, parabola, power_law
from minidist.plan.scaling.laws import Training

MEASURED = Path(__file__).with_name("experiment.json")
DRAWS, SEED = 1000, 0  # of the bootstrap
DELTA = 1e-2  # of the Huber loss: about what the loss of a run moves, in logarithm, with another seed


@dataclass(frozen=True)
class Run:
    """One training run.

    Attributes:
        budget: FLOPs that it was meant to take, 6 N D; tokens come in whole steps.
        width: width of the model.
        parameters: N. tokens: D, text seen again counted again.
        flops: FLOPs of the matrix products, as counted in forward and backward.
        loss: loss on held-out text, nats per token.
    """

    budget: float
    width: int
    parameters: int
    tokens: int
    flops: int
    loss: float

    @property
    def training(self) -> Training:
        return Training(self.parameters, self.tokens, self.loss)


@dataclass(frozen=True)
class Experiment:
    """Runs, and what follows from them.

    Attributes:
        runs: runs that the law is fitted to. next_runs: runs at the larger budget that it then predicts.
        layers: layers of every model. text_tokens: tokens of the text that all were trained on.
    """

    layers: int
    runs: tuple[Run, ...]
    next_runs: tuple[Run, ...]
    text_tokens: int

    @classmethod
    def read(cls, path: Path = MEASURED) -> "Experiment":
        return convert(json.loads(path.read_text(encoding="utf-8")), cls)

    def write(self, path: Path) -> None:
        """One run a line."""
        parts = [f' "layers": {self.layers}', f' "text_tokens": {self.text_tokens}']
        for name in ("runs", "next_runs"):
            lines = ",\n".join(f"  {json.dumps(asdict(run))}" for run in getattr(self, name))
            parts.append(f' "{name}": [\n{lines}\n ]')
        path.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")

    @cached_property
    def fit(self) -> Fit:
        """Approach 3: the law of the runs, with its bootstrap."""
        return fit([run.training for run in self.runs], "minidist", DRAWS, SEED, DELTA)

    @cached_property
    def curves(self) -> tuple[IsoFlop, ...]:
        """Approach 2: the parabola of each budget, smallest first."""
        return tuple(
            parabola(flops, [run.parameters for run in runs], [run.loss for run in runs])
            for flops, runs in by_budget(self.runs).items()
        )

    @cached_property
    def best_size(self) -> PowerLaw:
        """The parabolas' best sizes over their budgets."""
        return power_law({curve.flops: curve.parameters for curve in self.curves})

    def backtest(self) -> "Experiment":
        """The fitted runs alone, the largest budget taken as the next: what a law without it would have predicted."""
        largest = max(run.budget for run in self.runs)
        before, last = (
            tuple(run for run in self.runs if (run.budget == largest) == is_last) for is_last in (False, True)
        )
        return replace(self, runs=before, next_runs=last)


def by_budget(runs: Iterable[Run]) -> dict[float, list[Run]]:
    """Runs by their budgets, and within by their sizes, smallest first."""
    found: dict[float, list[Run]] = {}
    for run in sorted(runs, key=lambda run: (run.budget, run.parameters)):
        found.setdefault(run.budget, []).append(run)
    return found
