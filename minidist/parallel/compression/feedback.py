"""Error feedback: what compression leaves out of a gradient is added to the next one.

Without it a method that is biased can stall, or go the wrong way, however small the steps: an element that
is never among the largest is never sent. With it everything is sent in the end (Seide et al., "1-Bit Stochastic
Gradient Descent", Interspeech 2014; Stich et al., "Sparsified SGD with Memory", arXiv 1809.07599, 2018; Karimireddy et
al., "Error Feedback Fixes SignSGD", arXiv 1901.09847, 2019).

The number to send, gradient + old residual, is a float64 sum and rounded once, as every sum is. From there on nothing
is lost: sent + residual is that number, in real arithmetic. Top-k sends elements as they are, so its residuals are
exact. Any other difference of floats may round where a small element is next to a large one. So if a message does not
consist of elements, gradient and old residual are first rounded to multiples of one small unit. Let b be a bound on
|gradient| + |old residual| of any element, times the square root of the number of elements: no method that is a
projection or a mean sends more than b. The unit is at most 2^-49 b and at least 2^-50 b, so sums and differences are
whole multiples below 2^53 of it: exact. That first rounding loses at most half a unit: for a million elements 2^-40 of
the largest, where a float32 loses 2^-25.
"""

from collections.abc import Callable
from math import frexp, sqrt

from minidist import ledger
from minidist.backend import xp
from minidist.nn.kernels import reduced
from minidist.overrides import overridable

DIGITS = 51  # bits of the largest multiple


@overridable
def feed_back(gradient, residual, send: Callable) -> tuple:
    """Send a gradient together with the residual of earlier ones.

    Args:
        gradient, residual: float64 of one shape.
        send: function that sends a float64 array and returns the array that the message decodes to.

    Returns:
        The array that was sent, and the next residual. Their sum is gradient + residual, which is rounded once.
    """
    corrected = gradient + residual
    sent = send(corrected)
    return sent, corrected - sent


class Residuals:
    """Residuals that this rank has not sent yet, float64 and flat, by parameter name: buckets may change, names do not.

    (torch's PowerSGD had them by bucket, and DistributedDataParallel makes its buckets anew after the first step:
    pytorch pull requests 48670 and 50981.)

    Args:
        on_grid: whether messages do not consist of elements, so that values are rounded to a grid first.
    """

    def __init__(self, on_grid: bool) -> None:
        self.on_grid = on_grid
        self.of: dict = {}

    def send(self, name: str, gradient, send: Callable) -> None:
        """Send a gradient (flat, float64) with its residual, and keep the new residual."""
        if name not in self.of:
            self.of[name] = ledger.enter("optimizer", xp.zeros(gradient.size))
        residual = self.of[name]
        if self.on_grid:
            unit = 2 * grid_unit(largest(gradient) + largest(residual), gradient.size)  # not below that of their sum
            gradient, residual = to_grid(gradient, unit), to_grid(residual, unit)
        _, left = feed_back(gradient, residual, send)
        self.of[name][:] = left


def largest(values) -> float:
    """Return the largest magnitude; 0 of no elements."""
    return float(reduced(xp.max, xp.abs(values))) if values.size else 0.0


def grid_unit(largest: float, size: int) -> float:
    """Return the unit for ``size`` elements up to this magnitude: a power of two, 2^-51 to 2^-50 of their bound."""
    _, exponent = frexp(largest * sqrt(size))  # the bound is below 2^exponent
    return 2.0 ** max(exponent - DIGITS, -1074)  # 2^-1074 is the smallest float, where all differences are exact


def to_grid(values, unit: float):
    """Round values to the nearest multiples of a unit, a power of two."""
    _, exponent = frexp(unit)
    return xp.ldexp(xp.rint(xp.ldexp(values, 1 - exponent)), exponent - 1)
