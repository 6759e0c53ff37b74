"""The order of samples: a permutation in each epoch, whoever asks for them and in batches of whatever size."""

import random
from collections import Counter

import numpy as np
import pytest

from minidist.data.order import MIX, ROUNDS, WORD, permuted, sample_at
from minidist.train.config import Ramp, TrainConfig
from minidist.train.share import batch_of, corpus_of

LARGE = (10**6, 2**20, 2**20 + 1, 2**31, 3**25, 10**15, 2**62 + 3)


def keys(seed: int) -> tuple[int, ...]:
    rng = random.Random(seed)
    return tuple(rng.randrange(1 << 63) for _ in range(ROUNDS))


def unpermuted(place: int, count: int, keys: tuple[int, ...]) -> int:
    """Walk back: undo the rounds, until the place is one of the samples."""
    bits = 1
    while 4**bits < count:
        bits += 1
    while True:
        left, right = divmod(place, 1 << bits)
        for key in reversed(keys):
            mixed = (left ^ key) * MIX & WORD
            mixed = (mixed ^ (mixed >> 29)) * MIX & WORD
            left, right = right ^ ((mixed >> 32) % (1 << bits)), left
        place = (left << bits) + right
        if place < count:
            return place


def test_an_epoch_is_a_permutation():
    for count in range(1, 301):
        assert sorted(permuted(place, count, keys(count)) for place in range(count)) == list(range(count))


@pytest.mark.parametrize("count", LARGE)
def test_an_epoch_of_many_samples_is_a_permutation(count):
    """Each of those looked at has one place only, by the way back."""
    rng = random.Random(count)
    places = [0, 1, count - 2, count - 1, *(rng.randrange(count) for _ in range(500))]
    found = [permuted(place, count, keys(1)) for place in places]
    assert all(0 <= sample < count for sample in found)
    assert [unpermuted(sample, count, keys(1)) for sample in found] == places
    assert [permuted(unpermuted(sample, count, keys(2)), count, keys(2)) for sample in places] == places


def test_the_order_is_that_of_earlier_versions():
    """No checkpoint holds it: a run that is resumed by another version would see some samples twice, others never."""
    assert [sample_at(number, 7, 5)[1] for number in range(14)] == [2, 0, 4, 3, 6, 1, 5, 2, 3, 5, 0, 4, 6, 1]
    assert [sample_at(number, 10**6, 0)[1] for number in range(5)] == [566541, 171076, 415703, 1997, 194441]


def test_places_of_an_epoch_are_as_if_drawn_by_chance():
    """Each of 64 blocks of samples comes about as often in each of 64 blocks of places (chi-squared, 6 sigma)."""
    count = 1 << 14
    for seed in range(3):
        pairs = Counter(
            (place * 64 // count, permuted(place, count, keys(seed)) * 64 // count) for place in range(count)
        )
        expected = count / 64**2
        squares = sum((pairs[row, column] - expected) ** 2 / expected for row in range(64) for column in range(64))
        assert abs(squares - 63**2) < 6 * (2 * 63**2) ** 0.5


def test_every_epoch_has_an_order_of_its_own():
    orders = {}
    for seed in range(3):
        for count in (2, 5, 40):
            found = [sample_at(number, count, seed) for number in range(4 * count)]
            assert [epoch for epoch, _ in found] == [number // count for number in range(4 * count)]
            for epoch in range(4):
                order = tuple(sample for _, sample in found[epoch * count : (epoch + 1) * count])
                assert sorted(order) == list(range(count))
                orders[seed, count, epoch] = order
    of_forty = {order for (_, count, _), order in orders.items() if count == 40}
    assert len(of_forty) == 3 * 4 and tuple(range(40)) not in of_forty


def test_a_ramp_knows_the_samples_before_each_step():
    rng = random.Random(0)
    for _ in range(200):
        increment, stages = rng.randint(1, 5), rng.randint(1, 5)
        start = rng.randint(1, 9)
        ramp = Ramp(start, increment, rng.randint(0, 300), start + stages * increment)
        total = 0
        for step in range(120):
            assert ramp.samples_before(step) == total, (ramp, step)
            total += ramp.batch_at(step)


@pytest.mark.parametrize("packing", ["cut", "best-fit"])
def test_who_sees_what_depends_on_no_batch_size_and_no_rank(packing, tmp_path):
    """Over two epochs the samples come in one order, however steps, micro-batches and ranks share them."""
    path = tmp_path / "text.jsonl"
    path.write_text("\n".join(f'{{"text": "{"word " * (n % 7 + 1)}{n}"}}' for n in range(40)))
    shared = {"text": str(path), "packing": packing, "context": 8, "seed": 3}
    sizes = [
        {"global_batch": 6, "micro_batch": 1},
        {"global_batch": 6, "micro_batch": 3},
        {"global_batch": 1, "micro_batch": 1},
        {"global_batch": 14, "micro_batch": 2, "rampup_batch_size": "2,4,30"},
        {"global_batch": 7, "micro_batch": 7},
    ]
    corpus = corpus_of(TrainConfig(**shared))
    count = 2 * len(corpus.training) + 1
    expected = corpus.training.batch([sample_at(number, len(corpus.training), 3)[1] for number in range(count)])
    for size in sizes:
        config, rows, step = TrainConfig(**shared, **size), [[], [], []], 0
        while len(rows[0]) < count:
            numbers = range(config.batch_at(step) // config.micro_batch)
            found = [batch_of(corpus_of(config), config, step, n) for n in reversed(numbers)]  # as other ranks may ask
            for tokens, targets, _, documents in reversed(found):
                for row, array in zip(rows, (tokens, targets, documents.first), strict=True):
                    row.extend(array)
            step += 1
        for row, array in zip(rows, (*expected[:2], expected[2].first), strict=True):
            assert (np.stack(row[:count]) == array).all(), size
