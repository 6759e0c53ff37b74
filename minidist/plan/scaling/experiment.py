"""A scaling experiment: runs at several budgets, their prediction for a larger one, and the runs there.

``MEASURED`` is the experiment of ``python benchmarks/scaling.py``, to read and to fit again. N counts all parameters,
those of the embeddings too, and a budget is C = 6 N D, as in Hoffmann et al. (2022). The matrix products of models this
small take a few percent more, for their attention; ``Run.flops`` is their counted number.
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
DRAWS, SEED = 1000, 0  # samples and random seed of the bootstrap
DELTA = 1e-2  # of the Huber loss: about the change of a run's log loss with another seed


@dataclass(frozen=True)
class Run:
    """One training run.

    Attributes:
        budget: intended FLOPs, 6 N D. The run has whole steps, so its own differ a little.
        width: width of the model.
        parameters: N. tokens: D, with repeated text counted again.
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
    """Runs of an experiment, and the laws fitted to them.

    Attributes:
        runs: runs that the law is fitted to. next_runs: runs at the larger budget that it then predicts.
        layers: layers of every model. text_tokens: tokens of the text that all models were trained on.
    """

    layers: int
    runs: tuple[Run, ...]
    next_runs: tuple[Run, ...]
    text_tokens: int

    @classmethod
    def read(cls, path: Path = MEASURED) -> "Experiment":
        return convert(json.loads(path.read_text(encoding="utf-8")), cls)

    def write(self, path: Path) -> None:
        """Write the experiment as JSON, with one run on a line."""
        parts = [f' "layers": {self.layers}', f' "text_tokens": {self.text_tokens}']
        for name in ("runs", "next_runs"):
            lines = ",\n".join(f"  {json.dumps(asdict(run))}" for run in getattr(self, name))
            parts.append(f' "{name}": [\n{lines}\n ]')
        path.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")

    @cached_property
    def fit(self) -> Fit:
        """Approach 3: the law fitted to the runs, with its bootstrap."""
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
        """Power law through the parabolas' best sizes over their budgets."""
        return power_law({curve.flops: curve.parameters for curve in self.curves})

    def backtest(self) -> "Experiment":
        """Return an experiment of the fitted runs alone, whose largest budget is the one to predict."""
        largest = max(run.budget for run in self.runs)
        before, last = (
            tuple(run for run in self.runs if (run.budget == largest) == is_last) for is_last in (False, True)
        )
        return replace(self, runs=before, next_runs=last)


def by_budget(runs: Iterable[Run]) -> dict[float, list[Run]]:
    """Group runs by budget; budgets, and the runs of each by size, are in ascending order."""
    found: dict[float, list[Run]] = {}
    for run in sorted(runs, key=lambda run: (run.budget, run.parameters)):
        found.setdefault(run.budget, []).append(run)
    return found
