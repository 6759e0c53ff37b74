"""Runs against NumPy's own indexing: a region says where each element of a part is, however often it was cut."""

import random
from itertools import pairwise

import numpy as np

from minidist.parallel.tools.regions import Region, overlaps, place_in_full


def cut_at_random(rng: random.Random, shape: tuple[int, ...]) -> tuple[Region, np.ndarray]:
    """A region, and the places of its elements as NumPy finds them when it indexes an array of places."""
    region, expected = Region.full(shape), np.arange(int(np.prod(shape))).reshape(shape)
    for _ in range(rng.randrange(4)):
        axis = rng.randrange(expected.ndim)
        start = rng.randrange(expected.shape[axis] + 1)
        stop = rng.randrange(start, expected.shape[axis] + 1)
        region = region.cut(axis, start, stop)
        expected = expected[(slice(None),) * axis + (slice(start, stop),)]
        assert region.shape == expected.shape
    if rng.random() < 0.5:
        start = rng.randrange(expected.size + 1)
        stop = rng.randrange(start, expected.size + 1)
        region, expected = region.stretch(start, stop), expected.reshape(-1)[start:stop]
    return region, expected


def test_cuts_are_those_of_numpy_and_what_overlaps_is_copied_to_its_place():
    for seed in range(300):
        rng = random.Random(seed)
        shape = tuple(rng.randrange(1, 6) for _ in range(rng.randrange(1, 5)))
        (wanted, at), (there, stored) = cut_at_random(rng, shape), cut_at_random(rng, shape)
        assert [place for run in wanted.runs for place in range(*run)] == at.reshape(-1).tolist(), seed
        assert [place_in_full(wanted.runs, place) for place in range(at.size)] == at.reshape(-1).tolist(), seed
        assert wanted.size == at.size and all(start < stop for start, stop in wanted.runs)
        assert all(one[1] != two[0] for one, two in pairwise(wanted.runs))  # touching ones are joined
        values = np.full(wanted.size, -1)
        for here, other, length in overlaps(wanted.runs, there.runs):
            values[here : here + length] = stored.reshape(-1)[other : other + length]
        common = np.isin(at.reshape(-1), stored.reshape(-1))
        assert np.array_equal(values, np.where(common, at.reshape(-1), -1)), seed
