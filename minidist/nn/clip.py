"""The global gradient norm, with the same bits in whatever order and in whatever shards the gradients lie.

A float64 sum of squares differs in its last bits from one order to another, and a norm that differs in one bit changes
every weight that it scales. Integers add in any order. So each square is rounded to a multiple of one small unit, the
same for all, and the multiples are added as integers:

    largest   the greatest |g| of all                       exact, and a maximum is free of order
    count     how many elements there are                   an integer
    total     the sum of round(g^2 / unit)                  an integer below 2^62, unit being a power of four
    norm      sqrt(total * unit)

The unit is chosen so that ``count`` times the greatest square stays below 2^62: with a million elements, about 2^-40 of
the greatest square. Elements a million times smaller than the greatest then count as nothing. On gradients of ordinary
spread the norm agrees with a float64 sum's to nine digits and more.

Ranks that each hold some of the gradients join ``largest``, ``count`` and ``total`` with an all-reduce of one number
each. PyTorch's ``clip_grad_norm_`` on a sharded model (FSDP) does the same with floats, and its last bits depend on the
sharding.
"""

from collections.abc import Callable, Iterable
from math import frexp, isfinite, sqrt

import numpy as np

from minidist.backend import xp
from minidist.nn.layers import Parameter
from minidist.nn.loss import identity

CHUNK = 1 << 16  # elements that a few passes go over while the cache holds them


def clip_grad_norm(
    parameters: Iterable[Parameter],
    max_norm: float,
    all_max: Callable = identity,
    all_sum: Callable = identity,
    owns: Callable[[Parameter], bool] = lambda parameter: True,
) -> float:
    """Scale all gradients by one factor so that their global norm is at most ``max_norm``.

    Args:
        parameters: those without a gradient are passed over.
        max_norm: ``math.inf`` to measure the norm only.
        all_max, all_sum: as for ``grad_norm``.
        owns: whether a parameter enters the norm in this process. Where several hold the same gradient, it must
            in one of them alone.

    Returns:
        The norm before clipping.

    Raises:
        ValueError: if ``max_norm`` is not positive.
        FloatingPointError: if a gradient is not finite, naming its parameter.
    """
    parameters = list(parameters)
    norm = grad_norm(filter(owns, parameters), all_max, all_sum)
    scale_gradients(parameters, clip_factor(norm, max_norm))
    return norm


def grad_norm(parameters: Iterable[Parameter], all_max: Callable = identity, all_sum: Callable = identity) -> float:
    """The square root of the sum of the squares of all gradients.

    Args:
        parameters: each gradient, or each part of one, in one process only; those without one are passed over.
        all_max, all_sum: join a float, or an integer, with those of the processes that hold the other gradients. The
            integers stay below 2^62. Nothing is left to join where all gradients are here.

    Raises:
        FloatingPointError: if a gradient is not finite, naming its parameter.
    """
    parameters = [parameter for parameter in parameters if parameter.grad is not None]
    magnitudes = [largest_magnitude(parameter.grad) for parameter in parameters]
    largest = all_max(float(np.max(magnitudes, initial=0.0)))  # NumPy's: Python's max may pass over a NaN
    if not isfinite(largest):
        raise FloatingPointError(_not_finite(parameters))
    count = int(all_sum(sum(parameter.size for parameter in parameters)))
    if largest == 0:
        return 0.0
    scale = grid_scale(largest, count)
    total = int(all_sum(sum(squares_on_grid(parameter.grad, scale) for parameter in parameters)))
    return sqrt(total) / scale


def largest_magnitude(gradient) -> float:
    """The greatest |g|; NaN if any is NaN."""
    return max(float(gradient.max()), -float(gradient.min())) if gradient.size else 0.0


def grid_scale(largest: float, count: int) -> float:
    """The power of two by which gradients are scaled so that ``count`` squares, rounded to integers, stay below 2^62.

    Each scaled square is below 4^bits, and ``count`` of them are below 2^62.
    """
    bits = (62 - count.bit_length()) // 2
    _, exponent = frexp(largest)  # largest < 2^exponent
    return 2.0 ** min(bits - exponent, 1000)  # what float64 can hold: the gradients may be float64, and tiny


def squares_on_grid(gradient, scale: float) -> int:
    """The sum of ``round((scale * g)^2)``. A float32 has 24 bits, so that its square is exact in float64."""
    flat = gradient.reshape(-1)
    total = 0
    for start in range(0, flat.size, CHUNK):
        squares = flat[start : start + CHUNK].astype(xp.float64)
        squares *= scale
        squares *= squares
        xp.rint(squares, out=squares)
        total += int(squares.astype(xp.int64).sum())
    return total


def clip_factor(norm: float, max_norm: float) -> float:
    """What to multiply gradients of this norm by: 1 if the norm is within bounds (``max_norm / (norm + 1e-6)``).

    Raises:
        ValueError: if ``max_norm`` is not positive.
    """
    if not max_norm > 0:
        raise ValueError(f"max_norm must be positive, not {max_norm}: math.inf turns clipping off")
    return min(1.0, max_norm / (norm + 1e-6))


def scale_gradients(parameters: Iterable[Parameter], factor: float) -> None:
    """Multiply each gradient by ``factor``, in place."""
    if factor == 1:
        return
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad *= factor


def _not_finite(parameters: list[Parameter]) -> str:
    for parameter in parameters:
        bad = parameter.size - int(xp.isfinite(parameter.grad).sum())
        if bad:
            return (
                f"the gradient of {parameter.name or 'an unnamed parameter'} is not finite: {bad} of its "
                f"{parameter.size} elements are NaN or infinite. A lower learning rate or a longer warmup may help"
            )
    return "a gradient that another process holds is not finite; the error there names the parameter"
