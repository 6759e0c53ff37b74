"""Conjugate pairs: the gradient that the ranks find together is that of one process doing all of it."""

from math import fsum

import numpy as np
import pytest

from minidist.nn.tensor import Tensor
from minidist.parallel.tools import mappings

LIMIT = 30
ROWS, COLUMNS = 6, 4


def whole(rank: int) -> np.ndarray:
    """Whole numbers, so that sums are exact in any order."""
    return np.random.default_rng(rank).integers(-9, 9, (ROWS, COLUMNS)).astype(np.float32)


def part(array: np.ndarray, rank: int, size: int) -> np.ndarray:
    return np.split(array, size)[rank]


def forward_and_backward(group, name: str):
    """A mapping's output and, for an output gradient of this rank's own, the gradient of its input."""
    rank, size = group.rank, group.size
    takes_part = name == "all_gather_in_group"
    data = part(whole(rank), 0, size) if takes_part else whole(rank)
    if name == "scatter_to_group":
        data = whole(0)  # the same on all ranks
    x = Tensor(data.copy(), requires_grad=True)
    axis = () if name in ("copy_to_group", "reduce_from_group") else (0,)
    y = getattr(mappings, name)(x, group, *axis)
    seed = 100 if name == "reduce_from_group" else 100 + rank  # equal where all compute the same
    gradient = part(whole(seed), 0, size) if y.shape[0] < ROWS else whole(seed)
    y.backward(gradient)
    assert np.array_equal(x.data, data)  # nothing was overwritten
    return y.data, x.grad


def test_mappings(ranks):
    for size in (1, 2, 3):
        everyone = range(size)
        total, total_gradient = (sum(whole(first + rank) for rank in everyone) for first in (0, 100))
        small = np.concatenate([part(whole(100 + rank), 0, size) for rank in everyone])
        joined = np.concatenate([part(whole(rank), 0, size) for rank in everyone])
        for name, expected in {  # of each rank: output, and gradient
            "copy_to_group": [(whole(rank), total_gradient) for rank in everyone],
            "reduce_from_group": [(total, whole(100))] * size,
            "scatter_to_group": [(part(whole(0), rank, size), small) for rank in everyone],
            "all_gather_in_group": [(joined, part(total_gradient, rank, size)) for rank in everyone],
            "reduce_scatter_in_group": [(part(total, rank, size), small) for rank in everyone],
        }.items():
            for found, right in zip(ranks(size).run(forward_and_backward, name, timeout=LIMIT), expected, strict=True):
                assert all(map(np.array_equal, found, right)), (name, size)


def along_the_last_axis(world):
    x = np.arange(2 * 3 * 6, dtype=np.float32).reshape(2, 3, 6)
    mine = mappings.split(x, world, -1)
    assert mine.flags.c_contiguous and mine.shape == (2, 3, 2)
    assert np.array_equal(mappings.join(mine, world, -1), x)
    assert np.array_equal(mappings.sum_and_split(x, world, 2), 3 * mine)
    with pytest.raises(ValueError) as caught:
        mappings.split(x, world, 0)
    return str(caught.value)


def test_any_axis_and_sizes_that_do_not_divide(ranks):
    expected = "axis 0 of shape (2, 3, 6) has 2 entries, which 3 ranks do not divide"
    assert ranks(3).run(along_the_last_axis, timeout=LIMIT) == [expected] * 3


def sums(world):
    x = np.random.default_rng(world.rank).standard_normal(5000).astype(np.float32)
    total, part = mappings.sum_over(x, world), mappings.sum_and_split(x, world, 0)
    assert total.dtype == part.dtype == np.float64  # not rounded yet
    tensor = Tensor(x)
    mapped = mappings.reduce_from_group(tensor, world), mappings.reduce_scatter_in_group(tensor, world, 0)
    assert np.array_equal(mapped[0].data, total.astype(np.float32))
    return mapped[0].data, mapped[1].data


def any_order_and_dtype(world):
    """Transposed tensors and their gradients; a float64 sum that leaves its input alone."""
    x = Tensor(whole(world.rank), requires_grad=True)
    mappings.copy_to_group(x, world).transpose().backward(whole(7).T)
    assert np.array_equal(x.grad, world.size * whole(7))
    y = mappings.reduce_from_group(Tensor(whole(world.rank)).transpose(), world)
    assert np.array_equal(y.data, sum(whole(rank) for rank in range(world.size)).T)
    part_of_sum = mappings.reduce_scatter_in_group(Tensor(whole(world.rank)).transpose(), world, 1)
    assert np.array_equal(part_of_sum.data, mappings.split(y.data, world, 1))
    z = whole(world.rank).astype(np.float64)
    assert mappings.sum_over(z, world).sum() == sum(whole(rank).sum() for rank in range(world.size))
    assert np.array_equal(z, whole(world.rank))
    x = np.full((2, 2), 2**24 if world.rank == 0 else 1, np.float32)  # in float32 2^24 + 1 is 2^24
    return mappings.sum_over(x, world)[1, 1]


def test_mappings_take_any_order_and_sum_in_float64(ranks):
    assert ranks(3).run(any_order_and_dtype, timeout=LIMIT) == [np.float32(2**24 + 2)] * 3


def test_sums_are_rounded_once(ranks):
    """Against exact sums: Python's fsum of the float32 numbers, rounded to float32."""
    inputs = [np.random.default_rng(rank).standard_normal(5000).astype(np.float32) for rank in range(5)]
    exact = np.array([np.float32(fsum(column)) for column in zip(*inputs, strict=True)])
    results = ranks(5).run(sums, timeout=LIMIT)
    for rank, (total, mine) in enumerate(results):
        assert np.array_equal(total, exact) and np.array_equal(mine, part(exact, rank, 5))
