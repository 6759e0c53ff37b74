"""Methods of compression: what they send, what they leave out, and that nothing is lost between the two."""

import subprocess
import sys
from fractions import Fraction
from functools import partial
from itertools import pairwise
from math import ceil, log2, prod, sqrt
from pathlib import Path

import numpy as np
import pytest

from minidist.nn.precision.formats import BFLOAT16
from minidist.nn.random import generator
from minidist.parallel.compression.feedback import Residuals, feed_back, grid_unit, largest, to_grid
from minidist.parallel.compression.methods import read_method
from minidist.parallel.compression.one_bit import one_bit
from minidist.parallel.compression.power_sgd import orthonormal, power_sgd_step
from minidist.parallel.compression.quantized import int8_unit, stochastic_round
from minidist.parallel.compression.top_k import top_k

LIMIT = 60
METHODS = ["bf16", "int8", "onebit", "topk:0.1", "topk:1", "powersgd:1", "powersgd:3"]
FEEDING_BACK = METHODS[2:]
SHAPES = {"head": (3, 7, 5), "matrix": (11, 6), "vector": (13,), "one": (1,), "none": (0,), "thin": (9, 1)}
SIZE = sum(map(prod, SHAPES.values()))
TINY = 5e-324  # the smallest float64 above 0


def random(seed: int, shape=SIZE) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def gradients(kind: str, steps: int, rank: int) -> list[np.ndarray]:
    """Of a bucket with SHAPES, one for each step, different on each rank."""
    made = [random(100 * rank + step) for step in range(steps)]
    if kind == "zeros":
        return [np.zeros(SIZE)] * steps
    if kind == "denormals":
        return [np.rint(4 * values) * TINY for values in made]
    if kind == "spread":
        return [values * 2.0 ** np.random.default_rng(rank).integers(-60, 60, SIZE) for values in made]
    if kind == "float32":
        return [values.astype(np.float32).astype(np.float64) for values in made]
    if kind == "growing":  # each step a thousand times the last one
        return [values * 1000.0**step for step, values in enumerate(made)]
    return made


def run_hook(world, text, feedback, kind, steps, algorithm="auto", dtype=np.float64, shapes=SHAPES, buckets=None):
    """What a hook leaves in its buckets, step by step, and the books that feed_back keeps for it."""
    from minidist import overrides
    from minidist.nn.layers import Parameter
    from minidist.parallel.compression.feedback import feed_back
    from minidist.parallel.compression.hook import compressing
    from minidist.parallel.data import Bucket

    hook = compressing(text, feedback, seed=5)
    books, sums = [], []

    def noted(gradient, residual, send):
        before = gradient.copy(), residual.copy()
        sent, left = feed_back.__wrapped__(gradient, residual, send)
        books.append((*before, sent.copy(), left.copy()))
        return sent, left

    overrides.override({"feed_back": noted})
    try:
        for step, values in enumerate(gradients(kind, steps, world.rank)):
            made = {name: Parameter(shape) for name, shape in shapes.items()}
            for name, parameter in made.items():
                parameter.name = name
            groups = buckets[step % len(buckets)] if buckets else [list(shapes)]
            works, start = [], 0
            step_buckets = [Bucket([made[name] for name in names], dtype) for names in groups]
            for bucket in step_buckets:
                bucket.buffer[:] = values[start : start + bucket.buffer.size]
                start += bucket.buffer.size
            works = [hook(bucket, world, algorithm) for bucket in step_buckets]
            for work in works:
                work.wait()
            sums.append(np.concatenate([bucket.buffer for bucket in step_buckets]))
    finally:
        overrides.override({})
    residuals = {} if hook.residuals is None else hook.residuals.of
    return sums, books, residuals


def on_ranks(cluster, *arguments, **settings) -> list:
    """What ``run_hook`` returns on each rank."""
    return cluster.run(partial(run_hook, **settings), *arguments, timeout=LIMIT)


def exact(values) -> list[Fraction]:
    return [Fraction(float(value)) for value in values.reshape(-1)]


# ── what one rank sends ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("unit", [1.0, 0.125, 0.3])
def test_stochastic_rounding_is_right_in_the_mean(unit):
    """A value between two multiples has a variance of a quarter at most. Six standard deviations of the mean bound it;
    with exact multiples there is nothing to round."""
    values, draws = np.array([0.0, 0.1, -0.1, 0.5, 1.0, -2.75, 1e-9, 3.999]), 20_000
    rng = generator("test", 1)
    drawn = np.stack([stochastic_round(values, unit, rng) for _ in range(draws)])
    multiples = np.rint(drawn / unit)
    assert np.array_equal(multiples * unit, drawn)
    assert (np.abs(drawn - values) < unit * (1 + 1e-12)).all()
    assert (np.abs(drawn.mean(axis=0) - values) <= 6 * unit / 2 / sqrt(draws)).all()
    assert (drawn[:, 0] == 0).all()


def test_stochastic_bfloat16_goes_to_the_two_neighbours():
    method = read_method("bf16")
    values = np.concatenate([random(1, 500), random(2, 500) * 2.0 ** np.arange(-140, 110, 0.5), [0.0, 2.0**-140]])
    drawn = np.stack([sent(method, values, generator("test", i)) for i in range(2000)])
    for row in drawn[:3]:
        assert np.array_equal(BFLOAT16.round(row.astype(np.float32)), row)  # they are bfloat16
    spacing = np.ldexp(1.0, np.maximum(np.frexp(values)[1] - 8, -133))
    assert (np.abs(drawn - values) < spacing).all()
    assert (np.abs(drawn.mean(axis=0) - values) <= 6 * spacing / 2 / sqrt(len(drawn))).all()
    kept = BFLOAT16.round(values.astype(np.float32)).astype(np.float64)
    assert np.array_equal(sent(method, kept, generator("test")), kept)


@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e-44, 1e30])
def test_int8_is_right_in_the_mean(scale):
    method, values = read_method("int8"), random(1, 50) * scale
    drawn = np.stack([sent(method, values, generator("test", i)) for i in range(4000)])
    unit = float(int8_unit(largest(values)))
    assert largest(drawn) <= 127 * unit
    assert (np.abs(drawn.mean(axis=0) - values) <= 6 * unit / 2 / sqrt(len(drawn))).all()


@pytest.mark.parametrize("size", [0, 1, 7])
def test_int8_of_zeros(size):
    assert np.array_equal(sent(read_method("int8"), np.zeros(size), generator("test")), np.zeros(size))


def test_127_units_reach_the_largest_value_and_not_by_much():
    for value in np.abs(random(3, 2000)) * 10.0 ** np.arange(-20, 20, 0.02):
        unit = float(int8_unit(value))
        assert value <= 127 * unit <= value * (1 + 2**-22)


def sent(method, values, rng, dtype=np.float64):
    """What the message for some values stands for."""
    arrays = method.encode(values, np.dtype(dtype), rng)
    message = np.concatenate([array.reshape(-1).view(np.uint8) for array in arrays])
    assert message.size == method.message_bytes(values.size, np.dtype(dtype).itemsize)
    return method.decode(message, values.size, np.dtype(dtype))


@pytest.mark.parametrize("size", [1, 2, 7, 100])
def test_top_k_takes_the_largest_and_of_equal_ones_the_first(size):
    for seed in range(20):
        values = np.random.default_rng(seed).integers(-3, 4, size) * 1.5  # many are equal
        order = np.argsort(-np.abs(values), kind="stable")
        for k in {0, 1, size // 2, size}:
            indices, kept = top_k(values, k)
            assert indices.dtype == np.int32 and indices.tolist() == sorted(order[:k].tolist())
            assert np.array_equal(kept, values[indices])


def test_top_k_sends_what_is_not_a_number():
    """Or training would go on as if nothing had happened."""
    indices, kept = top_k(np.array([1.0, np.nan, 5.0, -np.inf, np.nan]), 2)
    assert indices.tolist() == [1, 3] and np.isnan(kept[0])
    assert top_k(np.array([]), 0)[0].size == 0


def test_a_share_is_rounded_up_and_is_a_decimal():
    for text, size, k in [("topk:0.07", 100, 7), ("topk:0.001", 10, 1), ("topk:1", 13, 13), ("topk:1e-3", 2001, 3)]:
        assert read_method(text).count(size) == k
    assert read_method("topk:0.5").count(0) == 0


def test_one_bit_is_the_sign_and_the_mean_magnitude():
    negative, scale = one_bit(np.array([3.0, -1.0, 0.0, -4.0]))
    assert negative.tolist() == [False, True, False, True] and scale == 2
    assert one_bit(np.zeros(0))[1] == 0
    values = random(4, 77)
    found = sent(read_method("onebit"), values, generator("test"))
    assert np.array_equal(found < 0, values < 0)
    assert np.abs(found) == pytest.approx(np.full(77, np.abs(values).mean()), rel=1e-13)


# ── low rank ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def alone(array) -> None:
    """The all-reduce of one rank."""


@pytest.mark.parametrize(("m", "n", "rank"), [(12, 7, 1), (7, 12, 3), (40, 30, 8), (5, 5, 5), (1, 6, 1)])
def test_power_sgd_is_exact_up_to_its_rank(m, n, rank):
    """Of a matrix of rank r, P spans all columns. What float64 loses grows with M Q's condition, here below 1e6."""
    matrix = random(1, (m, rank)) @ random(2, (rank, n))
    p, q = power_sgd_step(matrix, random(3, (n, rank)), alone)
    assert p.shape == (m, rank) and q.shape == (n, rank)
    assert np.abs(p.T @ p - np.eye(rank)).max() < 1e-14 * rank
    assert np.abs(p @ q.T - matrix).max() < 2**-52 * 1e6 * np.abs(matrix).max()


def test_power_sgd_comes_to_the_best_of_its_rank():
    """With warm start. From new random directions each time it stays far from it (pytorch pull request 50283)."""
    left, right = np.linalg.qr(random(1, (40, 30)))[0], np.linalg.qr(random(2, (30, 30)))[0]
    spectrum = 0.9 ** np.arange(30)
    matrix, rank = left * spectrum @ right.T, 4
    best = sqrt((spectrum[rank:] ** 2).sum())
    q = random(3, (30, rank))
    errors, cold = [], []
    for step in range(100):
        p, q = power_sgd_step(matrix, q, alone)
        errors.append(np.linalg.norm(matrix - p @ q.T))
        p, fresh = power_sgd_step(matrix, random(step, (30, rank)), alone)
        cold.append(np.linalg.norm(matrix - p @ fresh.T))
    assert errors[0] > 1.05 * best and errors[-1] < 1.001 * best
    assert all(later <= earlier * (1 + 1e-12) for earlier, later in pairwise(errors))
    assert min(cold) > 1.03 * best


def test_orthonormal_columns():
    for columns in (random(1, (20, 6)), random(1, (6, 6)), random(2, (9, 3)) * [1e-30, 1, 1e30]):
        basis = orthonormal(columns)
        assert np.abs(basis.T @ basis - np.eye(basis.shape[1])).max() < 1e-14
        columns /= np.linalg.norm(columns, axis=0)
        assert np.abs(basis @ (basis.T @ columns) - columns).max() < 1e-13  # it spans them
    nearly = random(3, (50, 1)) + 1e-9 * random(4, (50, 5))  # all but the same: once would leave them oblique
    basis = orthonormal(nearly)
    assert np.abs(basis.T @ basis - np.eye(5)).max() < 1e-14
    assert np.array_equal(orthonormal(np.zeros((4, 2))), np.zeros((4, 2)))
    twice = np.repeat(random(5, (8, 1)), 3, axis=1)
    basis = orthonormal(twice)
    assert (basis[:, 1:] == 0).all() and np.linalg.norm(basis[:, 0]) == pytest.approx(1)


@pytest.mark.long
def test_power_sgd_is_what_torch_does(scratch):
    """One step of torch's own hook, from the state in which the steps before have left it."""
    pytest.importorskip("torch")
    script = Path(__file__).with_name("torch_power_sgd.py")
    subprocess.run([sys.executable, script, scratch], check=True, timeout=300)  # to import torch takes a while
    steps = np.load(scratch / "steps.npz")
    compressed = [int(name.removeprefix("q.")) for name in steps if name.startswith("q.")]
    assert len(compressed) >= 3
    for step in compressed:
        gradient = steps[f"y.{step}"].T @ steps[f"x.{step}"]
        q = steps[f"q.{step}"].reshape(gradient.shape[1], -1)

        def send(corrected, shape=gradient.shape, q=q):
            p, new_q = power_sgd_step(corrected.reshape(shape), q, alone)
            return (p @ new_q.T).reshape(-1)

        found, left = feed_back(gradient.reshape(-1), steps[f"error.{step}"].reshape(-1), send)
        assert np.allclose(found, steps[f"gradient.{step}"].reshape(-1), rtol=0, atol=1e-10)
        assert np.allclose(left, steps[f"left.{step}"].reshape(-1), rtol=0, atol=1e-10)


# ── the books ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("scale", [0.0, TINY, 1e-310, 1e-300, 1.0, 1e300])
def test_a_grid_loses_half_a_unit_at_most_and_makes_differences_exact(scale):
    values = random(1, 200) * scale * 2.0 ** -np.arange(0, 100, 0.5)
    unit = grid_unit(largest(values), values.size)
    rounded = to_grid(values, unit)
    assert all(abs(a - b) <= Fraction(unit) / 2 for a, b in zip(exact(rounded), exact(values), strict=True))
    assert all(value / Fraction(unit) % 1 == 0 for value in exact(rounded))
    assert np.array_equal(to_grid(rounded, unit), rounded)
    if scale:
        assert unit <= max(TINY, 2.0**-50 * largest(values) * sqrt(values.size))
    difference = rounded - rounded[::-1]
    assert exact(difference) == [a - b for a, b in zip(exact(rounded), exact(rounded[::-1]), strict=True)]


@pytest.mark.parametrize("seed", range(20))
def test_the_unit_of_the_books_leaves_room_for_every_sum(seed):
    """It is the least power of two not below 2^-50 of the bound: sums of two multiples are below 2^52 of it."""
    random = np.random.default_rng(seed)
    size = int(random.integers(1, 2000))
    residuals, seen = Residuals(on_grid=True), []
    for _ in range(3):
        gradient = random.standard_normal(size) * 2.0 ** random.uniform(-60, 60)
        bound = Fraction(largest(gradient) + largest(residuals.of.get("w", np.zeros(1)))) * Fraction(sqrt(size))
        residuals.send("w", gradient, lambda corrected: seen.append(corrected) or np.zeros_like(corrected))
        least = Fraction(2) ** ceil(log2(bound * Fraction(2) ** -50))
        assert all(value / least % 1 == 0 for value in exact(seen[-1]))
        assert size < 9 or any(value / (least * 2) % 1 for value in exact(seen[-1]))  # and no coarser


@pytest.mark.parametrize("kind", ["normal", "zeros", "denormals", "spread", "float32", "growing"])
@pytest.mark.parametrize("text", FEEDING_BACK)
def test_sent_and_residual_are_gradient_and_old_residual(ranks, text, kind):
    """In real numbers: no bit is lost. (A sum of elements as they are is exact for numbers of like size only, so that
    top-k may round there, as every addition does; what it does then is known too.)"""
    steps = 4
    for rank, (_, books, _) in enumerate(on_ranks(ranks(3), text, True, kind, steps)):
        assert len(books) % steps == 0
        for gradient, residual, sent, left in books:
            corrected = gradient + residual
            assert np.array_equal(sent + left, corrected)
            whole = [a + b for a, b in zip(exact(sent), exact(left), strict=True)]
            assert whole == exact(corrected)
            if not text.startswith("topk"):
                assert whole == [a + b for a, b in zip(exact(gradient), exact(residual), strict=True)]
        if text.startswith("topk"):  # what enters the books is the gradient itself
            whole = np.concatenate([books[i][0] for i in range(len(SHAPES))])
            assert np.array_equal(whole, gradients(kind, steps, rank)[0])


@pytest.mark.parametrize("kind", ["normal", "spread", "growing"])
@pytest.mark.parametrize("text", ["onebit", "powersgd:1"])
def test_a_gradient_enters_the_books_with_half_a_unit_of_error_at_most(ranks, text, kind):
    shapes = {"matrix": (7, SIZE // 7)}
    [(_, books, _)] = on_ranks(ranks(1), text, True, kind, 5, shapes=shapes)
    old = np.zeros(SIZE // 7 * 7)
    for given, (gradient, residual, _, left) in zip(gradients(kind, 5, 0), books, strict=True):
        given = given[: gradient.size]
        bound = 2.0**-50 * sqrt(given.size) * (largest(given) + largest(old))
        assert largest(gradient - given) <= bound and largest(residual - old) <= bound
        old = left


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("text", ["onebit", "topk:0.1", "topk:1"])
def test_the_sum_is_that_of_what_the_ranks_have_sent(ranks, text, size):
    """To the bit, in rank order; and the same on all ranks."""
    found = on_ranks(ranks(size), text, True, "normal", 3)
    for step in range(3):
        each = [
            np.concatenate([book[2] for book in books[step * len(SHAPES) : (step + 1) * len(SHAPES)]])
            for _, books, _ in found
        ]
        total = sum(each[1:], each[0])
        for sums, _, _ in found:
            assert np.array_equal(sums[step], total)


@pytest.mark.parametrize("size", [1, 3])
def test_what_was_sent_and_what_is_left_are_all_gradients(ranks, size):
    """Top-k of small integers: over all steps and ranks, exactly."""
    steps = 9
    found = ranks(size).run(run_integers, "topk:0.2", steps, timeout=LIMIT)
    given = sum(integers(step, rank) for step in range(steps) for rank in range(size))
    for sums, _ in found:
        assert np.array_equal(sum(sums) + sum(left for _, left in found), given)


def integers(step: int, rank: int) -> np.ndarray:
    return np.random.default_rng([step, rank]).integers(-1000, 1000, 37).astype(np.float64)


def run_integers(world, text, steps):
    from minidist.nn.layers import Parameter
    from minidist.parallel.compression.hook import compressing
    from minidist.parallel.data import Bucket

    hook, parameter, sums = compressing(text, True, 0), Parameter((37,)), []
    parameter.name = "p"
    bucket = Bucket([parameter], np.float64)
    for step in range(steps):
        bucket.clear()
        bucket.buffer[:] = integers(step, world.rank)
        hook(bucket, world, "auto").wait()
        sums.append(bucket.buffer.copy())
    return sums, hook.residuals.of["p"]


def test_power_sgd_sums_what_the_ranks_have_sent(ranks):
    """To float32: the factor that stands for the sum is rounded to it, as every summed gradient is in the end."""
    shapes = {"matrix": (19, 10)}
    found = on_ranks(ranks(3), "powersgd:2", True, "normal", 4, shapes=shapes)
    for step in range(4):
        total = sum(books[step][2] for _, books, _ in found)
        for sums, _, _ in found:
            assert np.array_equal(sums[step], found[0][0][step])
            assert np.abs(sums[step] - total).max() < 2**-20 * np.abs(total).max()


def steps_of_one_matrix(world, scales, error_feedback):
    """How far powersgd:4 is from a 20 x 16 matrix, which comes in every step times a scale: relative norms."""
    from minidist.nn.layers import Parameter
    from minidist.parallel.compression.hook import compressing
    from minidist.parallel.data import Bucket

    hook, parameter, errors = compressing("powersgd:4", error_feedback, 0), Parameter((20, 16)), []
    parameter.name = "matrix"
    bucket = Bucket([parameter], np.float64)
    for scale in scales:
        matrix = scale * random(9, 320)
        bucket.clear()
        bucket.buffer[:] = matrix
        hook(bucket, world, "auto").wait()
        distance = np.linalg.norm(bucket.buffer - world.size * matrix)
        errors.append(distance / np.linalg.norm(world.size * matrix) if scale else distance)
    return errors


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
def test_directions_are_kept_between_steps(ranks, size, scale):
    """So the error falls to that of the best four, however large the gradients are."""
    spectrum = np.linalg.svd(random(9, 320).reshape(20, 16), compute_uv=False)
    best = np.linalg.norm(spectrum[4:]) / np.linalg.norm(spectrum)
    for errors in ranks(size).run(steps_of_one_matrix, [scale] * 60, False, timeout=LIMIT):
        assert errors[0] > 1.03 * best
        assert errors[-1] < 1.01 * best


def test_a_gradient_of_zeros_leaves_directions_to_start_from(ranks):
    """Without them all later gradients would be taken for zeros."""
    [errors] = ranks(1).run(steps_of_one_matrix, [0, 0, 1, 1], False, timeout=LIMIT)
    assert errors[:2] == [0, 0] and max(errors[2:]) < 0.9


def test_residuals_stay_bounded(ranks):
    """A method that keeps a share d of each norm squared, and gradients of norm G: |residual| is at most
    s / (1 - s) G with s = sqrt(1 - d), since each step is |left| <= s (|residual| + G). Karimireddy et al., lemma 3."""
    steps, shapes = 60, {"p": (SIZE,)}
    [(_, books, _)] = on_ranks(ranks(1), "topk:0.1", True, "normal", steps, shapes=shapes)
    norm = max(np.linalg.norm(gradient) for gradient, *_ in books)
    shrink = sqrt(1 - ceil(0.1 * SIZE) / SIZE)
    norms = [np.linalg.norm(left) for *_, left in books]
    assert max(norms) <= shrink / (1 - shrink) * norm
    assert norms[-1] > norms[0]


def descend(world, error_feedback):
    """Steps down the mean of two quadratics that pull x[0] apart, and x[1] gently to 1: each sends one element."""
    from minidist.nn.layers import Parameter
    from minidist.parallel.compression.hook import compressing
    from minidist.parallel.data import Bucket

    hook, parameter, x = compressing("topk:0.5", error_feedback, 0), Parameter((2,)), np.zeros(2)
    parameter.name = "x"
    bucket = Bucket([parameter], np.float64)
    for _ in range(1000):
        bucket.clear()
        bucket.buffer[:] = x - np.array([100.0 if world.rank else -100.0, 1.0])
        hook(bucket, world, "auto").wait()
        x -= 0.002 * bucket.buffer
    return x


@pytest.mark.long
def test_top_k_without_feedback_stalls(ranks):
    """Both ranks send +-100, which cancel, and never the 1 on which they agree. With it 1 is sent every 100 steps."""
    for x in ranks(2).run(descend, False, timeout=LIMIT):
        assert x.tolist() == [0, 0]
    for x in ranks(2).run(descend, True, timeout=LIMIT):
        assert abs(x[1] - 1) < 0.25


@pytest.mark.parametrize("text", FEEDING_BACK)
def test_without_feedback_nothing_is_kept(ranks, text):
    for sums, books, residuals in on_ranks(ranks(2), text, False, "normal", 2):
        assert len(sums) == 2 and books == [] and residuals == {}


@pytest.mark.parametrize("text", ["onebit", "topk:0.1", "powersgd:1"])
def test_buckets_may_change_between_steps(ranks, text):
    """Residuals and directions go with the parameter's name. (In torch they went with
    the bucket: pytorch pull request 48670.)"""
    names = list(SHAPES)
    one, several = [names], [names[:2], names[2:5], names[5:]]
    fixed, changing = (
        on_ranks(ranks(2), text, True, "normal", 4, buckets=buckets) for buckets in ([one], [one, several])
    )
    for (first, *_), (second, *_) in zip(fixed, changing, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


# ── the hook ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("text", METHODS)
@pytest.mark.parametrize("size", [1, 3])
def test_every_method_takes_every_shape(ranks, text, dtype, size):
    found = on_ranks(ranks(size), text, True, "normal", 3, dtype=dtype)
    for sums, *_ in found:
        assert all(np.isfinite(values).all() and values.dtype == dtype for values in sums)
        assert all(np.array_equal(a, b) for a, b in zip(sums, found[0][0], strict=True))


@pytest.mark.long
@pytest.mark.parametrize("text", METHODS)
def test_the_same_seed_has_the_same_bits_whatever_the_algorithm(ranks, text):
    first = None
    for algorithm in ("auto", "auto", "tree", "ring", "direct"):
        found = np.stack([np.stack(sums) for sums, *_ in on_ranks(ranks(5), text, True, "float32", 4, algorithm)])
        first = found if first is None else first
        assert np.array_equal(found, first)


@pytest.mark.parametrize("text", ["bf16", "int8"])
def test_each_rank_and_step_and_parameter_rounds_by_a_chance_of_its_own(ranks, text):
    """Equal gradients on all ranks: if they rounded alike, the sum would be a multiple of what one sends."""

    def main(world, text):
        from minidist.nn.layers import Parameter
        from minidist.parallel.compression.hook import compressing
        from minidist.parallel.data import Bucket

        hook, sums = compressing(text, True, 1), []
        for _ in range(2):
            parameters = [Parameter((200,)) for _ in range(2)]
            for i, parameter in enumerate(parameters):
                parameter.name = f"p{i}"
            bucket = Bucket(parameters, np.float64)
            bucket.buffer[:] = np.tile(random(7, 200), 2)
            hook(bucket, world, "auto").wait()
            sums += [view.copy() for view in bucket.views]
        return sums

    def differ(a, b):
        return (a != b).mean() > 0.2

    for sums in ranks(2).run(main, text, timeout=LIMIT):
        assert all(differ(sums[i], sums[j]) for i in range(4) for j in range(i))
        one = np.stack([values / 2 for values in sums])
        kept = (
            BFLOAT16.round(one.astype(np.float32)) if text == "bf16" else np.rint(one * 127 / largest(random(7, 200)))
        )
        assert differ(kept, one if text == "bf16" else one * 127 / largest(random(7, 200)))


@pytest.mark.parametrize("text", METHODS)
@pytest.mark.parametrize(("size", "dtype"), [(2, np.float64), (3, np.float64), (3, np.float32), (5, np.float64)])
def test_bytes_are_those_of_the_formula(ranks, text, size, dtype):
    def main(world, text):
        before = world.traffic
        run_hook(world, text, True, "normal", 2, "auto" if text.startswith("powersgd") else "ring", dtype)
        return (world.traffic - before).as_dict()["bytes_sent"]

    sent = sum(ranks(size).run(main, text, timeout=LIMIT))
    expected = read_method(text).bytes_sent(list(SHAPES.values()), size, np.dtype(dtype).itemsize)
    assert sent == pytest.approx(2 * size * expected, rel=1e-12) and abs(sent - 2 * size * expected) < 0.5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gzip", "compress=gzip: choose bf16, int8, onebit, topk:SHARE or powersgd:RANK"),
        ("int8:4", "compress=int8:4: int8 takes no number; write compress=int8"),
        ("bf16:", "bf16 takes no number"),
        ("topk", "compress=topk: the share to send must be above 0 and at most 1, as in topk:0.01"),
        *(
            (f"topk:{share}", f"compress=topk:{share}: the share to send must be above 0 and at most 1")
            for share in ("0", "-0.1", "1.5", f"1.{'0' * 20}1", "nan", "inf", "x", "1e-999999999", "0_1", "１", "1/2")
        ),
        *(
            (f"powersgd:{rank}", f"compress=powersgd:{rank}: the rank must be a whole number of 1 or more")
            for rank in ("", "0", "-1", "1.5", "x", "²", "１", "1_0", "9" * 5000)
        ),
    ],
)
def test_bad_methods(text, message):
    with pytest.raises(ValueError) as caught:
        read_method(text)
    assert message in str(caught.value) and "\n" not in str(caught.value)
