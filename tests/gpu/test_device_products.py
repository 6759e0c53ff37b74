"""Products on the stand-in for CuPy: NumPy's bits, calls that do not know how many heads there are, and 16 bits."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from choosing import long

from minidist.nn.kernels import matmul_codes, matmul_each
from minidist.nn.precision.policy import POLICIES
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RunOptions
from minidist.train.trainer import train_rank

KINDS = ["float32", "float64", "bfloat16", "float16"]
SIZES = [(1, 1, 1), (1, 7, 5), (5, 1, 3), (3, 5, 1), (33, 17, 31), (0, 3, 2), (3, 0, 2), (3, 2, 0)]  # n, k, m


pytestmark = pytest.mark.usefixtures("standin")


def of_kind(numbers: np.ndarray, kind: str) -> np.ndarray:
    """Rounded, or cut, to numbers of that kind, in float32 if it has fewer bits."""
    if kind == "bfloat16":
        return (numbers.astype("f4").view("u4") & 0xFFFF0000).view("f4")
    return numbers.astype(kind).astype("f8" if kind == "float64" else "f4")


def codes_of(numbers: np.ndarray, kind: str) -> np.ndarray:
    """Return the factors as products take them: codes, where they have 16 bits."""
    if kind == "bfloat16":
        return (numbers.view("u4") >> 16).astype("u2")
    return numbers.astype("f2").view("u2") if kind == "float16" else numbers


def random(shape, kind: str) -> np.ndarray:
    return of_kind(np.random.default_rng(len(shape) + sum(shape)).standard_normal(shape), kind)


def on_device(cupy, numbers: np.ndarray, kind: str):
    return cupy.asarray(codes_of(numbers, kind))


def multiply(a, b, kind: str, out=None):
    return matmul_codes(a, b, kind, out) if kind in ("bfloat16", "float16") else matmul_each(a, b, out)


def assert_same_bits(found, expected: np.ndarray) -> None:
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert found.get().tobytes() == expected.tobytes()


def turned(array, turn: bool):
    return array.swapaxes(-1, -2) if turn else array


@pytest.mark.parametrize("kind", KINDS)
def test_products_have_numpys_bits(device, kind):
    """One head and several, matrices stored by rows and by columns, every size, zero among them."""
    for heads, between, (n, k, m), turn_a, turn_b in product((1, 3), ((), (1,), (3,), (0,)), SIZES, *[(0, 1)] * 2):
        a = random((heads, *between, *((k, n) if turn_a else (n, k))), kind)
        b = random((heads, *between, *((m, k) if turn_b else (k, m))), kind)
        x, y = turned(on_device(device, a, kind), turn_a), turned(on_device(device, b, kind), turn_b)
        assert_same_bits(multiply(x, y, kind), turned(a, turn_a) @ turned(b, turn_b))


@pytest.mark.parametrize("kind", KINDS)
def test_views_vectors_and_results_in_larger_arrays(device, kind):
    whole, right, vector = random((3, 2, 5, 12), kind), random((3, 2, 4, 7), kind), random((4,), kind)
    there, y = on_device(device, whole, kind), on_device(device, right, kind)
    for part in (slice(0, 4), slice(4, 8), slice(1, 5), slice(0, 12, 3)):
        expected = np.ascontiguousarray(whole[..., part]) @ right
        assert_same_bits(multiply(there[..., part], y, kind), expected)
        into = device.full((3, 2, 5, 9), np.nan, expected.dtype)
        multiply(there[..., part], y, kind, into[..., 1:8])
        assert_same_bits(into, np.pad(expected, [(0, 0)] * 3 + [(1, 1)], constant_values=np.nan))
    x = on_device(device, vector, kind)
    assert_same_bits(multiply(x, y, kind, device.empty((3, 2, 7), expected.dtype)), vector @ right)


@pytest.fixture
def products(device):
    """Return what cuBLASLt was told, product by product: for what its algorithm was asked, how many matrices, where."""
    found = device.cuda.cublas.products
    found.clear()
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_has_one_algorithm_whoever_has_it(device, products, kind):
    """One process with three heads, and three with one each, wherever in an array the head is."""
    a, b, gaps = (on_device(device, random((3, 3, *shape), kind), kind) for shape in ((5, 3), (7, 3), (5, 6)))
    b, gaps[..., 1:4] = b.swapaxes(-1, -2), a
    multiply(a, b, kind)
    multiply(gaps[..., 1:4], b, kind)
    multiply(a, b, kind, device.empty((3, 3, 5, 9), "f8" if kind == "float64" else "f4")[..., 1:8])
    for h in range(3):
        multiply(a[h : h + 1].copy(), b[h : h + 1], kind)
    assert len({told.asked for told in products}) == 1


def test_all_heads_are_one_call(device, products):
    """This holds also at odd sizes, with several samples, and where all heads have one factor."""
    for samples in ((), (1,), (2,)):
        multiply(device.zeros((3, *samples, 5, 3), "u2"), device.zeros((3, *samples, 3, 7), "u2"), "bfloat16")
    matmul_each(device.broadcast_to(device.zeros((5, 3), "f4"), (3, 5, 3)), device.zeros((3, 3, 5), "f4"))
    assert [told.count for told in products] == [3, 3, 6, 3]


def test_a_vector_has_one_order_and_begins_at_an_aligned_address(device, products):
    """A row, and a column seen as a row, whose strides say nothing."""
    row, columns = device.ones((2, 1, 3), "f4"), device.ones((2, 3, 6), "f4")
    for x in (row, columns[..., :1].swapaxes(1, 2), columns[:, :1, ::2]):
        matmul_each(x, device.ones((2, 3, 5), "f4"))
    assert len({told.asked for told in products}) == 1
    anywhere = device.zeros(65, "f4")[1:]
    matmul_each(anywhere.reshape(1, 8, 8), device.zeros((1, 8, 7), "f4"))
    assert anywhere.data.ptr not in products[-1].addresses


PLAIN = TrainConfig(layers=2, heads=4, width=16, context=12, global_batch=1, micro_batch=1, steps=1, backend="cupy")
OF_PRECISION = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp8": "bfloat16"}


def products_of_a_step(world, config) -> set[tuple[bool, str]]:
    """Whether they are a router's, and of what. Runs in a rank."""
    import cupy

    cupy.products.clear()
    train_rank(world, config, Layout(), RunOptions())
    return {(where.startswith("nn.moe.router."), kind) for kind, where in cupy.products}


@pytest.mark.parametrize(
    "changes", [{}, long({"attention": "tiled", "attention_tile": 5}), long({"experts": 4})], ids=str
)
def test_a_step_multiplies_codes(device_ranks, changes):
    """The codes are those of its precision; a router multiplies float32."""
    assert OF_PRECISION.keys() == POLICIES.keys()
    for precision, kind in OF_PRECISION.items():
        (found,) = device_ranks(1).run(products_of_a_step, replace(PLAIN, precision=precision, **changes))
        assert found == {(False, kind)} | ({(True, "float32")} if "experts" in changes else set()), precision
