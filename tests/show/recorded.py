"""Each demonstration, run once for all tests of a session, and what was seen of its runs on the way.

Where a demonstration trains again and again so that lectures have smooth curves, it trains less here.
"""

import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, partial

import numpy as np
import pytest

from minidist.show.demos import DEMONSTRATIONS, cluster, context_parallel, documents, failure, parameter_server
from minidist.show.demos.collectives import training
from minidist.show.demos.compress import curves, factors
from minidist.show.demos.compress import run as compress_run
from minidist.show.demos.documents import run as documents_run
from minidist.show.demos.shared import runs
from minidist.show.demos.shared.runs import WarmRanks
from minidist.show.demos.tensor_parallel import attention
from minidist.show.stage.animation import Animation
from minidist.show.stage.story import Story
from minidist.train.result import Run

RANKS = {"dp": 2, "tp": 2, "sp": 2}  # which have as many ranks as cores otherwise
KEPT = {  # whose results tests look at
    "cluster": [(cluster, "steps_of"), (cluster, "step_on")],
    "compress": [(compress_run.Recorded, "of"), (factors, "approximate")],
    "cp": [(context_parallel, "passes_of")],
    "failure": [(failure, "interrupted"), (failure, "record"), (failure, "moments_of")],
    "tp": [(attention, "whole"), (attention, "split")],
}


@dataclass(frozen=True)
class Recorded:
    """An animation, the training runs behind it, and the results of functions in KEPT, in order."""

    animation: Animation
    runs: list[tuple[str, Run]] = field(default_factory=list)  # with the name of the rank function
    results: dict[str, list] = field(default_factory=lambda: defaultdict(list))

    def trained(self, function: str = "", **layout) -> list[Run]:
        """The runs with this rank function whose layouts have these values."""
        return [
            run for name, run in self.runs
            if name == function and all(getattr(run.layout, key) == value for key, value in layout.items())
        ]  # fmt: skip


def keep(patch: pytest.MonkeyPatch, module, name: str, found: list, entry: Callable) -> None:
    """Append ``entry(result, *arguments)`` to a list for each call of a function, until ``patch`` is undone."""
    function = getattr(module, name)

    def keeping(*arguments, **options):
        result = function(*arguments, **options)
        found.append(entry(result, *arguments))
        return result

    patch.setattr(module, name, keeping)


def name_of(function: Callable | None) -> str:
    return getattr(function, "__name__", "") or (name_of(function.func) if isinstance(function, partial) else "")


def made_up_curves(warm: WarmRanks, seed: int) -> curves.Curves:
    """Return curves in place of 21 long runs: with feedback 0.1 above full gradients, without it 0.2."""
    full = np.linspace(5, 3, curves.STEPS) + np.arange(curves.SEEDS)[:, None] / 10  # (seeds, steps)
    without = {name: full + 0.2 for name in curves.METHODS}
    return curves.Curves(full, {name: full + 0.1 for name in without}, without, dict.fromkeys(without, 0.01))


def short_runs(patch: pytest.MonkeyPatch) -> None:
    """Each kind of run once, and none that is longer than what it shows needs."""
    patch.setattr(runs, "TRIES", 1)
    patch.setattr(training, "MODEL", replace(training.MODEL, layers=1, heads=2, width=16, global_batch=4))
    patch.setattr(training, "LONGER", 5)
    patch.setattr(curves, "curves_of", made_up_curves)
    patch.setattr(parameter_server, "SEEDS", 2)
    patch.setattr(documents, "SEEDS", 1)
    patch.setattr(documents_run, "STEPS", 40)


@cache
def recorded(name: str, ranks: int | None = None, size: int | None = None, seed: int = 0) -> Recorded:
    """A demonstration, with the size that lectures show unless another one is given."""
    found: list[tuple[str, Run]] = []
    results: dict[str, list] = defaultdict(list)
    with pytest.MonkeyPatch.context() as patch:
        short_runs(patch)
        keep(patch, WarmRanks, "train", found, lambda run, _, config, layout, f=None, *more: (name_of(f), run))
        for module, function in KEPT.get(name, ()):
            keep(patch, module, function, results[function], lambda result, *_: result)
        return Recorded(DEMONSTRATIONS[name](ranks or RANKS.get(name), size, seed), found, results)


def numbers(text: str) -> list[float]:
    """The numbers in a text."""
    return [float(found.replace(",", "")) for found in re.findall(r"[-+]?\d[\d,]*(?:\.\d+)?", text)]


def fact(story: Story, name: str) -> list[float]:
    """The numbers of a fact at the end; ``name`` is how it begins."""
    return numbers(next(text for fact, text in story.beats[-1].facts.items() if fact.startswith(name)))
