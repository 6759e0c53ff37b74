"""The global gradient norm, with the same bits for every order and every sharding of the gradients.

The last bits of a float64 sum of squares depend on its order, and one different bit in the norm changes every weight
that it scales. Integers add in any order. So each square is rounded to a multiple of one small unit, and the multiples
are added as integers:

    largest   the largest |g| of all            exact: a maximum does not depend on the order
    count     the number of elements            an integer
    total     the sum of round(g^2 / unit)      an integer below 2^62; the unit is a power of four
    norm      sqrt(total * unit)

The unit keeps ``count`` times the largest square below 2^62: with a million elements it is about 2^-40 of the largest
square. Elements three million times smaller than the largest then count as zero. For gradients of ordinary spread the
norm agrees with that of a float64 sum to nine digits or more.

Ranks with different gradients join ``largest``, ``count`` and ``total`` by an all-reduce of one number each. PyTorch's
``clip_grad_norm_`` on a sharded model (FSDP) does the same with floats, so its last bits depend on the sharding.
"""

from collections.abc import Callable, Iterable
from math import frexp, isfinite, sqrt
from operator import attrgetter

from minidist import trace
from minidist.backend import cache_blocks, xp
from minidist.nn.kernels import fused, joined, reduced, together
from minidist.nn.layers import Parameter
from minidist.nn.loss import identity

CHUNK = 1 << 16  # elements, few enough to stay in the cache for a few passes


class NotFinite(FloatingPointError):
    """A gradient is NaN or infinite. Every process that takes part in the norm raises it.

    Attributes:
        found: names the parameter; "" in a process whose own gradients are finite.
    """

    def __init__(self, found: str) -> None:
        super().__init__(found or "a gradient in another process is not finite")
        self.found = found


def clip_grad_norm(
    parameters: Iterable[Parameter],
    max_norm: float,
    all_max: Callable = identity,
    all_sum: Callable = identity,
    owns: Callable[[Parameter], bool] = lambda parameter: True,
) -> float:
    """Scale all gradients by one factor so that their global norm is at most ``max_norm``.

    Args:
        parameters: parameters to clip; those without a gradient are skipped.
        max_norm: the bound; ``math.inf`` only measures the norm.
        all_max, all_sum: see ``grad_norm``.
        owns: whether this process counts a parameter in the norm. If several processes hold the same gradient, exactly
            one of them must count it.

    Returns:
        The norm before clipping.

    Raises:
        ValueError: if ``max_norm`` is not positive.
        NotFinite: see ``grad_norm``.
    """
    parameters = [parameter for parameter in parameters if parameter.grad is not None]
    size = sum(map(attrgetter("size"), parameters))
    trace.kernel("clip", 0, 3 * 4 * size)  # read for the norm; read, scaled and written
    norm = grad_norm(filter(owns, parameters), all_max, all_sum)
    factor = clip_factor(norm, max_norm)
    if factor < 1:
        with together():
            for parameter in parameters:
                _scale(factor, parameter.grad)
    return norm


@fused("T factor", "T gradient", "gradient *= factor")
def _scale(factor, gradient) -> None:
    gradient *= factor


def grad_norm(parameters: Iterable[Parameter], all_max: Callable = identity, all_sum: Callable = identity) -> float:
    """Return the square root of the sum of the squares of all gradients.

    Args:
        parameters: each gradient, or part of one, in exactly one process; those without a gradient are skipped.
        all_max, all_sum: functions that join a float, or an integer below 2^62, with those of the processes that have
            the other gradients. A process with all gradients needs neither.

    Raises:
        NotFinite: if any gradient is not finite; all of these processes raise it.
    """
    parameters = [parameter for parameter in parameters if parameter.grad is not None]
    gradients = joined([parameter.grad for parameter in parameters if parameter.size])
    magnitudes = [largest_magnitude(gradient) for gradient in gradients]
    largest = all_max(float(xp.stack(magnitudes).max()) if magnitudes else 0.0)  # (Python's max may skip a NaN)
    if not isfinite(largest):
        raise NotFinite(_first_not_finite(parameters))
    count = int(all_sum(sum(map(attrgetter("size"), parameters))))
    if largest == 0:
        return 0.0
    scale = grid_scale(largest, count)
    squares = [squares_on_grid(gradient, scale) for gradient in gradients]
    total = int(all_sum(int(sum(squares))))
    return sqrt(total) / scale


def largest_magnitude(gradient):
    """Return the largest |g| of a gradient that is not empty, on its device; NaN if any element is NaN."""
    return xp.maximum(reduced(xp.max, gradient), -reduced(xp.min, gradient))


def grid_scale(largest: float, count: int) -> float:
    """Return the power of two that scales gradients so that ``count`` squares, rounded to integers, add to below 2^62.

    Each scaled square is below 4^bits, so ``count`` of them are below 2^62.
    """
    bits = (62 - count.bit_length()) // 2
    _, exponent = frexp(largest)  # largest < 2^exponent
    return 2.0 ** min(bits - exponent, 1000)  # within float64's range: gradients may be float64, and tiny


def squares_on_grid(gradient, scale: float):
    """Return the sum of ``round((scale * g)^2)``, an int64 on the gradient's device; 0 without elements.

    A float32 has 24 bits, so its square is exact in float64.
    """
    flat, total = gradient.reshape(-1), 0
    for block in cache_blocks(flat.size, CHUNK):
        total = total + reduced(xp.sum, _squares_on_grid(flat[block], scale))
    return total


@fused(
    "T element, float64 scale", "int64 multiple", "double scaled = element * scale; multiple = rint(scaled * scaled);"
)
def _squares_on_grid(elements, scale):
    squares = elements.astype(xp.float64)
    squares *= scale
    squares *= squares
    xp.rint(squares, out=squares)
    return squares.astype(xp.int64)


def clip_factor(norm: float, max_norm: float) -> float:
    """Return the factor for gradients of this norm: ``max_norm / (norm + 1e-6)``, but at most 1.

    Raises:
        ValueError: if ``max_norm`` is not positive.
    """
    if not max_norm > 0:
        raise ValueError(f"max_norm must be positive, not {max_norm}: math.inf turns clipping off")
    return min(1.0, max_norm / (norm + 1e-6))


def _first_not_finite(parameters: list[Parameter]) -> str:
    """Describe the first gradient of this process that is not finite; "" if all are finite."""
    for parameter in parameters:
        bad = parameter.size - int(xp.isfinite(parameter.grad).sum())
        if bad:
            return (
                f"the gradient of {parameter.name or 'an unnamed parameter'} is not finite: {bad} of its "
                f"{parameter.size} elements are NaN or infinite. A lower learning rate or a longer warmup may help"
            )
    return ""
