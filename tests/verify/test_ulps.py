"""Distances in ulps, against the definition."""

import numpy as np
import pytest

from minidist.verify.ulps import in_words, ulps_between


def test_distances_are_signed_steps():
    one = np.array([1.0, -1.0, 0.0, -1e-45, 3.0], np.float32)
    other = np.array([np.nextafter(np.float32(1), np.float32(2)), -1.0, -0.0, 1e-45, 2.0], np.float32)
    assert ulps_between(one, other).tolist() == [1, 0, 0, 2, -(1 << 22)]
    assert ulps_between(other, one).tolist() == [-1, 0, 0, -2, 1 << 22]
    assert ulps_between(one[0], other[0]) == 1


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_as_many_as_steps_to_the_next_number(dtype):
    one, steps = dtype(0.999), 1000
    other = one
    for _ in range(steps):
        other = np.nextafter(other, dtype(2))
    assert ulps_between(np.array([[one]]), np.array([[other]])).tolist() == [[steps]]


def test_the_longest_distances_do_not_wrap_around():
    one, other = np.array([-1e300, 1e300, -1.0]), np.array([1e300, -1e300, 1.0])
    farthest, near = 2**63 - 1, 2 * int(np.float64(1).view(np.int64))
    assert ulps_between(one, other).tolist() == [farthest, -farthest, near]


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(ValueError, match="float32"):
        ulps_between(np.zeros(3, np.float32), np.zeros(3))
    with pytest.raises(ValueError, match="int64"):
        ulps_between(np.zeros(3, int), np.zeros(3, int))


def test_in_words():
    found = [in_words(count) for count in (1, -1, 0, 1234, 10**9, np.int64(2**63 - 1))]
    assert found == ["1 ulp", "1 ulp", "0 ulps", "1,234 ulps", "about 10^9 ulps", "about 10^19 ulps"]
