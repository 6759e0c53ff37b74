"""Floating-point numbers of 16 and 8 bits, made by hand from the bits of a float32.

A float32 is one sign bit, 8 bits of exponent and 23 of mantissa. The smaller formats have fewer of both:

    name       sign  exponent  mantissa   largest   smallest normal   smallest          from 1 to the next
    float32      1       8        23      3.4e38        1.2e-38            1.4e-45            1.2e-7
    bfloat16     1       8         7      3.4e38        1.2e-38            9.2e-41            0.0078
    float16      1       5        10       65504        6.1e-5             6.0e-8             0.00098
    e5m2         1       5         2       57344        6.1e-5             1.5e-5             0.25
    e4m3         1       4         3         448        0.0156             0.0020             0.125

Exponent bits give range, mantissa bits precision. bfloat16 (Kalamkar et al., "A Study of BFLOAT16 for Deep Learning
Training", 2019) is the upper half of a float32 and has its range; float16 (IEEE 754) is more precise but has a smaller
range; the two 8-bit formats are those of Micikevicius et al., "FP8 Formats for Deep Learning" (2022).

NumPy has none of them except float16, whose products are slow. So a number in such a format is stored as its bits, in
an unsigned integer, and NumPy computes with the float32 of the same value. On a GPU, products take the bits themselves:
tensor cores multiply them exactly, and add in float32 (nn/kernels.py).
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from minidist.backend import cache_blocks, on_host, xp
from minidist.nn.kernels import fused
from minidist.overrides import overridable

CHUNK = 1 << 15  # elements, few enough to stay in the cache for a dozen passes
INFINITY = 0x7F800000  # the bits of a float32 infinity; those of NaNs are larger


def drop_bits(integers, count: int):
    """Drop the lowest ``count`` bits of unsigned integers, rounding to nearest, ties to even.

    Adding half of the last place that stays, or one less if that place is even, carries into it exactly when rounding
    up is right. In a float's bits a full mantissa carries into the exponent, which is right as well.
    """
    result = integers >> count
    result &= xp.uint32(1)
    result += xp.uint32((1 << (count - 1)) - 1)
    result += integers
    result >>= count
    return result


BFLOAT16_IN_C = """
__device__ unsigned short nearest_bfloat16(float value) {
    unsigned int bits = __float_as_uint(value), magnitude = bits & 0x7fffffff, sign = (bits >> 16) & 0x8000;
    return sign | (magnitude > 0x7f800000 ? 0x7fc0 : (magnitude + 0x7fff + ((magnitude >> 16) & 1)) >> 16);
}
"""


@overridable
@fused("float32 value", "uint16 code", "code = nearest_bfloat16(value)", BFLOAT16_IN_C)
def bfloat16_bits(values):
    """Return the bits of the nearest bfloat16 numbers: the upper halves of the float32s, rounded.

    Args:
        values: float32, one axis.

    Returns:
        uint16 of the same length.
    """
    bits = values.view(xp.uint32)
    upper = drop_bits(bits, 16).astype(xp.uint16)  # a carry reaches infinity at most, and no sign changes
    nan = xp.isnan(values)
    if nan.any():  # rounding its bits might turn a NaN into a number
        upper[nan] = (bits[nan] >> 16) & xp.uint32(0x8000) | xp.uint32(0x7FC0)
    return upper


@dataclass(frozen=True)
class Format:
    """A floating-point format no wider than float32.

    Args:
        name: the usual name of the format.
        exponent, mantissa: bits of each.
        infinite: whether the highest exponent is reserved for infinity and NaN, as in IEEE 754. Otherwise it also has
            numbers, except for the very last code, which is NaN; values too large for the format become NaN.
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
        """The dtype that holds the bits: uint8 or uint16."""
        return xp.uint8 if self.bits == 8 else xp.uint16

    @cached_property
    def bias(self) -> int:
        """The stored exponent minus the true exponent."""
        return (1 << (self.exponent - 1)) - 1

    @property
    def overflow(self) -> int:
        """The code, without sign, of values that are too large: infinity, or NaN if there is no infinity."""
        return ((1 << self.exponent) - 1) << self.mantissa if self.infinite else (1 << (self.bits - 1)) - 1

    @cached_property
    def largest(self) -> float:
        """The largest finite number."""
        return float(self.decode(xp.asarray([self.overflow - 1], self.dtype))[0])

    @cached_property
    def smallest(self) -> float:
        """The smallest number above 0, which is subnormal."""
        return float(self.decode(xp.asarray([1], self.dtype))[0])

    def encode(self, values):
        """Return the bits of the nearest numbers of this format, ties to even.

        Args:
            values: a float32 array of any shape.

        Returns:
            An unsigned array of the same shape, C-contiguous.

        Raises:
            TypeError: for an array of another dtype.
        """
        if values.dtype != xp.float32:
            raise TypeError(f"{self.name} needs float32 values, but got {values.dtype}: convert them first")
        flat = values.reshape(-1)
        if values.size <= CHUNK or not on_host(values):
            return self._encode(flat).astype(self.dtype, copy=False).reshape(values.shape)
        result = xp.empty(values.shape, self.dtype)
        for block in cache_blocks(flat.size, CHUNK):
            result.reshape(-1)[block] = self._encode(flat[block])
        return result

    def _encode(self, flat):
        """Encode float32s of one axis."""
        if self.bias == 127:
            return bfloat16_bits(flat)
        return _shorter(flat, self.mantissa, self.bias, self.overflow, self.bits)

    def decode(self, codes):
        """Return the float32 values of codes, which are exact.

        Args:
            codes: an array of ``dtype``, of any shape.
        """
        if self.bias == 127:
            return _upper_halves(codes)
        return _wider(codes, self.mantissa, self.bias, self.overflow, self.bits)

    def round(self, values):
        """Return the nearest numbers of this format as a new float32 array: ``decode(encode(values))``."""
        return _nearest_bfloat16(values) if self.bias == 127 else self.decode(self.encode(values))


@fused("float32 value", "float32 nearest", "nearest = __uint_as_float(nearest_bfloat16(value) << 16)", BFLOAT16_IN_C)
def _nearest_bfloat16(values):
    return BFLOAT16.decode(BFLOAT16.encode(values))


@fused("uint16 code", "float32 value", "value = __uint_as_float(code << 16)")
def _upper_halves(codes):
    wide = codes.astype(xp.uint32, order="C")  # sign, exponent and mantissa go to where a float32 has them
    wide <<= 16
    return wide.view(xp.float32)


@fused(
    "float32 value, int32 mantissa, int32 bias, uint32 overflow, int32 bits",
    "uint32 code",
    """
    unsigned int pattern = __float_as_uint(value), magnitude = pattern & 0x7fffffff;
    unsigned int lower = (127 - bias) << mantissa, drop = 23 - mantissa;
    float anchor = __uint_as_float((151 - bias - mantissa) << 23);  // 2^(24 - bias - mantissa)
    code = (magnitude + (1 << (drop - 1)) - 1 + ((magnitude >> drop) & 1)) >> drop;
    code = min(max(code, lower) - lower, overflow);
    if (magnitude < (unsigned int)(128 - bias) << 23)
        code = __float_as_uint(__uint_as_float(magnitude) + anchor) - __float_as_uint(anchor);
    if (magnitude > 0x7f800000) code = overflow | (1 << (mantissa - 1));
    code |= (pattern >> 31) << (bits - 1);
    """,
)
def _shorter(values, mantissa, bias, overflow, bits):
    """Convert float32s to the codes of a format with a shorter exponent."""
    pattern = values.view(xp.uint32)
    magnitude = pattern & xp.uint32(0x7FFFFFFF)
    lower = (127 - bias) << mantissa  # the difference between the two biases, in this format's places
    code = xp.maximum(drop_bits(magnitude, 23 - mantissa), lower) - xp.uint32(lower)
    code = xp.minimum(code, overflow)
    # Below the smallest normal number the last place no longer shrinks: it stays that of ``smallest``. Adding a
    # float32 with its last place there makes the addition round there.
    anchor = xp.float32(2.0 ** (24 - bias - mantissa))
    with np.errstate(invalid="ignore"):  # NaN is a value like any other here
        small = (magnitude.view(xp.float32) + anchor).view(xp.uint32)
    small -= anchor.view(xp.uint32)
    xp.copyto(code, small, where=magnitude < xp.uint32((128 - bias) << 23))
    code[magnitude > INFINITY] = overflow | (1 << (mantissa - 1))  # NaN
    code |= (pattern >> 31) << (bits - 1)
    return code


@fused(
    "C code, int32 mantissa, int32 bias, uint32 overflow, int32 bits",
    "float32 value",
    """
    unsigned int sign = (unsigned int)(code >> (bits - 1)) << 31, magnitude = code & ((1u << (bits - 1)) - 1);
    unsigned int exponent = magnitude >> mantissa, fraction = magnitude & ((1u << mantissa) - 1);
    unsigned int number = (exponent + 127 - bias) << 23 | fraction << (23 - mantissa);
    if (exponent == 0) number = __float_as_uint(fraction * __uint_as_float((128 - bias - mantissa) << 23));
    if (magnitude >= overflow) number |= 0x7f800000;
    value = __uint_as_float(sign | number);
    """,
)
def _wider(codes, mantissa, bias, overflow, bits):
    """Convert codes of a format with a shorter exponent to the float32s of the same values.

    The NumPy lines pass through subnormal float32 numbers, which a GPU flushes to 0; the C writes the exponent instead.
    """
    spare = 23 - mantissa
    magnitude = (1 << (bits - 1)) - 1
    wide = codes.view(f"i{codes.itemsize}").astype(xp.int32, order="C")  # sign extension fills the upper bits
    wide <<= spare
    wide &= xp.int32((magnitude << spare) - (1 << 31))  # one sign bit remains
    numbers = wide.view(xp.float32)
    numbers *= xp.float32(2.0 ** (127 - bias))  # shifts the exponent, and makes subnormal numbers normal
    special = (codes & codes.dtype.type(magnitude)) >= overflow
    if special.any():  # rarely
        xp.copyto(wide, wide | xp.int32(INFINITY), where=special)  # a nonzero mantissa makes it NaN
    return numbers


BFLOAT16 = Format("bfloat16", exponent=8, mantissa=7)
FLOAT16 = Format("float16", exponent=5, mantissa=10)
E5M2 = Format("e5m2", exponent=5, mantissa=2)
E4M3 = Format("e4m3", exponent=4, mantissa=3, infinite=False)
FORMATS = {format.name: format for format in (BFLOAT16, FLOAT16, E5M2, E4M3)}


@overridable
def scale_to(format: Format, values, axes: tuple[int, ...]):
    """Return the power of two that brings the largest |value * scale| within the format's range and near its end.

    8-bit formats have so little range that each tensor needs its own scale: values are multiplied by it before rounding
    and divided by it after the product. A power of two makes both exact. (Micikevicius et al., 2022, section 4;
    NVIDIA's Transformer Engine calls this "current scaling".)

    Args:
        values: float32.
        axes: the axes that share one scale; each index along the other axes has its own.

    Returns:
        float32, with as many axes as ``values``, of length 1 along ``axes``. It is 1 if all values are 0, if one is
        infinite or NaN, or if float32 cannot represent the scale.
    """
    magnitudes = xp.abs(values)
    greatest = (magnitudes.max if values.size else magnitudes.sum)(axis=axes, keepdims=True)
    with np.errstate(divide="ignore", over="ignore"):
        headroom = xp.float32(format.largest) / greatest
    headroom = xp.where(xp.isfinite(headroom) & (headroom > 0), headroom, 1)
    _, exponent = xp.frexp(headroom)  # 2^(exponent - 1) <= headroom
    return xp.ldexp(xp.float32(1), exponent - 1).astype(xp.float32)


def round_scaled(format: Format, values, axes: tuple[int, ...]):
    """Round ``values`` to a format with one scale over ``axes``; return float32 of their original magnitude."""
    scale = scale_to(format, values, axes)
    return format.round(values * scale) / scale
