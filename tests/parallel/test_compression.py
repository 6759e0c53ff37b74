"""Compressed gradients: what the methods send, what they leave out, and that nothing is lost between the two."""

import itertools
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from functools import partial
from math import prod, sqrt
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from minidist.nn.config import ARCHITECTURES
from minidist.nn.layers import Parameter
from minidist.nn.models import model_of
from minidist.nn.precision.formats import BFLOAT16
from minidist.nn.random import generator
from minidist.overrides import _overrides as overrides
from minidist.parallel.compression.feedback import feed_back, largest
from minidist.parallel.compression.gathered import int8_unit, one_bit, stochastic_round, top_k
from minidist.parallel.compression.hook import Compressor, read_method
from minidist.parallel.compression.power_sgd import orthonormal, power_sgd_step
from minidist.parallel.data import Bucket
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.rules import full_rank
from minidist.train.trainer import run

LIMIT = 60
METHODS = ["bf16", "int8", "onebit", "topk:0.1", "topk:1", "powersgd:1", "powersgd:3"]
FEEDING_BACK = METHODS[2:]
LOSSY = ["bf16", "int8", "onebit", "topk:0.05", "powersgd:1"]
SHAPES = {"head": (3, 7, 5), "matrix": (11, 6), "vector": (13,), "one": (1,), "none": (0,), "thin": (9, 1)}
SIZE = sum(map(prod, SHAPES.values()))
TINY = 5e-324  # the smallest float64 above 0
KINDS = ["normal", "zeros", "denormals", "spread", "float32", "growing"]


def random(seed: int, shape=SIZE) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def gradients(kind: str, step: int, rank: int) -> np.ndarray:
    """Return gradients of parameters with SHAPES, different in each step and on each rank."""
    values = random(100 * rank + step)
    return {
        "normal": values,
        "zeros": np.zeros(SIZE),
        "denormals": np.rint(4 * values) * TINY,
        "spread": values * 2.0 ** np.random.default_rng(rank).integers(-60, 60, SIZE),
        "float32": values.astype(np.float32).astype(np.float64),
        "growing": values * 1000.0**step,
    }[kind]


def run_hook(
    world, text, gradient, steps, feedback=True, shapes=SHAPES, dtype=np.float64, algorithm="auto", buckets=None
):
    """Return what a hook leaves in its buckets, step by step; the books of feed_back; the residuals; bytes sent.

    ``gradient(step, rank)`` is what comes. ``buckets`` are lists of names, which take turns.
    """
    hook, before = Compressor(text, feedback, seed=5), world.traffic
    books, sums = [], []

    def noted(gradient, residual, send):
        given = gradient.copy(), residual.copy()
        sent, left = feed_back.__wrapped__(gradient, residual, send)
        books.append((*given, sent.copy(), left.copy()))
        return sent, left

    with mock.patch.dict(overrides, feed_back=noted):
        for step in range(steps):
            made = {name: Parameter(shape) for name, shape in shapes.items()}
            for name, parameter in made.items():
                parameter.name = name
            groups = buckets[step % len(buckets)] if buckets else [list(shapes)]
            values, start = gradient(step, world.rank), 0
            step_buckets = [Bucket([made[name] for name in names], dtype) for names in groups]
            for bucket in step_buckets:
                bucket.buffer[:] = values[start : start + bucket.buffer.size]
                start += bucket.buffer.size
            for work in [hook(bucket, world, algorithm) for bucket in step_buckets]:
                work.wait()
            sums.append(np.concatenate([bucket.buffer for bucket in step_buckets]))
    residuals = {} if hook.residuals is None else hook.residuals.of
    return sums, books, residuals, (world.traffic - before).as_dict()["bytes_sent"]


def on_ranks(cluster, text, gradient, steps, **settings) -> list:
    """Return the result of ``run_hook`` on each rank; ``gradient`` may be one of KINDS."""
    made = partial(gradients, gradient) if isinstance(gradient, str) else gradient
    return cluster.run(partial(run_hook, **settings), text, made, steps, timeout=LIMIT)


def exact(values) -> list[Fraction]:
    return [Fraction(float(value)) for value in values.reshape(-1)]


def same(one, other) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


# What one rank sends


def sent(text, values, rng, dtype=np.float64):
    """Return the values that a message for the given ones stands for."""
    method = read_method(text)
    arrays = method.encode(values, np.dtype(dtype), rng)
    message = np.concatenate([array.reshape(-1).view(np.uint8) for array in arrays])
    assert message.size == method.message_bytes(values.size, np.dtype(dtype).itemsize)
    return method.decode(message, values.size, np.dtype(dtype))


def test_rounding_by_chance_is_right_in_the_mean():
    """A value between two multiples of a unit has a variance of a quarter of its square at most: six standard
    deviations of the mean bound it. What needs no rounding stays."""
    values = np.array([0.0, 0.1, -0.1, 0.5, 1.0, -2.75, 1e-9, 3.999])
    wide = np.concatenate([random(1, 100) * 2.0 ** np.arange(-140, 110, 2.5), [0.0, 2.0**-140]])
    spacing = np.ldexp(1.0, np.maximum(np.frexp(wide)[1] - 8, -133))  # of bfloat16
    cases = [(values, unit, partial(stochastic_round, values, unit)) for unit in (1.0, 0.125, 0.3)]
    for some in (random(1, 50) * scale for scale in (1.0, 1e-30, 1e-44, 1e30)):
        cases.append((some, float(int8_unit(largest(some))), partial(sent, "int8", some)))
    for given, unit, draw in [*cases, (wide, spacing, partial(sent, "bf16", wide))]:
        drawn = np.stack([draw(generator("test", i)) for i in range(2000)])
        assert (np.abs(drawn - given) < unit * (1 + 1e-12)).all()
        assert (np.abs(drawn.mean(axis=0) - given) <= 6 * unit / 2 / sqrt(len(drawn))).all()
        assert np.array_equal(np.rint(drawn / unit) * unit, drawn)
    kept = BFLOAT16.round(wide.astype(np.float32)).astype(np.float64)
    assert np.array_equal(sent("bf16", kept, generator("test")), kept)


def test_127_units_reach_the_largest_value_and_not_by_much():
    for value in np.abs(random(3, 2000)) * 10.0 ** np.arange(-20, 20, 0.02):
        unit = float(int8_unit(value))
        assert value <= 127 * unit <= value * (1 + 2**-22)
    for size in (0, 1, 7):
        assert np.array_equal(sent("int8", np.zeros(size), generator("test")), np.zeros(size))


def test_top_k_takes_the_largest_and_of_equal_ones_the_first():
    for size, seed in [(0, 0), *((size, seed) for size in (1, 2, 7, 100) for seed in range(20))]:
        values = np.random.default_rng(seed).integers(-3, 4, size) * 1.5  # many are equal
        order = np.argsort(-np.abs(values), kind="stable")
        for k in {0, min(1, size), size // 2, size}:
            indices, kept = top_k(values, k)
            assert indices.dtype == np.int32 and indices.tolist() == sorted(order[:k].tolist())
            assert np.array_equal(kept, values[indices])
    indices, kept = top_k(np.array([1.0, np.nan, 5.0, -np.inf, np.nan]), 2)  # or training would go on with them
    assert indices.tolist() == [1, 3] and np.isnan(kept[0])
    shares = [("0.07", 100, 7), ("0.001", 10, 1), ("1", 13, 13), ("1e-3", 2001, 3), ("0.5", 0, 0)]
    assert [read_method(f"topk:{share}").count(size) for share, size, _ in shares] == [k for *_, k in shares]


def test_one_bit_is_the_sign_and_the_mean_magnitude():
    negative, scale = one_bit(np.array([3.0, -1.0, 0.0, -4.0]))
    assert negative.tolist() == [False, True, False, True] and scale == 2 and one_bit(np.zeros(0))[1] == 0
    values = random(4, 77)
    found = sent("onebit", values, generator("test"))
    assert np.array_equal(found < 0, values < 0)
    assert np.abs(found) == pytest.approx(np.full(77, np.abs(values).mean()), rel=1e-13)


# Low rank


def alone(array) -> None:
    """The all-reduce of one rank."""


def test_orthonormal_columns_of_any_size_nearly_the_same_or_zero():
    for columns in (random(2, (9, 3)) * [1e-30, 1, 1e30], random(3, (50, 1)) + 1e-9 * random(4, (50, 6))):
        basis = orthonormal(columns)
        assert np.abs(basis.T @ basis - np.eye(basis.shape[1])).max() < 1e-14  # projected once, they are oblique
        columns /= np.linalg.norm(columns, axis=0)
        assert np.abs(basis @ (basis.T @ columns) - columns).max() < 1e-13  # it spans them
    assert np.array_equal(orthonormal(np.zeros((4, 2))), np.zeros((4, 2)))
    basis = orthonormal(np.repeat(random(5, (8, 1)), 3, axis=1))
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


def test_directions_are_kept_between_steps(ranks):
    """The error of powersgd:4 therefore falls to that of the best four, however large the gradients are. A gradient of
    zeros leaves directions to start from: without them all later gradients would be taken for zeros."""
    matrix, shapes = random(9, 320), {"matrix": (20, 16)}
    spectrum = np.linalg.svd(matrix.reshape(20, 16), compute_uv=False)
    best = np.linalg.norm(spectrum[4:]) / np.linalg.norm(spectrum)
    for size, scales in ((1, [1e-30]), (3, [1e30]), (1, [0, 0, 1, 1])):
        steps = 60 if len(scales) == 1 else 4
        of_step = lambda step, _, scales=scales: scales[step % len(scales)] * matrix  # noqa: E731
        for sums, *_ in on_ranks(ranks(size), "powersgd:4", of_step, steps, feedback=False, shapes=shapes):
            errors = [np.linalg.norm(total - size * of_step(step, 0)) for step, total in enumerate(sums)]
            errors = [error / (size * (scales[0] or 1) * np.linalg.norm(matrix)) for error in errors]
            if scales[0]:
                assert errors[0] > 1.03 * best and errors[-1] < 1.01 * best
            else:
                assert errors[:2] == [0, 0] and max(errors[2:]) < 0.9


def test_full_rank_is_known_without_the_parameters():
    """Full rank leaves all parameters of a real model whole, and no lower one does, down to the width."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        heads, sparse, units = rng.integers(1, 7).item(), rng.random() < 0.5, partial(rng.integers, 0, 40)
        sizes = {"heads": heads, "width": 2 * heads * rng.integers(1, 5).item(), "hidden": heads * units().item()}
        sizes |= {"arch": rng.choice(ARCHITECTURES).item(), "layers": 2}
        names = ("expert_hidden", "shared_expert")
        experts = {"experts": 3, "moe_every": 2} | {name: heads * units().item() for name in names}
        config = TrainConfig(**sizes, **(experts if sparse else {}))
        shapes = [parameter.shape for parameter in model_of(config.model, seed=None).parameters()]
        rank = full_rank(config)
        below, at = (read_method(f"powersgd:{r}") for r in (rank - 1, rank))
        assert not any(map(at.factors, shapes)), config
        assert rank == config.width or any(map(below.factors, shapes)), config


# The books


def test_nothing_is_lost_between_what_is_sent_and_what_is_left(ranks):
    """No bit is lost: in real numbers sent + residual = gradient + old residual. What enters the books is off by half a
    unit at most. The sum is that of what the ranks have sent, in their order, on each of them. (Top-k sends elements as
    they are, so that gradient + old residual may round, as every addition does; what it does then is known too.)"""
    parts = {"head": slice(0, 105), "matrix": slice(105, 171)}  # those for which PowerSGD has factors
    for text, kind in itertools.product(FEEDING_BACK, KINDS):
        found = on_ranks(ranks(3), text, kind, 3, shapes={name: SHAPES[name] for name in parts})
        for number, (step, part) in enumerate(itertools.product(range(3), parts.values())):
            for rank, (_, books, *_) in enumerate(found):
                gradient, residual, given, left = books[number]
                right = gradients(kind, step, rank)[part]
                old = books[number - 2][3] if step else 0 * right
                whole = [a + b for a, b in zip(exact(given), exact(left), strict=True)]
                assert whole == exact(gradient + residual)
                if text.startswith("topk"):
                    assert np.array_equal(gradient, right) and np.array_equal(residual, old)
                else:
                    assert whole == [a + b for a, b in zip(exact(gradient), exact(residual), strict=True)]
                    half = max(TINY, 2.0**-50 * sqrt(right.size) * (largest(right) + largest(old)))
                    assert largest(gradient - right) <= half and largest(residual - old) <= half
            total = sum(books[number][2] for _, books, *_ in found)
            most = 2**-20 * largest(total) if text.startswith("powersgd") else 0  # its factors are rounded to float32
            sums = [of_rank[0][step][part] for of_rank in found]
            assert largest(sums[0] - total) <= most and same(sums, sums[:1] * 3), (text, kind)


def test_without_feedback_nothing_is_kept(ranks):
    for text in FEEDING_BACK:
        for _, books, residuals, _ in on_ranks(ranks(2), text, "normal", 2, feedback=False):
            assert books == [] and residuals == {}


def test_buckets_may_change_between_steps(ranks):
    """Residuals and directions go with the parameter's name. (In torch they went with the bucket: pytorch pull request
    48670.)"""
    names = list(SHAPES)
    one, several = [names], [names[:2], names[2:5], names[5:]]
    for text in ("onebit", "topk:0.1", "powersgd:1"):
        fixed, changing = (on_ranks(ranks(2), text, "normal", 4, buckets=some) for some in ([one], [one, several]))
        assert all(same(first, second) for (first, *_), (second, *_) in zip(fixed, changing, strict=True)), text


# The hook


def test_every_method_takes_every_shape_and_sends_what_it_says(ranks):
    for text in METHODS:
        for size, dtype in ((1, np.float64), (2, np.float64), (3, np.float64), (3, np.float32)):
            algorithm = "auto" if text.startswith("powersgd") else "ring"
            found = on_ranks(ranks(size), text, "normal", 2, dtype=dtype, algorithm=algorithm)
            for sums, *_ in found:
                assert all(np.isfinite(values).all() and values.dtype == dtype for values in sums)
                assert same(sums, found[0][0])
            expected = 2 * size * read_method(text).bytes_sent(list(SHAPES.values()), size, np.dtype(dtype).itemsize)
            assert abs(sum(each[-1] for each in found) - expected) < 0.5, (text, size)


def test_each_rank_and_step_and_parameter_rounds_by_a_chance_of_its_own(ranks):
    """Equal gradients on all ranks: if they rounded alike, the sum would be a multiple of what one sends."""

    def differ(a, b):
        return (a != b).mean() > 0.2

    values, shapes = random(7, 200), {"p0": (200,), "p1": (200,)}
    for text in ("bf16", "int8"):
        for steps, *_ in on_ranks(ranks(2), text, lambda *_: np.tile(values, 2), 2, shapes=shapes):
            sums = np.concatenate(steps).reshape(4, 200)
            assert all(differ(sums[i], sums[j]) for i in range(4) for j in range(i))
            one = sums / 2 if text == "bf16" else sums / 2 * 127 / largest(values)
            assert differ(BFLOAT16.round(one.astype(np.float32)) if text == "bf16" else np.rint(one), one)


# Runs

CONFIG = TrainConfig(layers=3, heads=2, width=16, context=16, global_batch=10, micro_batch=2, steps=3)


def train(ranks, text: str, config: TrainConfig = CONFIG):
    layout = Layout.parse(text)
    return run(ranks(layout.world_size), config, layout)


@pytest.mark.long
def test_a_lossy_run_repeats_to_the_bit_keeps_replicas_alike_and_learns(ranks):
    """Whatever the algorithm, and whatever messages are cut into: only the parameters are compressed by themselves. A
    scale that one shared with a shard would make ranks' copies of it differ: each rank's fingerprint is of its own. A
    run comes within 15 percent of the loss that data parallelism comes to, from 5.5."""
    plain, learning = train(ranks, "dp=1").fingerprint, replace(CONFIG, steps=40, layers=1, lr=1e-2, micro_batch=5)
    right = train(ranks, "dp=2", learning).losses
    assert right[0] > 5.4 and np.mean(right[-5:]) < 4
    for method in LOSSY:
        first = train(ranks, f"dp=5,compress={method}").fingerprint
        assert first != plain
        for more in ("", ",algorithm=tree", ",algorithm=ring,sync=bucketed,bucket_mb=0.01"):
            assert train(ranks, f"dp=5,compress={method}{more}").fingerprint == first, method + more
        for split in ("tp=2,sp=1", "pp=2"):  # norms over tp, the embedding at both ends of a pipeline
            found = train(ranks, f"dp=2,{split},compress={method}")
            assert len({rank.fingerprint for rank in found.ranks}) == 1, (method, split)
        if method in ("bf16", "int8"):
            assert train(ranks, f"dp=5,compress={method}", replace(CONFIG, seed=1)).fingerprint != first
        losses = train(ranks, f"dp=2,compress={method}", learning).losses
        assert np.mean(losses[-5:]) < 1.15 * np.mean(right[-5:]), method
