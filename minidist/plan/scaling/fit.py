"""A scaling law fitted to measured runs, and how sure it is.

The objective is that of Hoffmann et al. (2022, arXiv 2203.15556, appendix D.2): the Huber loss of the difference of
logarithms, log L(N, D) - log L, summed over the runs. It is quadratic up to ``delta`` and linear beyond, so that a bad
run counts, but not by its square. Their sum of three terms is the exponential of a log-sum-exp,

    log L(N, D) = log(exp(e) + exp(a - alpha log N) + exp(b - beta log D)),  E = exp(e), A = exp(a), B = exp(b)

which keeps E, A and B positive. They minimize it by L-BFGS from a grid of 4,500 starts. Here the grid is over the two
exponents alone, because the rest is linear in E, A and B; from its best point on, a Levenberg-Marquardt method refines
all five. It goes on until nothing moves: one that stops early is what Besiroglu et al. (2024, arXiv 2404.10102) found
behind the published constants.

The other way to the best size assumes no law: isoFLOP curves, "approach 2" of Hoffmann et al. (section 3.2). At one
budget, several sizes; the loss over log N looks like a parabola near its minimum, and the minima of several budgets lie
on a power law.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from minidist.nn.random import generator
from minidist.plan.scaling.laws import FLOPS_PER_PARAMETER, ScalingLaw, Training, check

CONSTANTS = 5
DELTA = 1e-3  # of the Huber loss, in log loss: Hoffmann et al.
EXPONENTS = np.arange(0.05, 1.55, 0.05)  # of the grid
ITERATIONS = 2000
LARGEST = 100.0  # logarithm of a size: beyond, a straight line is a parabola by rounding alone
LEAST_DAMPING = 1e-12  # with less, runs that determine no five constants would leave a singular matrix
ON_A_LINE = 1e-6  # how far, as a share of their length, logarithms that a power law gave are from it by rounding
PRECISION = 1e-9  # of the constants' logarithms and the exponents
BOUNDS = np.array([[-30.0] * 3 + [0.01] * 2, [30.0] * 3 + [10.0] * 2])  # of those: a fit of noise has no end


@dataclass(frozen=True)
class Fit:
    """A law fitted to runs, and the laws that resampled runs give.

    Attributes:
        runs: the measured runs.
        draws: one law for each bootstrap sample; the spread of what follows from them is its uncertainty.
        seed: random seed of the samples.
    """

    law: ScalingLaw
    runs: tuple[Training, ...]
    draws: tuple[ScalingLaw, ...]
    seed: int

    @property
    def residuals(self) -> np.ndarray:
        """log measured loss - log fitted loss, (runs,)."""
        return np.array([np.log(run.loss / self.law.loss(run.parameters, run.tokens)) for run in self.runs])

    def interval(self, of: Callable[[ScalingLaw], float], level: float = 0.9) -> tuple[float, float]:
        """The interval of the middle ``level`` of the draws for a quantity, such as ``lambda law: law.alpha``."""
        return _middle([of(law) for law in self.draws], level)

    def predicted(self, parameters: float, tokens: float, level: float = 0.9) -> tuple[float, float]:
        """The interval for the loss of one more run: the draws' loss, times the scatter of a run around the law."""
        random = generator("scaling law", "prediction", self.seed)
        scatter = np.exp(random.choice(self.residuals, len(self.draws)))
        return _middle(scatter * [law.loss(parameters, tokens) for law in self.draws], level)


def fit(runs: Sequence[Training], name: str = "fitted", draws: int = 0, seed: int = 0, delta: float = DELTA) -> Fit:
    """Fit E, A, B, alpha and beta.

    Args:
        runs: runs of different parameters and tokens; if one is a power law of the other, the two terms cannot be told
            apart, as where all runs have the same number of tokens per parameter.
        draws: bootstrap samples: as many runs, drawn with replacement (Efron, 1979); 0 for none.
        delta: where the Huber loss turns from quadratic to linear, in log loss; at or below the noise of a run.

    Raises:
        ValueError: for fewer than 6 different runs, fewer than 3 different parameters or tokens, or such a power law;
            for losses that do not fall as parameters or tokens grow. Those of a draw may not: its law has the smallest
            exponent then.
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
    """What keeps these runs from determining the constants; "" if nothing does."""
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
    """The best point of the grid of exponents, with non-negative E, A and B by least squares on L / measured L."""
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
    """Levenberg-Marquardt on the Huber loss from ``start``: (e, a, b, alpha, beta), with a and b at the centre.

    Each step solves the least squares problem whose weights give the Huber loss its slope here, damped so that it
    never goes up.
    """
    apart = logs[:, :2] - centre  # (runs, 2)

    def residuals(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """log L(N, D) - log L, (runs,), and its derivatives, (runs, 5)."""
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
    """Half the square up to delta, a straight line beyond; summed."""
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
    """The parabola through the runs of one budget: loss = lowest + curvature (log N - log best)^2.

    Attributes:
        flops: the budget.
        parameters: parameters at the minimum. lowest: its loss.
        sizes: the smallest and the largest that were trained.
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
        """Whether the minimum is among the sizes that were trained; outside it is a guess."""
        return self.sizes[0] <= self.parameters <= self.sizes[1]

    def loss(self, parameters):
        """The parabola at these sizes."""
        return self.lowest + self.curvature * np.log(parameters / self.parameters) ** 2


def parabola(flops: float, parameters: Sequence[float], losses: Sequence[float]) -> IsoFlop:
    """The parabola of one budget, by least squares.

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
    """y = coefficient x^exponent."""

    coefficient: float
    exponent: float

    def __call__(self, x):
        return self.coefficient * x**self.exponent


def power_law(points: Mapping[float, float]) -> PowerLaw:
    """The straight line through the logarithms of y by x, by least squares.

    Raises:
        ValueError: for fewer than 2 points.
    """
    if len(points) < 2:
        raise ValueError(f"a power law needs at least 2 points, got {len(points)}")
    x, y = np.array(list(points)), np.array(list(points.values()))
    check(x=x, y=y)
    exponent, constant = np.polyfit(np.log(x), np.log(y), 1)
    return PowerLaw(float(np.exp(constant)), float(exponent))
