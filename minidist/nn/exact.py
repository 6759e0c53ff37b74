"""Exact products: sums that have one result, for every machine, order and shape.

A float sum rounds after each addition, so its last bits depend on the order, and every BLAS has an order of its own for
every kernel and shape. A sum of integers has no order. So the factors of a product are rounded to a grid first:

- Each row of A is rounded to multiples of 2^(e - b), where 2^e is the least power of two above its largest magnitude:
  it is now a row of integers up to 2^b, times 2^(e - b). So is each column of B, with an e of its own.
- The product of a row and a column of K elements is a sum of integers up to 2^2b, and so are all its partial sums: at
  most K 2^2b, times one power of two. With 2 b + log2 K <= 53 float64 holds each exactly. Nothing is rounded, so no
  kernel, no order, no blocking, no batch and no number of threads shows. The one rounding is that of the result.

That leaves b = 24 bits for K up to 32, 21 for K up to 2,048, 16 for K up to 2^21; float32 has 24. The error is at most
K (2^(1-b) + 2^-2b) times the product of the largest magnitudes, where float32's own is up to K 2^-24 of it.

**Rows do not know their neighbours.** A row's grid depends on the row alone. So it has the same bits in a product of
one row and of a thousand, on whichever rank. A scale along the *summed* index would break that, because it cannot be
taken out of the sum: in attention, weights times values, a grid for a column of values would let a later token change
an earlier one's bits, which is the opposite of causal. ``mix`` folds each value row's power of two into the weights
first: a token depends on the values that it attends to, and the weight of all others is 0.

**Other sums** inside a row are taken on one grid of 51 bits or less: n terms leave 53 - log2 n. **Functions** (exp,
exp2, tanh, log) are the C library's elsewhere; here they are computed with + - * / in float64, whose results IEEE 754
determines, and rounded to float32 once. NumPy has no operation that fuses a product and a sum into one rounding.

**Numbers.** All finite float32 numbers are covered, including zeros and subnormals: float64 has to hold values between
2^-348 and 2^310. A row of zeros stays zero, and a sum that is zero is +0, whatever the signs of its terms. Infinity and
NaN spread as in any product; a NaN's sign bit is the machine's. An element of at most half a grid's step becomes 0. A
bfloat16 number has 8 bits, so above 2^(e - b + 8) none is rounded at all. float64 factors are rounded to the same
grids: the result has the accuracy of float32.

Ozaki et al., "Error-free transformations of matrix multiplication by using fast routines" (2012), use several grids so
that nothing is lost; here one grid replaces the format. Demmel & Nguyen, "Fast reproducible floating-point summation"
(2013), sum on grids for the same reason.
"""

from functools import wraps
from itertools import accumulate

from minidist.backend import cache_blocks, xp
from minidist.nn.kernels import repeats
from minidist.overrides import overridable

CHUNK = 1 << 12  # float64 elements, few enough to stay in the fastest cache for thirty passes
ANCHOR = 1.5 * 2.0**52  # added to a number below 2^51, it leaves no bits below 1: float64 rounds there, to even
LOG2, LOG2E = 0.6931471805599453, 1.4426950408889634  # log(2) and its inverse, as numbers: no library computes them
TERMS = [*accumulate(range(2, 11), lambda term, k: term * LOG2 / k, initial=LOG2)][::-1]  # log(2)^k / k!, k = 10 to 1


@overridable
def bits_of(count: int, factors: int = 1) -> int:
    """Return how many bits each of ``factors`` factors may have, so that ``count`` of their products fit 53 bits."""
    return min(51, (53 - (count - 1).bit_length()) // factors)


def on_grid(x, bits: int, axis: int):
    """Round to multiples of 2^(e - bits), in float64, where 2^e exceeds all magnitudes along the axis."""
    if repeats(x):  # the same activations for all heads
        return xp.broadcast_to(on_grid(x[:1], bits, axis), x.shape)
    return to_multiples(x, exponents(x, axis) - bits)


def exponents(x, axis: int):
    """Return the least e for which 2^e exceeds all magnitudes along the axis, which stays with length 1: integers."""
    return xp.frexp(xp.abs(x).max(axis=axis, keepdims=True))[1]


def to_multiples(x, exponent):
    """Round to multiples of 2^exponent, in float64; the exponents, integers, broadcast.

    Adding 1.5 * 2^(52 + exponent) gives a sum whose last bit is worth 2^exponent: the addition rounds there.
    """
    anchor = xp.ldexp(ANCHOR, exponent)
    grid = x.astype(xp.float64)
    grid += anchor
    grid -= anchor
    return grid


def multiply(rows, columns, dtype):
    """Multiply factors that are on grids, and round once: (..., n, k) and (..., k, m) -> (..., n, m)."""
    product = xp.matmul(rows, columns)
    result = xp.empty(product.shape, dtype)
    return xp.add(product, 0.0, out=result, dtype=xp.float64, casting="same_kind")  # -0 + 0 is 0


def matmul_each(a, b, out=None):
    """Return ``a @ b``, exact once the factors are on their grids. Arguments: see ``kernels.matmul_each``."""
    if a.ndim == 1:
        return matmul_each(a[None], b, None if out is None else out[..., None, :])[..., 0, :]
    if a.shape[-1] == 0:
        return xp.matmul(a, b, out=out)
    return _into(out, exact_matmul(a, b))


@overridable
def exact_matmul(a, b):
    """Return ``a @ b``, exact once the factors are on grids: (..., n, k) and (..., k, m) -> (..., n, m), k >= 1."""
    bits = bits_of(a.shape[-1], factors=2)
    return multiply(on_grid(a, bits, -1), on_grid(b, bits, -2), a.dtype)


def mix(weights, values, out=None):
    """Return ``weights @ values``, where a row of the result does not depend on values whose weight in it is 0.

    Args:
        weights: (..., n, k)
        values: (..., k, m); each row has a scale of its own.
        out: array of the shape of the result, overwritten; None for a new array.
    """
    bits = bits_of(values.shape[-2], factors=2)
    exponent = exponents(values, -1)  # (..., k, 1)
    scale = xp.ldexp(1.0, exponent)
    rows = on_grid(weights * scale.swapaxes(-1, -2), bits, -1)
    return _into(out, multiply(rows, to_multiples(values, exponent - bits) / scale, values.dtype))


def _into(out, result):
    if out is None:
        return result
    out[...] = result
    return out


def _sums(x, axis: int, dtype):
    if x.shape[axis] == 0:
        return x.sum(axis=axis, dtype=dtype)
    return on_grid(x, bits_of(x.shape[axis]), axis).sum(axis=axis).astype(dtype)  # a grid has no -0


def row_sums(x):
    """Return the sums over the last axis: (..., n) -> (...)."""
    return _sums(x, -1, x.dtype)


def column_sums(x):
    """Return the sums over the last axis but one: (..., n, m) -> (..., m)."""
    return _sums(x, -2, x.dtype)


def dot_each(a, b):
    """Return the dot products of the rows of two arrays: (..., n) and (..., n) of float32 -> (...)."""
    return _sums(xp.multiply(a, b, dtype=xp.float64), -1, a.dtype)  # 24 + 24 bits: each product is exact


def rounded_once(function):
    """Decorate a function of float64 arrays: it takes float32, too, and rounds its result to the argument's dtype."""

    @wraps(function)
    def call(x, out=None):
        result = xp.empty(x.shape, x.dtype)
        flat, into = xp.ascontiguousarray(x).reshape(-1), result.reshape(-1)
        for block in cache_blocks(x.size, CHUNK):
            into[block] = function(flat[block].astype(xp.float64))
        return _into(out, result)

    return call


def _power_of_two(x) -> tuple:
    """Return (s, q) with 2^x = s (1 + q) for |x| <= 1000: s is a power of two, and q between -0.3 and 0.42."""
    anchored = x + ANCHOR  # the last bits are those of the nearest integer n
    f = x - (anchored - ANCHOR)
    anchored = anchored.view(xp.int64)
    anchored += 1023
    anchored <<= 52  # n + 1023 in the place of the exponent: 2^n
    q = f * TERMS[0]  # 2^f - 1 = sum of f^k log(2)^k / k!, to 2^-41 of 2^f
    for term in TERMS[1:]:
        q += term
        q *= f
    return anchored.view(xp.float64), q


@rounded_once
def exp2(x):
    """Return 2^x."""
    scale, q = _power_of_two(x.clip(-1000, 1000))
    q += 1
    return q * scale


@rounded_once
def exp(x):
    """e^x = 2^(x / log 2)."""
    scale, q = _power_of_two((x * LOG2E).clip(-1000, 1000))
    q += 1
    return q * scale


@rounded_once
def tanh(x):
    """tanh x = p / (p + 2) with p = e^2x - 1, accurate for small x, too."""
    scale, q = _power_of_two((x * (2 * LOG2E)).clip(-100, 100))
    q *= scale
    q += scale - 1
    return q / (q + 2)


@rounded_once
def log(x):
    """log x = n log 2 + 2 artanh s, where x = 2^n m, s = (m - 1) / (m + 1), and m lies around 1."""
    mantissa, exponent = xp.frexp(x)
    low = mantissa < 0.7071
    mantissa, exponent = xp.where(low, 2 * mantissa, mantissa), exponent - low
    s = (mantissa - 1) / (mantissa + 1)  # |s| < 0.172
    square, series = s * s, xp.full(x.shape, 1 / 21)
    for k in range(19, 0, -2):  # artanh s = s + s^3 / 3 + s^5 / 5 + ...
        series = series * square + 1 / k
    inside = (x > 0) & (x < xp.inf)
    return xp.where(inside, exponent * LOG2 + 2 * s * series, xp.log(xp.where(inside, 1, x)))
