"""Graders of chapter 0, against real arrays, counted products and loads, a ring that really runs, and known figures."""

from fractions import Fraction
from itertools import pairwise
from math import isclose

import numpy as np
import pytest

from minidist.analysis.replay import flights

pytestmark = pytest.mark.answers("ch00_walls")

H100_PEAK, H100_BANDWIDTH, H100_MEMORY = 989e12, 3350e9, 80 * 10**9  # FLOP/s in BF16, bytes/s, bytes
DAY, YEAR = 24 * 3600, 365 * 24 * 3600  # seconds
ROUNDING = 1e-9  # relative; a handful of float64 operations in any order stays far below


def shown(name: str, args: tuple) -> str:
    """The call, as you would type it."""
    return f"{name}({', '.join(map(argument, args))})"


def argument(value) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:_}"
    return f"{value:.12g}" if isinstance(value, float) and value > 1e5 else repr(value)


def check(student, name: str, cases: dict[tuple, float], rel: float = ROUNDING, because: str = "") -> None:
    """Assert that the function returns the right number for each tuple of arguments."""
    for args, found in zip(cases, student.call_each(name, list(cases)), strict=True):
        right = isinstance(found, int | float | np.number) and isclose(found, cases[args], rel_tol=rel)
        assert right, f"{shown(name, args)}: expected {plainly(cases[args])}{because}, got {plainly(found)}"


def plainly(value) -> str:
    """A number in readable form: integers below 10^15 with all their digits."""
    if not isinstance(value, int | float | np.number):
        return repr(value)
    return f"{value:,.0f}" if value == round(value, 0) and abs(value) < 1e15 else f"{value:,.10g}"


# 0.1

DTYPES = {  # NumPy has no bf16: uint16 has its width
    "mixed": {"parameters": ["u2"], "gradients": ["u2"], "optimizer": ["f4", "f4", "f4"]},
    "fp32": {"parameters": ["f4"], "gradients": ["f4"], "optimizer": ["f4", "f4"]},
    "bf16": {"parameters": ["u2"], "gradients": ["u2"], "optimizer": ["f4", "f4"]},
}


def real_bytes(parameters: int, recipe: str) -> dict[str, int]:
    """Bytes per bucket, measured on real arrays."""
    return {
        bucket: sum(np.empty(parameters, dtype).nbytes for dtype in dtypes) for bucket, dtypes in DTYPES[recipe].items()
    }


def bytes_of_a_model() -> tuple[int, dict[str, int]]:
    """Number of parameters of a small float32 GPT after one backward pass, and the bytes of its arrays."""
    from minidist.nn.gpt import GPT, GPTConfig
    from minidist.nn.optim.optimizers import AdamW, average_gradients

    model = GPT(GPTConfig(layers=1, heads=2, width=16, context=8))
    parameters = list(model.parameters())
    optimizer = AdamW(parameters, lr=1e-3)
    tokens = np.arange(8)[None]  # (1, 8)
    model(tokens, tokens).backward()
    average_gradients(parameters, 1)
    return sum(p.size for p in parameters), {
        "parameters": sum(p.data.nbytes for p in parameters),
        "gradients": sum(p.grad.nbytes for p in parameters),
        "optimizer": sum(array.nbytes for array in optimizer.state().values()),
    }


@pytest.mark.task(
    "0.1",
    points=2,
    kind="worksheet",
)
class TestMemoryBuckets:
    """memory_buckets, devices_needed: bytes in three buckets, and how many GPUs hold them"""

    @pytest.mark.parametrize("recipe", list(DTYPES))
    def test_like_real_arrays(self, student, recipe):
        for parameters in (1, 1000, 12_345):
            found = student.call("memory_buckets", parameters, recipe)
            self.same(found, real_bytes(parameters, recipe), parameters, recipe)

    def test_like_a_real_model(self, student):
        parameters, expected = bytes_of_a_model()
        self.same(student.call("memory_buckets", parameters, "fp32"), expected, parameters, "fp32")

    def test_70_billion(self, student):
        for recipe, expected in (("mixed", 1120), ("fp32", 1120), ("bf16", 840)):
            found = student.call("memory_buckets", 70 * 10**9, recipe)
            total = sum(found.values()) / 1e9
            assert total == expected, f"70 billion parameters, {recipe}: expected {expected:,} GB, got {total:,.0f} GB"

    def test_devices(self, student):
        billion, big = 10**9, 80 * 10**9
        cases = {
            (70 * billion, "mixed", H100_MEMORY): 14,  # exactly full
            (70 * billion + 1, "mixed", H100_MEMORY): 15,
            (70 * billion, "bf16", H100_MEMORY): 11,  # 10.5
            (1, "mixed", big): 1,
            (5, "fp32", 16): 5,
            (5, "bf16", 16): 4,  # 3.75
            (405 * billion, "mixed", H100_MEMORY): 81,
        }
        check(student, "devices_needed", cases, rel=0)

    def same(self, found, expected: dict, parameters: int, recipe: str) -> None:
        call = shown("memory_buckets", (parameters, recipe))
        assert isinstance(found, dict), f"{call}: expected a dict of three numbers, got {found!r}"
        assert found.keys() == expected.keys(), (
            f"{call}: expected the keys {', '.join(expected)}, got {', '.join(map(str, found)) or 'none'}"
        )
        for bucket, nbytes in expected.items():
            assert found[bucket] == nbytes, (
                f"{call}: {bucket}: expected {nbytes:,} bytes, as real arrays have, got {plainly(found[bucket])}"
            )


# 0.2


def counted_flops(widths: list[int], tokens: int) -> int:
    """FLOPs of all matrix products in training a chain of linear layers, product by product."""
    count = 0
    for inputs, outputs in pairwise(widths):
        count += product_flops(tokens, inputs, outputs)  # forward: x @ w
        count += product_flops(tokens, outputs, inputs)  # backward, for the previous layer: gradient @ w.T
        count += product_flops(inputs, tokens, outputs)  # backward, for the weight: x.T @ gradient
    return count


def product_flops(m: int, k: int, n: int) -> int:
    """(m, k) @ (k, n): k multiplications and k additions per element of the result."""
    return m * n * (k + k)


@pytest.mark.task(
    "0.2",
    points=2,
    kind="worksheet",
)
class TestCompute:
    """training_flops, gpu_years, days_on_cluster: 6 N D FLOPs, and how long they take"""

    def test_flops_like_counted_products(self, student):
        cases = {}
        for widths in ([1, 1], [8, 8], [3, 5, 7], [16, 64, 64, 16]):
            parameters = sum(a * b for a, b in pairwise(widths))
            for tokens in (1, 10, 999):
                cases[parameters, tokens] = counted_flops(widths, tokens)
        check(student, "training_flops", cases, because=", the count over all matrix products of a real model")

    def test_llama_3(self, student):
        (flops,) = student.call_each("training_flops", [(405e9, 15e12)])
        assert isclose(flops, 3.645e25, rel_tol=ROUNDING), (
            f"405 billion parameters on 15 trillion tokens: expected 3.645e25 FLOPs, got {plainly(flops)}"
        )
        (years,) = student.call_each("gpu_years", [(3.645e25, H100_PEAK, 1.0)])
        assert round(years, -1) == 1170, f"on one H100 at its peak: expected about 1,170 years, got {plainly(years)}"

    def test_years(self, student):
        cases = {
            (flops, peak, utilisation): float(Fraction(flops) / (Fraction(peak) * Fraction(utilisation)) / YEAR)
            for flops in (1.0, 3.645e25, 6e15)
            for peak in (1.0, H100_PEAK, 312e12)
            for utilisation in (1.0, 0.5, 0.4, 0.01)
        }
        # A year of 365.25 days is 0.07 % longer, and accepted.
        check(student, "gpu_years", cases, rel=1e-3)

    def test_days(self, student):
        cases = {
            (flops, gpus, peak, utilisation): float(Fraction(flops) / Fraction(peak) / Fraction(utilisation) / gpus)
            / DAY
            for flops in (3.645e25, 6e15)
            for gpus in (1, 8, 16384)
            for peak in (H100_PEAK, 312e12)
            for utilisation in (1.0, 0.4, 0.35)
        }
        check(student, "days_on_cluster", cases)

    def test_the_claim_of_17_days(self, student):
        """The claim of 17 days at about 40 % utilisation: 17 is at 100 %."""
        inputs = [(3.645e25, 24576, H100_PEAK, utilisation) for utilisation in (1.0, 0.4)]
        at_peak, at_40 = student.call_each("days_on_cluster", inputs)
        assert (round(at_peak), round(at_40)) == (17, 43), (
            f"Llama 3 405B on 24,576 H100s: expected 17 days at their peak and 43 at 40 %, got {at_peak:.1f} and "
            f"{at_40:.1f}. (You may read of 17 days at 40 %; that claim is wrong.)"
        )


# 0.3


def counted_intensity(m: int, k: int, n: int, dtype: str) -> float:
    """Count from the bytes of real arrays, and two FLOPs for each of the k terms of each element of the result."""
    a, b, c = np.empty((m, k), dtype), np.empty((k, n), dtype), np.empty((m, n), dtype)
    return 2 * k * c.size / (a.nbytes + b.nbytes + c.nbytes)


@pytest.mark.task(
    "0.3",
    points=2,
    kind="worksheet",
)
class TestRoofline:
    """matmul_intensity, attainable_flops, ridge: whether arithmetic or memory is the limit"""

    def test_intensity_like_real_arrays(self, student):
        sizes = [(1, 1, 1), (4, 4, 4), (64, 64, 64), (1, 1000, 500), (500, 1000, 1), (3, 5, 7), (128, 1, 32)]
        cases = {
            (m, k, n, np.dtype(dtype).itemsize): counted_intensity(m, k, n, dtype)
            for m, k, n in sizes
            for dtype in ("u1", "u2", "f4", "f8")
        }
        check(student, "matmul_intensity", cases)

    def test_square_matrices_in_bf16(self, student):
        check(student, "matmul_intensity", {(n, n, n, 2): n / 3 for n in (1, 30, 886, 4096, 10**6)})

    def test_attainable(self, student):
        cases = {}
        for peak, bandwidth in ((H100_PEAK, H100_BANDWIDTH), (312e12, 2039e9), (1.0, 1.0), (1e9, 4e9)):
            for flops, nbytes in ((1e6, 6e6), (1e12, 1e9), (1e15, 1e10), (295e9, 1e9), (1.0, 64.0)):
                seconds = max(flops / peak, nbytes / bandwidth)  # computing and moving at the same time
                cases[flops / nbytes, peak, bandwidth] = flops / seconds
        check(student, "attainable_flops", cases)

    def test_ridge(self, student):
        cases = {(H100_PEAK, H100_BANDWIDTH): H100_PEAK / H100_BANDWIDTH, (125e12, 900e9): 1250 / 9, (3.0, 4.0): 0.75}
        check(student, "ridge", cases)
        (found,) = student.call_each("ridge", [(H100_PEAK, H100_BANDWIDTH)])
        assert round(found) == 295, f"ridge of an H100: expected 295 FLOPs per byte, got {found:.0f}"


# 0.4


def counted_loads(n: int, tile: int) -> int:
    """Elements of A and B that a tiled product loads: counted in a real product, which is checked against A @ B."""
    a, b = np.random.default_rng(n).integers(-9, 10, (2, n, n))
    c, loaded = np.zeros((n, n), int), 0
    for i in range(0, n, tile):
        for j in range(0, n, tile):
            for k in range(0, n, tile):
                tile_a, tile_b = a[i : i + tile, k : k + tile], b[k : k + tile, j : j + tile]
                loaded += tile_a.size + tile_b.size
                c[i : i + tile, j : j + tile] += tile_a @ tile_b
    assert (c == a @ b).all()
    return loaded


@pytest.mark.task(
    "0.4",
    points=2,
    kind="worksheet",
)
class TestTiledTraffic:
    """tiled_traffic: the loads that a tile size causes"""

    def test_tiles_that_divide(self, student):
        cases = {(n, tile): counted_loads(n, tile) for n, tile in ((1, 1), (4, 1), (4, 2), (4, 4), (24, 3), (24, 8))}
        check(student, "tiled_traffic", cases, rel=0, because=", the count of a real loop")

    def test_tiles_that_do_not_divide(self, student):
        pairs = ((3, 2), (5, 2), (5, 3), (5, 4), (7, 3), (10, 4), (20, 7), (20, 19), (23, 8))
        cases = {(n, tile): counted_loads(n, tile) for n, tile in pairs}
        check(student, "tiled_traffic", cases, rel=0, because=", the count of a real loop")

    def test_tiles_larger_than_the_matrix(self, student):
        cases = {(n, tile): counted_loads(n, tile) for n, tile in ((1, 2), (3, 4), (5, 1000), (8, 9))}
        check(student, "tiled_traffic", cases, rel=0, because=", the count of a real loop")

    def test_large(self, student):
        check(student, "tiled_traffic", {(4096, 128): 2 * 4096**3 // 128, (4096, 64): 2 * 4096**3 // 64}, rel=0)


# 0.5


def recorded_ring(world, elements):
    import minidist as md
    from minidist import trace

    trace.start()
    md.all_reduce(np.ones(elements, np.float32), group=world, algorithm="ring")
    return trace.stop()


@pytest.mark.task(
    "0.5",
    points=3,
    kind="worksheet",
)
class TestLinks:
    """nvlink_bandwidth, infiniband_bandwidth, all_reduce_seconds, step_seconds, least_tokens: what the links cost"""

    H100S = (1024, 50e9, H100_PEAK, 0.4)  # GPUs, InfiniBand's bytes/s, peak, utilisation

    def test_units_of_data_sheets(self, student):
        check(student, "nvlink_bandwidth", {(900e9,): 450e9, (600e9,): 300e9, (1.0,): 0.5})
        check(student, "infiniband_bandwidth", {(400e9,): 50e9, (200e9,): 25e9, (1.0,): 0.125})

    def test_all_reduce_like_a_real_ring(self, student, warm_ranks):
        """Against a recorded run of the library's ring, replayed on links without latency."""
        cases = {}
        for size in (1, 2, 3, 5):
            logs = warm_ranks(size).run(recorded_ring, 840, timeout=10)
            for bandwidth in (50e9, 1.0):
                found = flights(logs, lambda n, bandwidth=bandwidth: n / bandwidth)
                cases[840 * 4, size, bandwidth] = max((flight.end for flight in found), default=0.0)
        check(student, "all_reduce_seconds", cases, because=", the time of a real ring")

    def test_70_billion_on_1024_gpus(self, student):
        cases = {(140e9, 1024, 50e9): 5.59453125, (140e9, 8, 450e9): 140 / 450 * 1.75}
        check(student, "all_reduce_seconds", cases)

    def test_step(self, student):
        cases = {
            (compute, communication, overlap): max(compute, communication) if overlap else compute + communication
            for compute, communication in ((4.0, 5.5), (5.5, 4.0), (1.0, 1.0), (0.0, 2.0), (3.0, 0.0))
            for overlap in (True, False)
        }
        check(student, "step_seconds", cases)

    def test_least_tokens(self, student):
        inputs = [
            (parameters, each, *cluster)
            for parameters in (10**6, 70 * 10**9)
            for each in (2, 4, 8)
            for cluster in (self.H100S, (8, 450e9, H100_PEAK, 0.4), (3, 64e9, 312e12, 0.55), (2, 1e9, 1e12, 1.0))
        ]
        for args, found in zip(inputs, student.call_each("least_tokens", inputs), strict=True):
            self.judge(args, found)

    def test_exactly_enough(self, student):
        # Powers of two, so that no operation rounds: 2 * (2-1)/2 * 2 * 2^20 bytes take as long as 4096 tokens.
        args = (2**20, 2, 2, 2.0**20, 3 * 2.0**32, 1.0)
        self.judge(args, student.call("least_tokens", *args))

    def test_one_gpu(self, student):
        args = (10**6, 2, 1, 50e9, H100_PEAK, 0.4)
        found = student.call("least_tokens", *args)
        assert found == 0, (
            f"{shown('least_tokens', args)}: expected 0, since one GPU has nothing to send, got {plainly(found)}"
        )

    def judge(self, args: tuple, found) -> None:
        """The tokens must suffice, and one fewer must not: in exact fractions."""
        call = shown("least_tokens", args)
        assert isinstance(found, int | float | np.number) and found == round(found, 0), (
            f"{call}: expected an integer, got {plainly(found)}"
        )
        parameters, each, gpus, bandwidth, peak, utilisation = map(Fraction, args)
        sending = 2 * (gpus - 1) * parameters * each / gpus / bandwidth
        one_token = 6 * parameters / (peak * utilisation)
        assert int(found) * one_token >= sending, (
            f"{call}: {plainly(found)} are too few: they take {float(int(found) * one_token):.4g} s to compute, and "
            f"the all-reduce takes {float(sending):.4g} s"
        )
        assert (int(found) - 1) * one_token < sending, (
            f"{call}: {plainly(found)} are too many: one token fewer suffices"
        )
