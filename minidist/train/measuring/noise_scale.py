"""The gradient noise scale: the batch size up to which more samples make a step better, measured while training.

McCandlish, Kaplan, Amodei and the OpenAI Dota Team, "An Empirical Model of Large-Batch Training" (2018, arXiv
1812.06162). The gradient of a batch of B samples is that of all data, G, and noise: its expected squared norm is
|G|^2 + tr(S) / B, S being the covariance of one sample's gradient. Two batch sizes tell the two terms apart (appendix
A.1), and their ratio

    B_simple = tr(S) / |G|^2

is the batch at which noise and gradient are equally large. It estimates the critical batch size: far below it, twice
the batch halves the steps; far above it, the steps stay the same (plan/batches.py). B_simple takes the loss as
equally curved in all directions and the step as SGD's, so it is right to the order of magnitude. Adam's critical batch
size is larger than SGD's (Zhang et al., 2019, arXiv 1907.04164).

Here the small batch is a micro-batch and the large one the full batch, even while the steps of a ramp are smaller. Both
estimates are noisy, and their ratio is biased; so sums over many steps are taken first, as the paper does with running
means. A measured step computes its gradients twice, and nothing else in the run changes.

It is measured on one rank. Every layout takes the same steps, to the bit, so every other layout would find the same.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite

from minidist.backend import xp
from minidist.nn.data import MicroBatch
from minidist.nn.layers import Module
from minidist.train.hooks import StepHook
from minidist.train.parallelize import forward_backward
from minidist.train.share import Share


@dataclass(frozen=True)
class NoiseScale:
    """Squared gradient norms at two batch sizes, summed over the measured steps."""

    small: int  # samples in the small batch
    large: int  # samples in the large batch
    small_square: float  # of the small batch's gradient, averaged over the micro-batches of a step
    large_square: float  # of the large batch's gradient
    steps: int = 1  # measured

    def __add__(self, other: "NoiseScale") -> "NoiseScale":
        return NoiseScale(
            self.small,
            self.large,
            self.small_square + other.small_square,
            self.large_square + other.large_square,
            self.steps + other.steps,
        )

    def as_dict(self) -> dict:
        """Return what ``--json`` writes. Infinite ``samples`` become None: JSON has no infinity."""
        samples = self.samples if isfinite(self.samples) else None
        return {"gradient_square": self.gradient_square, "noise": self.noise, "samples": samples}

    @property
    def gradient_square(self) -> float:
        """Unbiased estimate of |G|^2; may be below 0 where noise drowns it."""
        weighted = self.large * self.large_square - self.small * self.small_square
        return weighted / (self.large - self.small) / self.steps

    @property
    def noise(self) -> float:
        """Unbiased estimate of tr(S), S being the covariance of one sample's gradient."""
        return (self.small_square - self.large_square) / (1 / self.small - 1 / self.large) / self.steps

    @property
    def samples(self) -> float:
        """B_simple, in samples; infinite where the gradient drowns in noise."""
        return self.noise / self.gradient_square if self.gradient_square > 0 else float("inf")


class NoiseScales(StepHook):
    """Hook that measures the gradient noise scale before every ``every``-th step of a run."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.found: list[tuple[int, NoiseScale]] = []

    def begin_run(self, share: Share) -> None:
        self.share = share

    def begin_step(self, step: int, last: bool) -> None:
        if step % self.every == 0:
            model, config = self.share.model, self.share.config
            batch = self.share.batch(step, range(config.micro_batches))  # the full one, also while a ramp takes fewer
            self.found.append((step, measure(model.local, model.zero_grad, batch, config.micro_batch)))

    def end_run(self) -> dict:
        return {"noise": self.found}


def measure(model: Module, zero_grad: Callable[[], None], batch: Sequence[MicroBatch], samples: int) -> NoiseScale:
    """Measure at the current weights: the gradients of two or more micro-batches, each by itself, and their mean.

    The model is whole, on one rank. ``zero_grad`` clears its gradients, which afterwards are those of the last
    micro-batch. Each micro-batch has ``samples`` samples.
    """
    total: dict = {}
    squares = 0.0
    for micro_batch in batch:
        zero_grad()
        with without_hooks(model):
            forward_backward(model, micro_batch)
        found = {p.name: xp.asarray(p.grad, xp.float64) for p in model.parameters() if p.grad is not None}
        squares += sum(float((gradient**2).sum()) for gradient in found.values())
        total = {name: total.get(name, 0.0) + gradient for name, gradient in found.items()}
    count = len(batch)
    large = sum(float(((gradient / count) ** 2).sum()) for gradient in total.values())
    return NoiseScale(samples, samples * count, squares / count, large)


@contextmanager
def without_hooks(model: Module) -> Iterator[None]:
    """Context manager: gradient hooks are off inside. (Those of resilience/vote.py, say, must see only the steps.)"""
    hooks = {parameter: parameter.hooks for parameter in model.parameters()}
    for parameter in hooks:
        parameter.hooks = []
    try:
        yield
    finally:
        for parameter, kept in hooks.items():
            parameter.hooks = kept
