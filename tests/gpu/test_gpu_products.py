"""Products on a real GPU: ``pytest tests/gpu/test_gpu_products.py``. Skipped where there is none."""

import numpy as np
import pytest

from minidist import backend
from minidist.products import matmul_codes, matmul_each

try:
    backend.find("cupy")
except RuntimeError as error:
    pytest.skip(str(error), allow_module_level=True)

KINDS = ["float32", "bfloat16", "float16"]
# n, k, m: those of a layer and of attention, sums long enough to be split, and sizes that suit no kernel
SIZES = [(512, 1024, 192), (512, 64, 512), (64, 8192, 64), (33, 17, 31), (1, 100, 3), (5, 1, 7)]


def codes(numbers: np.ndarray, kind: str) -> np.ndarray:
    """Numbers of that kind as their bits."""
    if kind == "bfloat16":
        return (numbers.view(np.uint32) >> 16).astype(np.uint16)
    return numbers.astype(np.float16).view(np.uint16) if kind == "float16" else numbers


def multiplied(device, a: np.ndarray, b: np.ndarray, kind: str, turned: bool) -> np.ndarray:
    """``a @ b`` on the device; ``turned`` has both stored by columns."""
    x, y = (codes(np.ascontiguousarray(one.swapaxes(-1, -2)) if turned else one, kind) for one in (a, b))
    x, y = (device.asarray(one).swapaxes(-1, -2) if turned else device.asarray(one) for one in (x, y))
    return (matmul_each(x, y) if kind == "float32" else matmul_codes(x, y, kind)).get()


@pytest.mark.parametrize("turned", [False, True], ids=["by rows", "by columns"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_products_of_small_integers_are_exact(device, sizes, kind, turned):
    """Whatever the order: up to 16, their products are below 2^9, and sums of 8192 of these below 2^22."""
    (n, k, m), random = sizes, np.random.default_rng(0)
    a, b = (random.integers(-16, 17, (3, 2, *shape)).astype(np.float32) for shape in ((n, k), (k, m)))
    np.testing.assert_array_equal(multiplied(device, a, b, kind, turned), a.astype(np.float64) @ b.astype(np.float64))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_sums_of_products_are_float32(device, sizes, kind):
    """Products are exact. A sum of k terms drops bits at most 2 k times: a tensor core cuts each term, and each block's
    sum, to the last place of the largest (Fasi et al., "Numerical behavior of NVIDIA tensor cores", 2021), which is
    2^-23 of what has been summed. Sums in bfloat16 would lose 2^-8 of that at every step, TF32 2^-11 of each factor.
    """
    (n, k, m), random = sizes, np.random.default_rng(0)
    a, b = (random.standard_normal((3, 2, *shape)).astype(np.float16) for shape in ((n, k), (k, m)))
    a, b = a.astype(np.float32), b.astype(np.float32)
    if kind == "bfloat16":
        a, b = ((one.view(np.uint32) & 0xFFFF0000).view(np.float32) for one in (a, b))
    if kind == "float32":
        a, b = a * np.float32(1.1), b * np.float32(1.1)
    a64, b64 = a.astype(np.float64), b.astype(np.float64)
    error = np.abs(multiplied(device, a, b, kind, False) - a64 @ b64)
    terms = 2 * k + (2 if kind == "float32" else 0)  # float32 products are rounded, too
    assert (error <= terms * 2.0**-23 * (np.abs(a64) @ np.abs(b64))).all()
    print(f"{kind}, {sizes}: largest error {error.max():.1e}")


@pytest.mark.parametrize("turned", [False, True], ids=["by rows", "by columns"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_a_heads_product_has_the_same_bits_alone(device, sizes, kind, turned):
    """What one hash for tensor parallelism rests on."""
    (n, k, m), random = sizes, np.random.default_rng(0)
    a, b = (random.standard_normal((4, 2, *shape)).astype(np.float32) for shape in ((n, k), (k, m)))
    together = multiplied(device, a, b, kind, turned)
    for h in range(4):
        alone = multiplied(device, a[h : h + 1], b[h : h + 1], kind, turned)
        np.testing.assert_array_equal(alone, together[h : h + 1])
