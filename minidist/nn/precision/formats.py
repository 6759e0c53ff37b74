"""Floating-point numbers of 16 and 8 bits, made by hand from the bits of a float32.

A float32 is one sign bit, 8 bits of exponent and 23 of mantissa. The smaller formats have fewer of both:

    name       sign  exponent  mantissa   largest   smallest normal   smallest of all   from 1 to the next
    float32      1       8        23      3.4e38        1.2e-38            1.4e-45            1.2e-7
    bfloat16     1       8         7      3.4e38        1.2e-38            9.2e-41            0.0078
    float16      1       5        10       65504        6.1e-5             6.0e-8             0.00098
    e5m2         1       5         2       57344        6.1e-5             1.5e-5             0.25
    e4m3         1       4         3         448        0.0156             0.0020             0.125

The exponent buys range, the mantissa precision. bfloat16 (Kalamkar et al., "A Study of BFLOAT16 for Deep Learning
Training", 2019) is the upper half of a float32 and has its range; float16 (IEEE 754) is more precise and has a small
one; the two of 8 bits are those of Micikevicius et al., "FP8 Formats for Deep Learning" (2022).

NumPy knows none of them but float16, and products of it are slow. So a number of such a format is kept as its bits, an
unsigned integer, and computed with as the float32 of the same value. That is also what a GPU's matrix units do: the
product of two bfloat16 numbers is exact in float32, and the sum is taken there.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from minidist.backend import xp
from minidist.overrides import overridable

CHUNK = 1 << 15  # elements that a dozen passes go over while the cache holds them
INFINITY = 0x7F800000  # the bits of a float32 infinity; NaNs lie above


def drop_bits(integers, count: int):
    """Unsigned integers without their lowest bits, rounded to the nearest, and of two equally near to the even one.

    Half of the last place that stays is added, or one less if that place is even: then the sum carries into it just
    when rounding up is right. Of a float's bits, a full mantissa carries into the exponent, which is right as well.
    """
    result = (integers >> count) & xp.uint32(1)
    result += xp.uint32((1 << (count - 1)) - 1)
    result += integers
    result >>= count
    return result


@overridable
def bfloat16_bits(values):
    """The bits of the nearest bfloat16 numbers: the upper halves of the float32s, rounded.

    Args:
        values: float32, one axis.

    Returns:
        uint16, of the same length.
    """
    bits = values.view(xp.uint32)
    upper = drop_bits(bits & xp.uint32(0x7FFFFFFF), 16)
    upper[xp.isnan(values)] = 0x7FC0  # rounded like a number, a NaN may become infinity
    upper |= (bits >> 16) & xp.uint32(0x8000)
    return upper.astype(xp.uint16)


@dataclass(frozen=True)
class Format:
    """A floating-point format no wider than float32.

    Args:
        name: as the field calls it.
        exponent, mantissa: bits of each.
        infinite: whether the highest exponent is kept for infinity and NaN, as IEEE 754 has it. Otherwise it has
            numbers too, all but the very last code, which is NaN; what is too large becomes NaN then.
    """

    name: str
    exponent: int
    mantissa: int
    infinite: bool = True

    @property
    def bits(self) -> int:
        return 1 + self.exponent + self.mantissa

    @property
    def dtype(self):
        """Of what holds the bits: uint8 or uint16."""
        return xp.uint8 if self.bits == 8 else xp.uint16

    @property
    def bias(self) -> int:
        """What is added to an exponent to store it."""
        return (1 << (self.exponent - 1)) - 1

    @property
    def overflow(self) -> int:
        """The code, without sign, of what is too large: infinity, or NaN where there is none."""
        return ((1 << self.exponent) - 1) << self.mantissa if self.infinite else (1 << (self.bits - 1)) - 1

    @cached_property
    def largest(self) -> float:
        """The largest finite number."""
        return float(self.decode(xp.asarray([self.overflow - 1], self.dtype))[0])

    @cached_property
    def smallest(self) -> float:
        """The smallest number above 0, a subnormal one."""
        return float(self.decode(xp.asarray([1], self.dtype))[0])

    def encode(self, values):
        """The bits of the nearest numbers of this format; of two equally near the one whose last bit is 0.

        Args:
            values: a float32 array of any shape.

        Returns:
            An unsigned array of the same shape, C-contiguous.

        Raises:
            TypeError: for an array of another dtype.
        """
        if values.dtype != xp.float32:
            raise TypeError(f"{self.name} is made from float32 numbers, not from {values.dtype}: convert them first")
        result = xp.empty(values.shape, self.dtype)
        flat, into = xp.ascontiguousarray(values).reshape(-1), result.reshape(-1)
        encode = bfloat16_bits if self.bias == 127 else self._encode
        with np.errstate(invalid="ignore"):  # NaN is as good a number as any here
            for start in range(0, flat.size, CHUNK):
                into[start : start + CHUNK] = encode(flat[start : start + CHUNK])
        return result

    def _encode(self, values):
        """From a float32's bits to this format's, if its exponent is shorter."""
        bits = values.view(xp.uint32)
        magnitude = bits & xp.uint32(0x7FFFFFFF)
        lower = (127 - self.bias) << self.mantissa  # what a float32's exponent has more than this format's
        code = xp.maximum(drop_bits(magnitude, 23 - self.mantissa), lower) - xp.uint32(lower)
        code = xp.minimum(code, self.overflow)
        # Below the smallest normal number the last place no longer shrinks: it is that of ``smallest``. float32's own
        # addition rounds there, if a number is added that has its last place there.
        anchor = xp.float32(2.0 ** (24 - self.bias - self.mantissa))
        small = (magnitude.view(xp.float32) + anchor).view(xp.uint32)
        small -= anchor.view(xp.uint32)
        xp.copyto(code, small, where=magnitude < xp.uint32((128 - self.bias) << 23))
        code[magnitude > INFINITY] = self.overflow | (1 << (self.mantissa - 1))  # NaN
        code |= (bits >> 31) << (self.bits - 1)
        return code

    def decode(self, codes):
        """The float32 numbers of these bits: exact, since a float32 has room for all.

        Args:
            codes: an array of ``dtype``, of any shape.
        """
        spare = 23 - self.mantissa
        if self.bias == 127:  # sign, exponent and mantissa go to where a float32 has them
            wide = codes.astype(xp.uint32, order="C")
            wide <<= spare
            return wide.view(xp.float32)
        magnitude = (1 << (self.bits - 1)) - 1
        wide = codes.view(f"i{codes.itemsize}").astype(xp.int32, order="C")  # a negative number fills up with its sign
        wide <<= spare
        wide &= xp.int32((magnitude << spare) - (1 << 31))  # of the sign one bit is left
        numbers = wide.view(xp.float32)
        numbers *= xp.float32(2.0 ** (127 - self.bias))  # shifts the exponent, and makes subnormal numbers normal
        if (special := (codes & codes.dtype.type(magnitude)) >= self.overflow).any():
            wide[special] |= xp.int32(INFINITY)  # a mantissa that is not 0 makes it NaN
        return numbers

    def round(self, values):
        """The nearest numbers of this format, as float32: ``decode(encode(values))``. An array of its own."""
        return self.decode(self.encode(values))


BFLOAT16 = Format("bfloat16", exponent=8, mantissa=7)
FLOAT16 = Format("float16", exponent=5, mantissa=10)
E5M2 = Format("e5m2", exponent=5, mantissa=2)
E4M3 = Format("e4m3", exponent=4, mantissa=3, infinite=False)
FORMATS = {format.name: format for format in (BFLOAT16, FLOAT16, E5M2, E4M3)}


@overridable
def scale_to(format: Format, values, axes: tuple[int, ...]):
    """The power of two for which the greatest |value * scale| is within the format's range and near its end.

    Formats of 8 bits have so little range that each tensor needs its own scale: it is multiplied before the rounding
    and divided by after the product. A power of two does neither any harm. (Micikevicius et al., 2022, section 4; as
    NVIDIA's Transformer Engine does it with "current scaling".)

    Args:
        values: float32.
        axes: over which there is one scale; the others have one for each of their indices.

    Returns:
        float32, of as many axes as ``values``, of length 1 along ``axes``; 1 where all values are 0, one is infinite or
        NaN, or a float32 cannot hold the scale.
    """
    greatest = xp.abs(values).max(axis=axes, keepdims=True, initial=0)
    with np.errstate(divide="ignore", over="ignore"):
        room = xp.float32(format.largest) / greatest
    room = xp.where(xp.isfinite(room) & (room > 0), room, 1)
    _, exponent = xp.frexp(room)  # room is from 2^(exponent - 1) on
    return xp.ldexp(xp.float32(1), exponent - 1).astype(xp.float32)


def round_scaled(format: Format, values, axes: tuple[int, ...]):
    """``values`` rounded to a format with a scale over ``axes``: still float32, and of the size that they were."""
    scale = scale_to(format, values, axes)
    return format.round(values * scale) / scale
