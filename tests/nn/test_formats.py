"""Numbers of 16 and 8 bits against two oracles: ml_dtypes, and NumPy's own float16."""

from fractions import Fraction

import numpy as np
import pytest

from minidist.nn.precision import formats
from minidist.nn.precision.formats import BFLOAT16, E4M3, E5M2, FLOAT16, FORMATS, drop_bits, round_scaled, scale_to


def oracle(name: str):
    """The same format, as someone else wrote it."""
    if name == "float16":
        return np.float16
    ml_dtypes = pytest.importorskip("ml_dtypes")
    return {"bfloat16": ml_dtypes.bfloat16, "e5m2": ml_dtypes.float8_e5m2, "e4m3": ml_dtypes.float8_e4m3fn}[name]


def every_number(form) -> np.ndarray:
    return np.arange(1 << form.bits).astype(form.dtype)


def difficult_numbers(form) -> np.ndarray:
    """Two million float32 numbers of all bit patterns, and around every place where rounding changes its mind."""
    random = np.random.default_rng(0)
    numbers = form.decode(every_number(form))
    numbers = np.unique(numbers[np.isfinite(numbers)].astype(np.float64))
    middles = ((numbers[1:] + numbers[:-1]) / 2).astype(np.float32)
    edges = np.float32([np.inf, -np.inf, np.nan, 0.0, -0.0, form.largest, form.smallest, form.smallest / 2, 3.4e38])
    payloads = np.array([0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF], np.uint32).view(np.float32)  # NaNs
    return np.concatenate(
        [
            random.integers(0, 1 << 32, 2_000_000, dtype=np.uint32).view(np.float32),
            random.standard_normal(100_000).astype(np.float32),
            middles, np.nextafter(middles, np.float32(np.inf)), np.nextafter(middles, np.float32(-np.inf)),
            edges, payloads,
        ]
    )  # fmt: skip


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_every_number_is_decoded_as_the_oracle_does(form):
    codes = every_number(form)
    mine, theirs = form.decode(codes), codes.view(oracle(form.name)).astype(np.float32)
    is_nan = np.isnan(theirs)
    np.testing.assert_array_equal(np.isnan(mine), is_nan)
    np.testing.assert_array_equal(mine[~is_nan].view(np.uint32), theirs[~is_nan].view(np.uint32))  # bits: -0 is not 0
    np.testing.assert_array_equal(form.encode(mine)[~is_nan], codes[~is_nan])


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_every_float32_is_rounded_as_the_oracle_does(form):
    values = difficult_numbers(form)
    with np.errstate(all="ignore"):
        theirs = values.astype(oracle(form.name))
    is_nan = np.isnan(theirs.astype(np.float32))
    mine = form.encode(values)
    np.testing.assert_array_equal(np.isnan(form.decode(mine)), is_nan)
    np.testing.assert_array_equal(mine[~is_nan], theirs.view(form.dtype)[~is_nan])


def test_truncation_is_not_rounding():
    """The injected bug: without adding half, three numbers of eight come out too small."""
    values = np.float32([1.00390625, 1.01171875, 1.999, -3.01, 1.0, 2.0])
    truncated = (values.view(np.uint32) >> 16).astype(np.uint16)
    rounded = BFLOAT16.encode(values)
    np.testing.assert_array_equal(BFLOAT16.decode(rounded), np.float32([1.0, 1.015625, 2.0, -3.015625, 1.0, 2.0]))
    assert (truncated != rounded).tolist() == [False, True, True, True, False, False]


@pytest.mark.parametrize("count", [1, 4, 16, 29])
def test_dropping_bits_rounds_to_the_nearest_and_ties_to_even(count):
    integers = np.random.default_rng(count).integers(0, 1 << 31, 2000, dtype=np.uint32)
    integers[:1000] = (integers[:1000] >> count << count) | (1 << (count - 1))  # exactly in the middle
    integers &= np.uint32(0x7FFFFFFF)
    exact = [round(Fraction(int(n), 1 << count)) for n in integers]  # Python rounds a tie to the even one
    assert drop_bits(integers, count).tolist() == exact


RANGES = [
    (BFLOAT16, 255 * 2.0**120, 2.0**-133),
    (FLOAT16, 65504, 2.0**-24),
    (E5M2, 57344, 2.0**-16),
    (E4M3, 448, 2.0**-9),
]


@pytest.mark.parametrize("form, largest, smallest", RANGES)
def test_ranges(form, largest, smallest):
    assert (form.largest, form.smallest) == (largest, smallest)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (2, 3, 5)])
def test_any_shape_and_stride(shape):
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    for array in (values, values.T, np.asfortranarray(values)):
        assert BFLOAT16.encode(array).shape == array.shape
        np.testing.assert_array_equal(BFLOAT16.round(array), BFLOAT16.decode(BFLOAT16.encode(array)))


def test_chunks_leave_no_trace(monkeypatch):
    values = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    whole = FLOAT16.encode(values)
    monkeypatch.setattr(formats, "CHUNK", 7)
    np.testing.assert_array_equal(FLOAT16.encode(values), whole)


def test_only_float32_is_encoded():
    with pytest.raises(TypeError, match="bfloat16 needs float32 values, but got float64: convert"):
        BFLOAT16.encode(np.ones(2))


@pytest.mark.parametrize("form", [E4M3, E5M2])
@pytest.mark.parametrize("size", [1e-20, 1e-3, 1.0, 3e4, 1e30])
def test_a_scaled_tensor_uses_the_range(form, size):
    values = (np.random.default_rng(0).standard_normal((3, 40)) * size * [[1], [100], [0]]).astype(np.float32)
    scale = scale_to(form, values, (1,))
    assert scale.shape == (3, 1) and scale[2] == 1
    assert (np.frexp(scale)[0] == 0.5).all()  # powers of two
    greatest = np.abs(values * scale).max(axis=1)
    assert (greatest <= form.largest).all() and (greatest[:2] > form.largest / 4).all()
    error = np.abs(round_scaled(form, values, (1,)) - values).max(axis=1)
    # half of the last place of the greatest number, which is 2^-mantissa of a power of two below it
    assert (error <= np.abs(values).max(axis=1) * 2.0 ** -(form.mantissa + 1)).all()


def test_a_scale_for_numbers_that_are_not_finite():
    values = np.float32([[np.inf, 1.0], [np.nan, 1.0], [0, 0]])
    assert scale_to(E4M3, values, (1,)).tolist() == [[1], [1], [1]]


def test_without_a_scale_small_numbers_are_lost():
    values = np.full((1, 8), 1e-4, np.float32)
    assert not E4M3.round(values).any()
    np.testing.assert_allclose(round_scaled(E4M3, values, (1,)), values, rtol=2**-4)
