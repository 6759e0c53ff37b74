"""A step's batch is made of micro-batches, the grain that no layout splits: what is in each of them."""

from collections.abc import Iterable

import numpy as np

from minidist import backend
from minidist.nn.data import Corpus, MicroBatch, micro_batch
from minidist.nn.random import DropoutRNG
from minidist.train.config import TrainConfig


def batch_of(corpus: Corpus, config: TrainConfig, step: int, number: int | None) -> MicroBatch:
    """One micro-batch of a step, by its number within the step.

    Without a number it has no samples, B = 0: a rank that has fewer than others takes part in what they do together.
    """
    if number is None:
        nothing = np.empty((0, config.context), np.uint8)
        return MicroBatch(backend.from_host(nothing), backend.from_host(nothing), None)
    first = number * config.micro_batch
    batch = micro_batch(corpus, config.seed, step, first, config.micro_batch, config.context)
    return MicroBatch(*map(backend.from_host, batch), DropoutRNG(config.seed, step, number))


def micro_batches_of(corpus: Corpus, config: TrainConfig, step: int, numbers: Iterable[int | None]) -> list[MicroBatch]:
    """Some micro-batches of a step, as ``batch_of`` makes each."""
    return [batch_of(corpus, config, step, number) for number in numbers]
