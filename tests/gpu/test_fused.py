"""Every line of C has the bits of the lines of NumPy that it stands for."""

import importlib.metadata
import subprocess
import sys

import numpy as np
import pytest

from minidist import backend
from minidist.course.answers import ROOT
from minidist.nn import functional, kernels
from minidist.nn.optim import clip, optimizers
from minidist.nn.precision import formats

COMPILE = ROOT / "tests" / "gpu" / "standin" / "compile.py"
LIMIT = 300  # seconds
SHAPES = [(0,), (1,), (3, 5, 7)]
TINY = float(np.finfo(np.float32).tiny)  # the smallest normal number; a GPU takes those below it for 0
SPECIAL = [0.0, -0.0, TINY, -TINY, 1e-20, 1.0, -1.0, 448.0, 464.0, 480.0, 57344.0, 65519.0, 65520.0, 1e30, 3.4e38]
SPECIAL += [np.inf, -np.inf, np.nan]


def numbers(shape, dtype=np.float32, seed: int = 0) -> np.ndarray:
    """Return numbers of all magnitudes that training has, and of both signs."""
    random = np.random.default_rng(seed)
    return (random.standard_normal(shape) * 10.0 ** random.integers(-6, 3, shape)).astype(dtype)


@pytest.fixture
def both(standin, compiler):
    """``both(function, *arguments)``: what it returns and what its array arguments become, on each of the two."""

    def on(name: str, function, arguments):
        backend.use(name)
        try:
            own = [backend.from_host(one.copy()) if isinstance(one, np.ndarray) else one for one in arguments]
            with np.errstate(all="ignore"):
                found = function(*own)
            arrays = [*(found if isinstance(found, tuple) else (found,)), *own]
            hosts = [backend.to_host(one) for one in arrays if hasattr(one, "dtype")]
            return [(host.dtype, host.shape, host.tobytes()) for host in hosts]
        finally:
            backend.use("numpy")

    def compared(function, *arguments) -> None:
        assert on("cupy", function, arguments) == on("numpy", function, arguments)
        assert sum(standin.launches.values()) > 0

    return compared


def test_elementwise_functions_and_the_optimizer(both):
    constants = True, functional.LINEAR, functional.CUBIC, 2 * functional.LINEAR, 6 * functional.CUBIC
    for shape in SHAPES:
        both(lambda x: functional._gelu(x, *constants), numbers(shape))
        both(lambda total: kernels.rounded(total, np.float32), numbers(shape, np.float64))
        for weight_decay in (0.0, 0.1):
            settings = 3, 1e-3, (0.9, 0.95), 1e-8, weight_decay
            arrays = *(numbers(shape, seed=seed) for seed in range(3)), np.abs(numbers(shape, seed=3))
            both(optimizers.adamw_update, *arrays, *settings)
    for dtype in (np.float32, np.float64):
        both(lambda gradient: clip._squares_on_grid(gradient, 2.0**20), numbers(1001, dtype))


def test_layer_norm(both):
    for rows in (0, 1, 15):
        x, total, inverse_std = numbers((rows, 7)), numbers((rows, 1), seed=1), np.abs(numbers((rows, 1), seed=2))
        gain, bias, projection = numbers(7, seed=3), numbers(7, seed=4), numbers((rows, 1), seed=5)
        both(functional._centred, x, total, 7)
        both(functional._inverse_std, inverse_std, 7, 1e-5)
        both(lambda x, *others: functional._normalized(x.copy(), *others), x, inverse_std, gain, bias)
        others = total, projection, 7, numbers((rows, 7), seed=6), inverse_std
        both(lambda x, *others: functional._grad_of_normalized(x.copy(), *others), x, *others)


def test_sums_over_heads_and_columns_also_of_views(both):
    for shape in ((heads, *shape) for heads in (1, 2, 5) for shape in SHAPES):
        both(functional.sum_over_heads, numbers(shape))
        both(lambda values: functional.sum_over_heads(values[..., ::-1]), numbers(shape))
    for shape in [(0, 3, 2), (2, 0, 3), (1, 1, 1), (2, 40, 3), (3, 5, 17, 7)]:
        both(kernels.column_sums, numbers(shape))
        both(lambda values: kernels.column_sums(values[..., ::-1, ::2]), numbers(shape))


def test_formats(both):
    """All codes, there and back; halves between neighbours; special numbers."""
    for chosen in formats.FORMATS.values():
        codes = np.arange(1 << chosen.bits, dtype=chosen.dtype)
        with np.errstate(all="ignore"):
            values = chosen.decode(codes)
            halves = np.sort(values[np.isfinite(values)])
            halves = (halves[1:] + (halves[:-1] - halves[1:]) / 2).astype(np.float32)
        for given in (values, halves, numbers(1000), np.array(SPECIAL, np.float32), np.float32([]), numbers((3, 5)).T):
            normal = given[~((np.abs(given) < TINY) & (given != 0))] if given.ndim == 1 else given
            both(chosen.encode, normal)
            both(chosen.round, normal)
        if chosen.bias != 127:  # a bfloat16's subnormal numbers are those of float32
            both(chosen.decode, codes)


def test_nvidias_compiler_takes_every_kernel_and_joins_no_product_and_sum():
    needed = {"cupy-cuda12x", "nvidia-cuda-nvrtc-cu12", "nvidia-cuda-runtime-cu12"}
    if missing := needed - {one.name for one in importlib.metadata.distributions()}:
        pytest.skip(f"not installed: {missing}")
    result = subprocess.run([sys.executable, COMPILE], capture_output=True, text=True, timeout=LIMIT)
    assert result.returncode == 0, result.stdout + result.stderr
    kernels = 2 * 17 + 2 * 8  # contiguous and strided; those for many arrays: inputs are arrays or numbers
    assert result.stdout.count(": 0 fused multiply-adds") == 2 * kernels  # for two GPUs
