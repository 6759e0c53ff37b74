"""Numbers of 16 and 8 bits against two oracles: ml_dtypes, and NumPy's own float16."""

import numpy as np
import pytest

from minidist.nn.precision import formats
from minidist.nn.precision.formats import BFLOAT16, E4M3, E5M2, FLOAT16, FORMATS, round_scaled, scale_to


def oracle(name: str):
    """Return the format as someone else wrote it."""
    if name == "float16":
        return np.float16
    ml_dtypes = pytest.importorskip("ml_dtypes")
    return {"bfloat16": ml_dtypes.bfloat16, "e5m2": ml_dtypes.float8_e5m2, "e4m3": ml_dtypes.float8_e4m3fn}[name]


def difficult_numbers(numbers: np.ndarray) -> np.ndarray:
    """Half a million float32 numbers of all bit patterns, and around every place where rounding changes its mind."""
    random = np.random.default_rng(0)
    numbers = np.unique(numbers[np.isfinite(numbers)].astype(np.float64))
    middles = ((numbers[1:] + numbers[:-1]) / 2).astype(np.float32)
    edges = np.float32([np.inf, -np.inf, np.nan, 0.0, -0.0, numbers.max(), 3.4e38, 1e-45])
    payloads = np.array([0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF], np.uint32).view(np.float32)  # NaNs
    return np.concatenate(
        [
            random.integers(0, 1 << 32, 500_000, dtype=np.uint32).view(np.float32),
            random.standard_normal(50_000).astype(np.float32),
            middles, np.nextafter(middles, np.float32(np.inf)), np.nextafter(middles, np.float32(-np.inf)),
            edges, payloads,
        ]
    )  # fmt: skip


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_every_number_is_that_of_the_oracle(form, monkeypatch):
    """All bit patterns are decoded, and numbers of all kinds rounded, in chunks as in one piece."""
    codes = np.arange(1 << form.bits).astype(form.dtype)
    mine, theirs = form.decode(codes), codes.view(oracle(form.name)).astype(np.float32)
    is_nan = np.isnan(theirs)
    np.testing.assert_array_equal(np.isnan(mine), is_nan)
    np.testing.assert_array_equal(mine[~is_nan].view(np.uint32), theirs[~is_nan].view(np.uint32))  # bits: -0 is not 0
    assert (form.largest, form.smallest) == (theirs[np.isfinite(theirs)].max(), theirs[theirs > 0].min())

    values = difficult_numbers(theirs)
    with np.errstate(all="ignore"):
        theirs = values.astype(oracle(form.name))
    is_nan = np.isnan(theirs.astype(np.float32))
    for chunk in (formats.CHUNK, 1 << 17):
        monkeypatch.setattr(formats, "CHUNK", chunk)
        mine = form.encode(values)
        np.testing.assert_array_equal(np.isnan(form.decode(mine)), is_nan)
        np.testing.assert_array_equal(mine[~is_nan], theirs.view(form.dtype)[~is_nan])


def test_any_shape_and_stride():
    for shape in ((), (0,), (3, 0, 2), (2, 3, 5)):
        values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        for array in (values, values.T, np.asfortranarray(values)):
            assert BFLOAT16.encode(array).shape == array.shape
            np.testing.assert_array_equal(BFLOAT16.round(array), BFLOAT16.decode(BFLOAT16.encode(array)))
            np.testing.assert_array_equal(FLOAT16.round(array), array.astype(np.float16).astype(np.float32))


@pytest.mark.parametrize("form", [E4M3, E5M2], ids=lambda form: form.name)
def test_a_scale_is_a_power_of_two_that_uses_the_range(form):
    for size in (1e-20, 1e-3, 1.0, 3e4, 1e30):
        values = (np.random.default_rng(0).standard_normal((3, 40)) * size * [[1], [100], [0]]).astype(np.float32)
        scale = scale_to(form, values, (1,))
        assert scale.shape == (3, 1) and scale[2] == 1 and (np.frexp(scale)[0] == 0.5).all()
        greatest = np.abs(values * scale).max(axis=1)
        assert (greatest <= form.largest).all() and (greatest[:2] > form.largest / 4).all()
        error = np.abs(round_scaled(form, values, (1,)) - values).max(axis=1)
        # half of the last place of the greatest number, which is 2^-mantissa of a power of two below it
        assert (error <= np.abs(values).max(axis=1) * 2.0 ** -(form.mantissa + 1)).all()
    odd = np.float32([[np.inf, 1.0], [np.nan, 1.0], [0, 0]])
    assert scale_to(form, odd, (1,)).tolist() == [[1], [1], [1]]


@pytest.mark.parametrize("form", [E4M3, E5M2], ids=lambda form: form.name)
def test_what_fp8_has_rounded_is_a_bfloat16_number(form):
    """The tensor cores of a GPU can therefore take it as one."""
    for largest in (2.0**-133, 2.0**-126, 2.0**-118, 1e-6, 1.0, 3e38):
        values = (largest * np.random.default_rng(0).uniform(-1, 1, (3, 400, 5))).astype(np.float32)
        values[0, :40] *= np.float32(2.0**-8)
        found = round_scaled(form, BFLOAT16.round(values), (1, 2))
        assert (BFLOAT16.round(found) == found).all(), largest
