"""A step's batch is made of micro-batches, the grain that no layout splits: what is in each of them."""

from minidist import backend
from minidist.nn.data import Corpus, micro_batch
from minidist.nn.random import DropoutRNG
from minidist.train.config import TrainConfig


def batch_of(corpus: Corpus, config: TrainConfig, step: int, index: int) -> tuple:
    """One micro-batch of a step: tokens and targets (B, T), and the random generators of its dropout."""
    first = index * config.micro_batch
    batch = micro_batch(corpus, config.seed, step, first, config.micro_batch, config.context)
    return *map(backend.from_host, batch), DropoutRNG(config.seed, step, index)
