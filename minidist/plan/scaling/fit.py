"""Fit of a scaling law to measured runs, with its uncertainty.

The objective is that of Hoffmann et al. (2022, arXiv 2203.15556, appendix D.2): the Huber loss of the difference of
logarithms, log L(N, D) - log L, summed over the runs. It is quadratic up to ``delta`` and linear beyond, so that a bad
run counts, but not by its square. The law's sum of three terms is the exponential of a log-sum-exp,

    log L(N, D) = log(exp(e) + exp(a - alpha log N) + exp(b - beta log D)),  E = exp(e), A = exp(a), B = exp(b)

which keeps E, A and B positive. They minimize it by L-BFGS from a grid of 4,500 starts. Here the grid is over the two
exponents alone, because the rest is linear in E, A and B; from its best point on, a Levenberg-Marquardt method refines
all five. It goes on until nothing moves: Besiroglu et al. (2024, arXiv 2404.10102) found that the published constants
come from a minimization that stopped early.

The other way to the best size assumes no law: isoFLOP curves, "approach 2" of Hoffmann et al. (section 3.2). Several
sizes are trained at one budget. The loss over log N looks like a parabola near its minimum, and the minima of several
budgets lie on a power law.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from minidist.nn.random import generator
from minidist.plan.scaling.laws import FLOPS_PER_PARAMETER, ScalingLaw, Training, check

CONSTANTS = 5
DELTA = 1e-3  # of the Huber loss, in log loss: Hoffmann et al.
EXPONENTS = np.arange(0.05, 1.55, 0.05)  # the grid
ITERATIONS = 2000
LARGEST = 100.0  # largest logarithm of a best size: beyond, rounding alone makes a parabola of a straight line
LEAST_DAMPING = 1e-12  # with less, runs that do not determine five constants would leave a singular matrix
ON_A_LINE = 1e-6  # rounding moves logarithms on a power law by less than this, as a share of their length
PRECISION = 1e-9  # of the constants' logarithms and the exponents
BOUNDS = np.array([[-30.0] * 3 + [0.01] * 2, [30.0] * 3 + [10.0] * 2])  # of the same: a fit to noise would diverge


@dataclass(frozen=True)
class Fit:
    """A law fitted to runs, and the laws that resampled runs give.

    Attributes:
        runs: the measured runs.
        draws: one law for each bootstrap sample; the spread of any quantity over them is its uncertainty.
        seed: random seed of the samples.
    """

    law: ScalingLaw
    runs: tuple[Training, ...]
    draws: tuple[ScalingLaw, ...]
    seed: int

    @property
    def residuals(self) -> np.ndarray:
        """Residuals log(measured loss) - log(fitted loss), (runs,)."""
        return np.array([np.log(run.loss / self.law.loss(run.parameters, run.tokens)) for run in self.runs])

    def interval(self, of: Callable[[ScalingLaw], float], level: float = 0.9) -> tuple[float, float]:
        """Return the middle ``level`` of the draws' values of a quantity, such as ``lambda law: law.alpha``."""
        return _middle([of(law) for law in self.draws], level)

    def predicted(self, parameters: float, tokens: float, level: float = 0.9) -> tuple[float, float]:
        """Return the interval for the loss of one more run: the draws' loss, times the scatter around the law."""
        random = generator("scaling law", "prediction", self.seed)
        scatter = np.exp(random.choice(self.residuals, len(self.draws)))
        return _middle(scatter * [law.loss(parameters, tokens) for law in self.draws], level)


def fit(runs: Sequence[Training], name: str = "fitted", draws: int = 0, seed: int = 0, delta: float = DELTA) -> Fit:
    """Fit E, A, B, alpha and beta.

    Args:
        runs: runs of different parameters and tokens. If one is a power law of the other, the two terms cannot be
            separated; this is so if all runs have the same number of tokens per parameter.
        name: name of the law.
        draws: number of bootstrap samples, each of as many runs, drawn with replacement (Efron, 1979).
        seed: random seed of the samples.
        delta: log loss at which the Huber loss turns from quadratic to linear; at or below the noise of a run.

    Raises:
        ValueError: for fewer than 6 different runs, fewer than 3 different parameters or tokens, or such a power law;
            for losses that do not fall as parameters or tokens grow. A draw whose losses do not fall raises nothing:
            its law gets the smallest exponent.
    """
    check(delta=delta)
    measured = np.array([(run.parameters, run.tokens, run.loss) for run in runs]).reshape(-1, 3)
    check(parameters=measured[:, 0], tokens=measured[:, 1], losses=measured[:, 2])
    logs = np.log(measured)
    if lack := _lacks(logs):
        raise ValueError(lack)
    centre = logs[:, :2].mean(axis=0)  # terms are fitted where the runs are, not at N = D = 1
    best = _refined(logs, centre, _start(measured, centre), delta)
    if (best[3:] <= BOUNDS[0, 3:]).any():
        raise ValueError("a law needs losses that fall as parameters grow and as tokens grow: these do not")
    found = []
    for draw in range(draws):
        random = generator("scaling law", "bootstrap", seed, draw)
        while True:
            sample = logs[random.integers(len(logs), size=len(logs))]
            if not _lacks(sample):
                break
        found.append(_law(name, _refined(sample, centre, best, delta), centre))
    return Fit(_law(name, best, centre), tuple(runs), tuple(found), seed)


def _lacks(logs: np.ndarray) -> str:
    """Return what keeps these runs from determining the constants; "" if nothing does."""
    if (count := len(np.unique(logs, axis=0))) <= CONSTANTS:
        return f"a fit of {CONSTANTS} constants needs at least {CONSTANTS + 1} different runs, got {count}"
    if any(len(np.unique(column)) < 3 for column in logs[:, :2].T):
        return "a fit needs at least 3 different numbers of parameters, and of tokens, to determine its terms"
    long, short = np.linalg.svd(logs[:, :2] - logs[:, :2].mean(axis=0), compute_uv=False)
    if short < ON_A_LINE * long:  # log D = c + k log N: b - beta log D is a power law of N as well
        return (
            "a fit needs runs whose tokens do not follow from their parameters: these cannot tell its two terms apart"
        )
    return ""


def _start(measured: np.ndarray, centre: np.ndarray) -> np.ndarray:
    """Return the best point of the grid of exponents, with positive E, A and B by least squares on L / measured L."""
    losses = measured[:, 2]
    best, least = np.empty(0), np.inf
    for exponents in product(EXPONENTS, EXPONENTS):
        terms = np.exp(-np.array(exponents) * (np.log(measured[:, :2]) - centre))  # (runs, 2)
        columns = np.column_stack([np.ones(len(losses)), terms]) / losses[:, None]
        sizes, *_ = np.linalg.lstsq(columns, np.ones(len(losses)), rcond=None)
        sizes = np.maximum(sizes, 1e-3 * losses.min())  # so that all three have a logarithm
        error = np.abs(np.log(columns @ sizes)).sum()
        if error < least:
            best, least = np.array([*np.log(sizes), *exponents]), error
    return best


def _refined(logs: np.ndarray, centre: np.ndarray, start: np.ndarray, delta: float) -> np.ndarray:
    """Minimize the Huber loss from ``start`` by Levenberg-Marquardt: (e, a, b, alpha, beta), a and b at the centre.

    Each step solves the weighted least squares problem whose gradient here is that of the Huber loss, damped so that
    the loss never increases.
    """
    apart = logs[:, :2] - centre  # (runs, 2)

    def residuals(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return log L(N, D) - log L, (runs,), and its derivatives, (runs, 5)."""
        terms = np.exp(np.column_stack([np.full(len(apart), theta[0]), theta[1:3] - theta[3:] * apart]))  # (runs, 3)
        total = terms.sum(axis=1)
        shares = terms / total[:, None]
        return np.log(total) - logs[:, 2], np.hstack([shares, -shares[:, 1:] * apart])

    theta, damping = start, 1e-3
    error, slopes = residuals(theta)
    for _ in range(ITERATIONS):
        weights = np.minimum(1, delta / np.maximum(np.abs(error), 1e-300))
        gradient = slopes.T @ (weights * error)
        curvature = slopes.T @ (weights[:, None] * slopes)
        step = np.linalg.solve(curvature + damping * np.diag(curvature.diagonal() + 1e-12), -gradient)
        new_error, new_slopes = residuals(new := np.clip(theta + step, *BOUNDS))
        if _huber(new_error, delta) < _huber(error, delta):
            theta, error, slopes, damping = new, new_error, new_slopes, max(damping / 3, LEAST_DAMPING)
        else:
            damping *= 4
        if np.abs(step).max() < PRECISION:
            break
    return theta


def _huber(error: np.ndarray, delta: float) -> float:
    """Return the sum of the Huber loss: half the square up to delta, a straight line beyond."""
    size = np.abs(error)
    return float(np.where(size <= delta, size**2 / 2, delta * (size - delta / 2)).sum())


def _law(name: str, theta: np.ndarray, centre: np.ndarray) -> ScalingLaw:
    e, a, b, alpha, beta = map(float, theta)
    at_one = float(np.exp(a + alpha * centre[0])), float(np.exp(b + beta * centre[1]))
    return ScalingLaw(name, float(np.exp(e)), *at_one, alpha, beta, source="fitted")


def _middle(values, level: float) -> tuple[float, float]:
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, got {level}")
    if len(values) == 0:
        raise ValueError("an interval needs bootstrap samples: fit with draws=1000")
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


@dataclass(frozen=True)
class IsoFlop:
    """Parabola through the runs of one budget: loss = lowest + curvature (log N - log best)^2.

    Attributes:
        flops: the budget.
        parameters: parameters at the minimum. lowest: loss there.
        sizes: smallest and largest size that was trained.
    """

    flops: float
    parameters: float
    lowest: float
    curvature: float
    sizes: tuple[float, float]

    @property
    def tokens(self) -> float:
        return self.flops / FLOPS_PER_PARAMETER / self.parameters

    @property
    def is_inside(self) -> bool:
        """Whether the minimum is between the trained sizes; outside, it is an extrapolation."""
        return self.sizes[0] <= self.parameters <= self.sizes[1]

    def loss(self, parameters):
        """Return the parabola's loss at these sizes."""
        return self.lowest + self.curvature * np.log(parameters / self.parameters) ** 2


def parabola(flops: float, parameters: Sequence[float], losses: Sequence[float]) -> IsoFlop:
    """Fit the parabola of one budget, by least squares.

    Raises:
        ValueError: for fewer than 3 sizes, or losses without a minimum.
    """
    sizes, measured = np.asarray(parameters, float), np.asarray(losses, float)
    check(flops=flops, parameters=sizes, losses=measured)
    if len(np.unique(sizes)) < 3:
        raise ValueError(f"a parabola needs at least 3 sizes, got {len(np.unique(sizes))}")
    middle = np.log(sizes).mean()
    curvature, slope, constant = np.polyfit(np.log(sizes) - middle, measured, 2)
    if curvature <= 0 or abs(best := middle - slope / (2 * curvature)) > LARGEST:
        raise ValueError(f"the losses at {flops:.3g} FLOPs have no minimum over the size: train other sizes")
    lowest = constant - slope**2 / (4 * curvature)
    return IsoFlop(flops, float(np.exp(best)), float(lowest), float(curvature), (sizes.min(), sizes.max()))


@dataclass(frozen=True)
class PowerLaw:
    """Power law y = coefficient x^exponent."""

    coefficient: float
    exponent: float

    def __call__(self, x):
        return self.coefficient * x**self.exponent


def power_law(points: Mapping[float, float]) -> PowerLaw:
    """Fit a power law to points x -> y: a straight line through the logarithms, by least squares.

    Raises:
        ValueError: for fewer than 2 points.
    """
    if len(points) < 2:
        raise ValueError(f"a power law needs at least 2 points, got {len(points)}")
    x, y = np.array(list(points)), np.array(list(points.values()))
    check(x=x, y=y)
    exponent, constant = np.polyfit(np.log(x), np.log(y), 1)
    return PowerLaw(float(np.exp(constant)), float(exponent))
