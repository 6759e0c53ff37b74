"""Fewer bits for each element, rounded up or down by chance, so that the mean is right.

Rounding to nearest loses an element below half a unit in every step. By chance it counts as a whole unit now and then,
just as often as its size demands: the gradient stays unbiased and only gets noisier (Alistarh et al., "QSGD:
Communication-Efficient SGD via Gradient Quantization and Encoding", arXiv 1610.02132, 2017). So nothing needs feeding
back. Ranks round by chances of their own; if all rounded alike, their errors would add up instead of averaging out.
"""

import numpy as np

from minidist.backend import from_host, xp
from minidist.nn.precision.formats import BFLOAT16
from minidist.overrides import overridable
from minidist.parallel.compression.feedback import largest
from minidist.parallel.compression.method import Gathered

STEPS = 127  # of an int8 on either side of 0


@overridable
def stochastic_round(values, unit, rng: np.random.Generator):
    """Whole multiples of a unit: the one below or the one above, by chance, so that the mean is the value.

    Args:
        values: float64.
        unit: float, or one for each value; above 0.
        rng: gives one uniform number for each value, in C order.
    """
    multiples = values / unit
    below = xp.floor(multiples)
    up = from_host(rng.random(values.shape)) < multiples - below
    return (below + up) * unit


class StochasticBFloat16(Gathered):
    """bfloat16: the unit of each element is the distance of its neighbours in the format, 2^-7 of its power of two."""

    feeds_back = False

    def why_it_differs(self, full_rank: int) -> str:
        return f"compress={self.name} rounds gradients to 8 significant bits, up or down by chance"

    def message_bytes(self, size: int, itemsize: int) -> int:
        return 2 * size

    def encode(self, values, dtype, rng: np.random.Generator) -> list:
        _, exponent = xp.frexp(values)  # each magnitude is from 2^(exponent - 1) to below 2^exponent
        unit = xp.ldexp(1.0, xp.maximum(exponent - 8, -133))  # 2^-133 is the smallest bfloat16 above 0
        return [BFLOAT16.encode(stochastic_round(values, unit, rng).astype(xp.float32))]

    def decode(self, message, size: int, dtype):
        return BFLOAT16.decode(message.view(xp.uint16)).astype(xp.float64)


class Int8(Gathered):
    """Multiples of one unit from -127 to 127; the unit goes first, as a float32.

    QSGD takes the norm of all elements for the largest multiple, which suits its code for many zeros. With the largest
    element instead (as in Wen et al., "TernGrad", arXiv 1705.07878, 2017) the unit is smaller, and so is the noise.
    """

    feeds_back = False

    def why_it_differs(self, full_rank: int) -> str:
        return f"compress={self.name} rounds gradients to multiples of a 127th of the largest, up or down by chance"

    def message_bytes(self, size: int, itemsize: int) -> int:
        return 4 + size

    def encode(self, values, dtype, rng: np.random.Generator) -> list:
        unit = int8_unit(largest(values))
        multiples = stochastic_round(values / float(unit), 1.0, rng)
        return [xp.asarray([unit], xp.float32), multiples.astype(xp.int8)]

    def decode(self, message, size: int, dtype):
        unit = message[:4].view(xp.float32).astype(xp.float64)  # (1,)
        return message[4:].view(xp.int8) * unit


def int8_unit(largest: float) -> np.float32:
    """The smallest float32 of which 127 reach the largest value: with a smaller one that might round up to 128."""
    if largest == 0:
        return np.float32(1)
    unit = np.float32(largest / STEPS)
    return np.nextafter(unit, np.float32(np.inf)) if float(unit) * STEPS < largest else unit  # exact: 24 + 7 bits
