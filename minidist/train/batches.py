"""A step's batch is made of micro-batches, the grain that no layout splits: what is in each of them."""

from collections.abc import Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Batch(Sequence):
    """What a rank has of a step: micro-batches, each drawn as it is asked for, so that none waits in memory.

    (In torch: a map-style ``Dataset``.)

    Attributes:
        corpus, config, step: of the run.
        numbers: of the micro-batches within the step.
    """

    corpus: Corpus
    config: TrainConfig
    step: int
    numbers: Sequence[int | None]

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, place: int) -> MicroBatch:
        return batch_of(self.corpus, self.config, self.step, self.numbers[place])
