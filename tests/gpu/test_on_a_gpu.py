"""On a real GPU, shared by all ranks: ``pytest tests/gpu/test_on_a_gpu.py -rA``. Skipped where there is none.

First what the bits rest on (sums, products, formats), then one process, then layouts in other precisions and odd sizes,
and last every layout, the smallest first. What is printed is worth reading where a test fails, or for the record.
"""

import os
import threading
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest
from clusters import PatientCluster
from test_device_products import codes_of, multiply, of_kind, turned

from minidist import backend
from minidist.backend import xp
from minidist.nn.kernels import add_at, column_sums, dot_each, matmul_each, reduced, rounded
from minidist.nn.precision.formats import FORMATS, Format
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RunOptions
from minidist.train.trainer import run
from minidist.verify.comparison import DEFAULT_LAYOUTS, MORE_LAYOUTS, agrees, bits, first_difference

try:
    backend.find("cupy")
except RuntimeError as error:
    pytest.skip(str(error), allow_module_level=True)

LLAMA = {"arch": "llama", "kv_heads": 2}
CONFIG = TrainConfig(layers=2, heads=4, width=64, context=32, global_batch=24, steps=3, warmup=1, backend="cupy")
# A float32 has 24 bits, and a loss is a mean of some hundred products of sums of some hundred terms, which a GPU adds
# in another order: a few hundred roundings of 6e-8 after a few steps.
LOSSES = 2e-5  # relative
LAYOUTS = sorted([*DEFAULT_LAYOUTS, *MORE_LAYOUTS], key=lambda layout: layout.world_size)
DIGESTS = RunOptions(step_digests=True)  # so that a difference can be found


@pytest.fixture(scope="module")
def few_ranks(ranks):  # which lets the server that forks ranks import what they need
    """``few_ranks(n)`` is a warm Cluster. At most two are alive, since each process takes half a gigabyte of a GPU."""
    clusters: dict[int, PatientCluster] = {}

    def of_size(size: int) -> PatientCluster:
        for other in set(clusters) - {1, size}:
            clusters.pop(other).close()
        if size not in clusters:
            clusters[size] = PatientCluster(size)
        return clusters[size]

    yield of_size
    for cluster in clusters.values():
        cluster.close()


@pytest.fixture(scope="module")
def one_process(few_ranks):
    """``one_process(config)`` is the run of one process; made once."""
    return cache(lambda config: run(few_ranks(1), config, Layout(), DIGESTS))


def random(*shape: int, seed: int = 0):
    return xp.asarray(np.random.default_rng(seed).standard_normal(shape, np.float32))


def same(one, other) -> bool:
    return np.array_equal(bits(one.get()), bits(other.get()))


# What the bits rest on


@pytest.mark.parametrize("width", [3, 10, 64, 255, 1024, 4099])
def test_the_sum_of_a_row_depends_on_the_row_alone(device, width):
    """Neither on how many rows there are nor on where in memory it begins."""
    rows, others = random(37, width), random(37, width, seed=1)
    sums, dots = rows.sum(axis=-1), dot_each(rows, others)
    for row in (0, 1, 17, 36):
        place = slice(row, row + 1)
        for one, other in ((rows[place], others[place]), (rows[place].copy(), others[place].copy())):
            assert same(one.sum(axis=-1), sums[place]), (width, row)
            assert same(dot_each(one, other), dots[place]), (width, row)
    assert same(rows[:35].reshape(5, 7, width).sum(axis=-1).reshape(-1), sums[:35])


@pytest.mark.parametrize("queries", [1, 2, 8, 22, 128])
@pytest.mark.parametrize("keys", [10, 48, 128])
def test_the_sums_of_a_head_s_columns_depend_on_the_head_alone(device, keys, queries):
    """CuPy's own sum does not: with few results, as of a short tile, its order depends on their number."""
    weights = random(4, 2, keys, queries)
    sums = column_sums(weights)
    for heads in (slice(0, 1), slice(3, 4), slice(1, 3)):
        assert same(column_sums(weights[heads]), sums[heads])
        assert same(column_sums(weights[heads].copy()), sums[heads])


KINDS = ["float32", "bfloat16", "float16"]
# n, k, m: those of a layer and of attention, sums long enough to be split, and sizes that suit no kernel
SIZES = [(512, 1024, 192), (512, 64, 512), (64, 8192, 64), (2048, 16, 64), (33, 17, 31), (1, 100, 3), (5, 1, 7)]


def multiplied(a: np.ndarray, b: np.ndarray, kind: str, by_columns: bool = False, shift: int = 0) -> np.ndarray:
    """``a @ b`` on the device, of factors that begin so many elements behind the beginning of their memory."""

    def on_device(numbers: np.ndarray):
        stored = codes_of(np.ascontiguousarray(turned(numbers, by_columns)), kind)
        flat = xp.empty(stored.size + shift, stored.dtype)
        flat[shift:] = xp.asarray(stored.reshape(-1))
        return turned(flat[shift:].reshape(stored.shape), by_columns)

    return multiply(on_device(a), on_device(b), kind).get()


@pytest.mark.parametrize("by_columns", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_products_of_heads(device, sizes, kind, by_columns):
    """Products of small integers are exact, whatever the order: up to 16, their products are below 2^9, and sums of
    8192 of these below 2^22. A head's products depend on the head alone: neither on how many there are nor on where in
    memory its factors begin.
    """
    (n, k, m), generator = sizes, np.random.default_rng(0)
    a, b = (generator.integers(-16, 17, (3, 2, *shape)).astype(np.float32) for shape in ((n, k), (k, m)))
    assert np.array_equal(multiplied(a, b, kind, by_columns), a.astype(np.float64) @ b.astype(np.float64))
    a, b = (generator.standard_normal((3, 2, *shape), np.float32) for shape in ((n, k), (k, m)))
    together = multiplied(a, b, kind, by_columns)
    for head, shift in product(range(3), (0, 1, 2, 4)):
        some = slice(head, head + 1)
        found = multiplied(a[some], b[some], kind, by_columns, shift)
        assert np.array_equal(bits(found), bits(together[some])), (head, shift)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_sums_of_products_are_float32(device, sizes, kind):
    """Products are exact. A sum of k terms drops bits at most 2 k times: a tensor core cuts each term, and each block's
    sum, to the last place of the largest (Fasi et al., "Numerical behavior of NVIDIA tensor cores", 2021), which is
    2^-23 of what has been summed. Sums in bfloat16 would lose 2^-8 of that at every step, TF32 2^-11 of each factor.
    """
    (n, k, m), generator = sizes, np.random.default_rng(0)
    a, b = (of_kind(generator.standard_normal((3, 2, *shape)), kind) for shape in ((n, k), (k, m)))
    a64, b64 = a.astype(np.float64), b.astype(np.float64)
    error = np.abs(multiplied(a, b, kind) - a64 @ b64)
    terms = 2 * k + (2 if kind == "float32" else 0)  # float32 products are rounded, too
    assert (error <= terms * 2.0**-23 * (np.abs(a64) @ np.abs(b64))).all()
    print(f"{kind}, {sizes}: largest error {error.max():.1e}")


@pytest.mark.parametrize("format", FORMATS.values(), ids=FORMATS)
def test_formats_have_numpys_bits(device, format: Format):
    """All codes to numbers, and numbers of all magnitudes, subnormal ones of the format among them, to codes."""
    codes = np.arange(1 << format.bits).astype(f"u{format.bits // 8}")
    generator = np.random.default_rng(0)
    values = generator.standard_normal(1 << 18) * 2.0 ** generator.uniform(-40, 20, 1 << 18)
    values = np.concatenate([values, [0.0, -0.0, np.inf, -np.inf, np.nan]]).astype(np.float32)

    def both_ways() -> list[np.ndarray]:
        numbers, found = format.decode(backend.from_host(codes)), format.encode(backend.from_host(values))
        numbers = backend.to_host(numbers)
        return [bits(np.where(np.isnan(numbers), np.float32(np.nan), numbers)), backend.to_host(found)]

    found = both_ways()
    backend.use("numpy")
    assert all(map(np.array_equal, found, both_ways()))


def test_a_sum_of_atomic_additions_repeats(device):
    """The order of the additions does not repeat; the rounded sum does."""
    index = xp.asarray(np.random.default_rng(0).integers(0, 50, 20000))
    terms, targets = random(20000, 16).astype(xp.float64), [xp.zeros((50, 16)) for _ in range(10)]
    for target in targets:
        add_at(target, index, terms)
    first, *others = (rounded(target, xp.float32) for target in targets)
    assert all(same(first, other) for other in others)


@pytest.mark.parametrize("size", [1, 5, 1024, 2048, 2049, 1 << 20, (1 << 22) + 3])
def test_reductions_in_two_stages_find_the_same(device, size):
    values = np.random.default_rng(size).integers(-(1 << 40), 1 << 40, size)
    on_device = xp.asarray(values)
    for name in ("sum", "max", "min"):
        assert int(reduced(getattr(xp, name), on_device)) == getattr(values, name)()
    assert bool(reduced(xp.all, on_device > -(1 << 41)))


def test_float32_products_keep_24_bits(device):
    """TF32 would keep 11."""
    assert os.environ["CUPY_TF32"] == "0"
    a, one = xp.full((64, 64), 1 + 2.0**-20, xp.float32), xp.eye(64, dtype=xp.float32)
    for found in (a @ one, matmul_each(a[None], one[None])[0]):
        assert found.get()[0, 0] == np.float32(1 + 2.0**-20)


def test_a_background_thread_writes_to_the_device(device):
    target, source = xp.zeros((1000, 1000), xp.float32), np.arange(1e6, dtype=np.float32).reshape(1000, 1000)
    thread = threading.Thread(target=backend.copy_from_host, args=(target, source))
    thread.start()
    thread.join(60)
    assert not thread.is_alive() and np.array_equal((target + 0).get(), source)


# One process


@pytest.mark.parametrize(
    "changes", [{}, {"precision": "bf16"}, {"attention": "tiled", "attention_tile": 10}, {"experts": 8}, LLAMA], ids=str
)
def test_losses_are_near_those_of_numpy(ranks, one_process, changes):
    config = replace(CONFIG, **changes)
    expected = np.array(run(ranks(1), replace(config, backend="numpy"), Layout()).losses)
    distances = np.abs(one_process(config).losses / expected - 1)
    print(f"relative distance from NumPy's losses, step by step: {distances}")
    assert distances.max() < LOSSES * (100 if config.precision == "bf16" else 1)  # bfloat16 keeps 8 bits


@pytest.mark.parametrize(
    "changes",
    [{}, {"precision": "bf16"}, {"attention": "tiled", "attention_tile": 10}, {"experts": 8, "dropout": 0.1}, LLAMA],
    ids=str,
)
def test_exact_products_have_the_bits_of_the_cpu(ranks, one_process, changes):
    config = replace(CONFIG, products="exact", **changes)
    expected, found = run(ranks(1), replace(config, backend="numpy"), Layout()), one_process(config)
    print(f"CPU {expected.fingerprint[:16]}, GPU {found.fingerprint[:16]}; losses {expected.losses}, {found.losses}")
    assert agrees(expected, found)


# Layouts


ODD = {"heads": 3, "width": 15, "context": 27}  # rows and parameters begin at odd addresses
# Two rows of queries, and 48 keys: so few results, of so many terms, CuPy's own sums would add in other orders.
SHORT = {"attention": "tiled", "attention_tile": 48, "global_batch": 8, "micro_batch": 1, "context": 50}
PRECISE = ("tp=2,sp=1", "pp=2,recompute=full", "zero=3,dp=2", "dp=4,ep=2,zero=2")
CASES = {  # what it is about: changes of the config, layouts
    **{name: ({"precision": name}, PRECISE) for name in ("bf16", "fp16", "fp8")},
    "odd": (ODD | {"sequence_chunks": 3}, ("tp=3,sp=1", "zero=3,dp=3", "cp=3")),
    "a router at an odd address": (ODD | {"experts": 6}, ("zero=3,dp=2", "zero=1,dp=3")),
    "a short last tile": (SHORT, ("tp=4", "tp=2,sp=1")),
    "short tiles of chunks": (SHORT | {"context": 100, "sequence_chunks": 2}, ("cp=2,cp_kind=ulysses",)),
    "shared keys": (LLAMA, ("tp=4,sp=1", "zero=3,dp=2", "pp=2")),
    "shared keys in a ring": (LLAMA | {"sequence_chunks": 4}, ("cp=2,cp_kind=zigzag", "cp=2,tp=4")),
    "every layout": ({}, ("dp=1", *map(str, LAYOUTS))),  # and one process, again
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name in CASES for text in CASES[name][1]])
def test_it_has_the_bits_of_one_process(few_ranks, one_process, name, text):
    """The run has the sequence chunks and the experts that its layout needs."""
    layout = Layout.parse(text)
    experts = 0 if layout.ep == 1 else 10 if layout.ep == 5 else 8
    needs = {"sequence_chunks": 4 if layout.cp > 1 else 1, "experts": experts}
    config = replace(CONFIG, **needs | CASES[name][0])
    expected = one_process(config)
    found = run(few_ranks(layout.world_size), config, layout, DIGESTS)
    print(f"losses {found.losses}, {found.fingerprint[:16]}")
    assert agrees(expected, found), first_difference(expected, found, ranks=lambda n: nullcontext(few_ranks(n)))
