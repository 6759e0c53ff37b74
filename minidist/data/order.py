"""The order of samples, as a pure function of (seed, epoch, step, sample).

An epoch has every sample once, in an order of its own. The n-th sample of a run, counted from its first step, is the
(n mod size)-th of epoch n div size. Nothing depends on ranks, and nothing has to be saved: a run that is resumed, in
any layout, knows the next sample from the number of its step.

A shuffled list of all numbers would be as long as the data. A *permutation* can be computed place by place instead: a
Feistel network (Luby & Rackoff, 1988) mixes the bits of a number so that no two numbers give the same result, with any
round function, because each round can be undone. It permutes 4^b numbers; a result beyond the samples is permuted again
until it is among them ("cycle walking", Black & Rogaway, 2002).
"""

from functools import lru_cache

from minidist.nn.random import generator
from minidist.overrides import overridable

ROUNDS = 6
MIX = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio, odd
WORD = (1 << 64) - 1


@overridable
def permuted(place: int, count: int, keys: tuple[int, ...]) -> int:
    """Return the number of the sample, of ``count``, at a place of an epoch: no two places have the same sample.

    Args:
        place: place in the epoch, from 0 to count - 1.
        keys: a number of 64 bits for each round; other keys give another order.
    """
    half = max(1, (count - 1).bit_length() + 1 >> 1)  # bits of each half
    mask = (1 << half) - 1
    while True:
        left, right = place >> half, place & mask
        for key in keys:
            mixed = (right ^ key) * MIX & WORD
            mixed = (mixed ^ mixed >> 29) * MIX & WORD
            left, right = right, left ^ (mixed >> 32 & mask)
        place = left << half | right
        if place < count:
            return place


def sample_at(number: int, count: int, seed: int) -> tuple[int, int]:
    """Return the epoch of a run's ``number``-th sample, counted from 0, and its number among the ``count`` samples."""
    epoch, place = divmod(number, count)
    return epoch, permuted(place, count, _keys_of(seed, epoch))


@lru_cache(maxsize=2)  # a batch may have samples of two epochs
def _keys_of(seed: int, epoch: int) -> tuple[int, ...]:
    return tuple(generator("order", seed, epoch).integers(1 << 63, size=ROUNDS).tolist())
