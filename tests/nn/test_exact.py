"""Exact products against fractions: every term is an integer times a power of two, and Python adds them exactly."""

import json
import os
import subprocess
import sys
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from choosing import long

from minidist.nn import exact, kernels
from minidist.nn.gpt import GPT
from minidist.nn.precision.policy import autocast, policy_of
from minidist.nn.tensor import no_grad
from minidist.train.config import TrainConfig

RNG = np.random.default_rng(44)
ODD = (1, 3, 5, 33)


def numbers(*shape: int, spread: int = 3) -> np.ndarray:
    """float32 of both signs, over 2 ``spread`` powers of two, with some zeros."""
    values = RNG.standard_normal(shape) * 2.0 ** RNG.integers(-spread, spread + 1, shape)
    return np.where(RNG.random(shape) < 0.1, 0, values).astype(np.float32)


def same(a, b) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def rounded_to_grid(values, bits: int) -> list[Fraction]:
    """The multiples of 2^(e - bits) next to the values, ties to even, where 2^e is above all magnitudes."""
    fractions = [Fraction(float(value)) for value in values]
    largest = max(map(abs, fractions), default=Fraction(0))
    exponent = 0 if largest == 0 else np.frexp(float(largest))[1]
    step = Fraction(2) ** (int(exponent) - bits)
    return [round(value / step) * step for value in fractions]


def by_fractions(rows, columns, bits: int) -> np.ndarray:
    """The product of factors on their grids. A float holds each sum exactly, if the bits are few enough."""
    left, right = [rounded_to_grid(row, bits) for row in rows], [rounded_to_grid(column, bits) for column in columns.T]
    sums = [[sum(a * b for a, b in zip(row, column, strict=True)) for column in right] for row in left]
    assert all(Fraction(float(value)) == value for row in sums for value in row)
    return np.array([[float(value) for value in row] for row in sums]).reshape(len(rows), columns.shape[1])


@pytest.mark.parametrize("spread", [0, 3, 60, 120])
def test_a_product_is_that_of_fractions(spread):
    with np.errstate(over="ignore"):
        for n, k, m in product((1, 3, 5), (1, 2, 7, 33), (1, 4)):
            a, b = numbers(n, k, spread=spread), numbers(k, m, spread=min(spread, 3))
            bits = exact.bits_of(k, 2)
            right = by_fractions(a, b, bits).astype(np.float32) + np.float32(0)
            assert same(exact.matmul_each(a, b), right), (n, k, m)
            assert same(exact.matmul_each(a[0], b), right[0])


def test_the_bits_are_as_many_as_53_have_room_for():
    for count in (*range(1, 70), 2047, 2048, 2049, 1 << 21):
        bits = exact.bits_of(count, 2)
        assert count * 2 ** (2 * bits) <= 2**53
        assert count * 2 ** (2 * bits + 2) > 2**52  # one bit more, and for a power of two there is no room
    assert [exact.bits_of(count, 2) for count in (1, 32, 33, 2048, 2049)] == [26, 24, 23, 21, 20]
    assert [exact.bits_of(count) for count in (1, 4, 5)] == [51, 51, 50]


@pytest.mark.parametrize("length", [2048, 2049])
def test_the_longest_rows_of_the_largest_integers_have_no_order(length):
    """All elements at the top of their grid: partial sums come as near to 2^53 as they can."""
    top = np.float32(1 - 2.0**-24)
    a, b = np.full((2, length), top), np.full((length, 3), top)
    a[1, ::2] *= -1
    found = exact.matmul_each(a, b)
    assert same(found, by_fractions(a, b, exact.bits_of(length, 2)).astype(np.float32))
    a, b = numbers(4, length, spread=12), numbers(length, 5, spread=12)
    order = RNG.permutation(length)
    assert same(exact.matmul_each(a[:, order], b[order]), exact.matmul_each(a, b))
    a, b = (np.ascontiguousarray(one) for one in (a, b))
    assert not same(kernels.matmul_each(a[:, order], b[order]), kernels.matmul_each(a, b))


def test_a_row_knows_no_other_row_and_a_column_no_other_column():
    a, b = numbers(3, 37, 64, spread=8), numbers(3, 64, 29, spread=8)
    found = exact.matmul_each(a, b)
    for row in range(37):
        assert same(exact.matmul_each(a[:, row : row + 1], b), found[:, row : row + 1])
    for column in range(29):
        assert same(exact.matmul_each(a, b[:, :, column : column + 1]), found[:, :, column : column + 1])
    assert same(exact.matmul_each(a[1:2], b[1:2]), found[1:2])
    assert same(exact.matmul_each(a[:, ::-1], b), found[:, ::-1].copy())  # strides
    into = np.empty((3, 29, 37), np.float32).swapaxes(1, 2)
    assert exact.matmul_each(a, b, out=into) is into and same(into.copy(), found)
    broadcast = np.broadcast_to(a[0], a.shape)
    assert same(exact.matmul_each(broadcast, b), exact.matmul_each(broadcast.copy(), b))


def test_a_later_value_does_not_change_an_earlier_row():
    """One scale for each column of the values would break this."""
    weights, values = np.tril(RNG.random((2, 9, 9), np.float32)), numbers(2, 9, 5)
    before = exact.mix(weights, values)
    assert np.allclose(before, weights @ values, rtol=0, atol=1e-5)  # grids of 24 bits or float32's own, of sums < 50
    later = values.copy()
    later[:, -1] *= 2.0**20
    assert same(exact.mix(weights, later)[:, :-1], before[:, :-1])
    assert not same(exact.matmul_each(weights, later)[:, :-1], exact.matmul_each(weights, values)[:, :-1])


def test_sums_are_those_of_fractions():
    for shape in product((1, 3), ODD):
        values, others = numbers(*shape, spread=30), numbers(*shape, spread=20)
        bits = exact.bits_of(shape[1])
        sums = [float(sum(rounded_to_grid(row, bits))) for row in values]
        assert same(exact.row_sums(values), np.array(sums, np.float32))
        assert same(exact.column_sums(np.ascontiguousarray(values.T)[None]), np.array([sums], np.float32))
        terms = values.astype(np.float64) * others
        dots = [float(sum(rounded_to_grid(row, bits))) for row in terms]
        assert same(exact.dot_each(values, others), np.array(dots, np.float32))
    nothing = np.zeros((3, 0), np.float32)
    assert same(exact.row_sums(nothing), np.zeros(3, np.float32)) and exact.column_sums(nothing).shape == (0,)
    assert same(exact.matmul_each(nothing, nothing.T.copy()), np.zeros((3, 3), np.float32))


def test_zeros_are_positive_and_infinity_and_nan_spread():
    minus = np.float32([[-0.0, 0.0], [1.0, -1.0], [-1e-30, 0.0]])
    for found in (exact.matmul_each(minus, np.ones((2, 2), np.float32)), exact.row_sums(minus[:2])):
        assert not np.signbit(found[:2]).any()
    assert exact.matmul_each(minus, np.ones((2, 1), np.float32))[2] == np.float32(-1e-30)
    with np.errstate(invalid="ignore"):
        for bad in (np.inf, -np.inf, np.nan):
            a = numbers(3, 5)
            a[1, 2] = bad
            found = exact.matmul_each(a, np.ones((5, 2), np.float32))
            assert np.isfinite(found[[0, 2]]).all() and np.array_equal(found[1], [np.float32(bad)] * 2, equal_nan=True)
            assert np.array_equal(exact.row_sums(a)[1], np.float32(bad), equal_nan=True)


def test_subnormal_numbers_are_numbers():
    tiny = (np.arange(1, 8, dtype=np.float32) * np.float32(2.0**-149)).reshape(1, 7)
    assert same(exact.matmul_each(tiny, np.ones((7, 1), np.float32)), np.float32([[28 * 2.0**-149]]))


@pytest.mark.parametrize("name", ["exp", "exp2", "tanh", "log"])
def test_functions_are_rounded_correctly_but_for_ties(name):
    """NumPy's float64 function is wrong by less than 2^-49 of its size, ours by 2^-40: 2^-16 of a float32's place."""
    x = np.concatenate([RNG.standard_normal(50_000) * scale for scale in (1e-6, 0.1, 1, 30)]).astype(np.float32)
    x = np.abs(x) + np.float32(1e-20) if name == "log" else x
    with np.errstate(over="ignore"):
        ours, right = getattr(exact, name)(x), getattr(np, name)(x.astype(np.float64))
        into = np.empty_like(x)
        assert getattr(exact, name)(x, out=into) is into and same(into, ours)
        assert same(getattr(exact, name)(x[::-3]), ours[::-3].copy())
    normal = (np.abs(right) > 2.0**-126) & (np.abs(right) < 2.0**127)
    places = np.abs(ours - right)[normal] / np.spacing(np.abs(right[normal]).astype(np.float32))
    assert ours.dtype == np.float32 and places.max() < 0.5 + 2.0**-15


def test_functions_at_the_ends():
    ends = np.float32([-np.inf, -200, 0, 200, np.inf, np.nan])
    with np.errstate(all="ignore"):
        for name in ("exp", "exp2", "tanh"):
            right = getattr(np, name)(ends.astype(np.float64)).astype(np.float32)
            assert np.array_equal(getattr(exact, name)(ends), right, equal_nan=True), name
        ends = np.float32([-1, 0, 1, 2.0**-149, np.inf, np.nan])
        assert np.array_equal(exact.log(ends), np.log(ends.astype(np.float64)).astype(np.float32), equal_nan=True)


@pytest.mark.parametrize("attention", ["plain", "tiled"])
def test_a_model_has_the_same_bits_in_every_batch(attention):
    """Three rows of five, one, or others in another order: fast products promise whole micro-batches alone."""
    config = TrainConfig(width=40, context=12, attention=attention, attention_tile=5).model
    tokens = RNG.integers(256, size=(5, 12))
    with autocast(policy_of("fp32", "exact")), no_grad():
        model = GPT(config)
        full = model.logits(tokens).data
        for rows in (slice(0, 3), slice(3, 5), slice(2, 3), [4, 0, 3]):
            assert same(model.logits(tokens[rows]).data, np.ascontiguousarray(full[rows]))
        earlier = np.where(np.arange(12) < 7, tokens, 0)  # other tokens come later: causal to the bit
        assert same(np.ascontiguousarray(model.logits(earlier).data[:, :7]), np.ascontiguousarray(full[:, :7]))


SMALL_LLAMA = "--arch llama --kv-heads 2 --dropout 0.1 --width 24 --layers 2 --context 16 --global-batch 4"
ON_EVERY_MACHINE = {  # and in later versions: a checkpoint says neither which samples come next nor what dropout keeps
    "": "896348f20d21e3a7e352f391a94213c94c18d05f5f1ac07995ffa20f45adec86",
    SMALL_LLAMA: "8c1d0305096b310d2b8016c46546416bc241f77a1bc81a4c703a9d986e4a7d59",
}
KERNELS = ("Haswell", "Sandybridge", "Prescott", "Nehalem", "SkylakeX")  # of OpenBLAS on x86; others ignore the name


@pytest.mark.parametrize("changed", [{}, *(long({"OPENBLAS_CORETYPE": name}) for name in KERNELS)])
@pytest.mark.parametrize("threads", ["1", long("3")])
def test_a_run_ends_on_the_hash_of_every_machine(changed, threads):
    """A NumPy whose normal numbers are others would need another literal: it is what README says a hash depends on."""
    command = [sys.executable, "-m", "minidist.cli", "train", "--steps", "3", "--products", "exact", "--json", "-"]
    env = os.environ | changed | {"OPENBLAS_NUM_THREADS": threads}
    for flags, fingerprint in ON_EVERY_MACHINE.items():
        done = subprocess.run(command + flags.split(), env=env, capture_output=True, text=True)
        if changed and "killed by SIGILL" in done.stderr:
            pytest.skip("this processor lacks instructions that this kernel has")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["fingerprint"] == fingerprint, flags
