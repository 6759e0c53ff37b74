"""Sums over ranks are rounded once, and any axis is split. What mappings do in a run is in verify/test_matrix.py."""

from math import fsum
from types import SimpleNamespace

import numpy as np

from minidist.nn.tensor import Tensor
from minidist.parallel.tools import mappings


def sums(world):
    x = np.random.default_rng(world.rank).standard_normal(5000).astype(np.float32)
    total, part = mappings.sum_over(x, world), mappings.sum_and_split(x, world, 0)
    assert total.dtype == part.dtype == np.float64  # not rounded yet
    tensor = Tensor(x)
    mapped = mappings.reduce_from_group(tensor, world), mappings.reduce_scatter_in_group(tensor, world, 0)
    assert np.array_equal(mapped[0].data, total.astype(np.float32))
    return mapped[0].data, mapped[1].data


def test_sums_are_rounded_once(ranks):
    """Against exact sums: Python's fsum of the float32 numbers, rounded to float32."""
    inputs = [np.random.default_rng(rank).standard_normal(5000).astype(np.float32) for rank in range(5)]
    exact = np.array([np.float32(fsum(column)) for column in zip(*inputs, strict=True)])
    for rank, (total, mine) in enumerate(ranks(5).run(sums)):
        assert np.array_equal(total, exact) and np.array_equal(mine, np.split(exact, 5)[rank])


def test_any_axis_is_split():
    x, group = np.arange(36, dtype=np.float32).reshape(2, 3, 6), SimpleNamespace(rank=1, size=3)
    mine = mappings.split(x, group, -1)
    assert mine.flags.c_contiguous and np.array_equal(mine, x[..., 2:4])
