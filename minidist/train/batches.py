"""A step's batch is made of micro-batches, the grain that no layout splits: what is in each of them."""

import numpy as np

from minidist import backend
from minidist.nn.data import Corpus, micro_batch
from minidist.nn.random import DropoutRNG
from minidist.train.config import TrainConfig


def batch_of(corpus: Corpus, config: TrainConfig, step: int, index: int | None) -> tuple:
    """One micro-batch of a step: tokens and targets (B, T), and the random generators of its dropout.

    Without an index it has no samples, B = 0: a rank that has fewer than others takes part in what they do together.
    """
    if index is None:
        nothing = np.empty((0, config.context), np.uint8)
        return backend.from_host(nothing), backend.from_host(nothing), None
    first = index * config.micro_batch
    batch = micro_batch(corpus, config.seed, step, first, config.micro_batch, config.context)
    return *map(backend.from_host, batch), DropoutRNG(config.seed, step, index)
