"""Tiled attention with one bug: where a tile brings a larger maximum, the sums of the tiles before are not rescaled."""

from unittest.mock import patch

import numpy as np

from minidist.backend import xp
from minidist.nn.attention.online_softmax import OnlineSoftmax
from minidist.train.config import TrainConfig
from minidist.train.trainer import train_rank

BUG = "where a tile brings a larger maximum, the sums of the tiles before it are not rescaled"
MODEL = TrainConfig(
    layers=2, heads=2, width=32, context=32, global_batch=2, micro_batch=2, steps=2, attention="tiled", attention_tile=8
)


def merge_without_rescaling(o, sums, largest, s, values) -> None:
    """``slow_memory.merge``, whose earlier sums stay relative to a smaller maximum."""
    np.maximum(largest, s.max(axis=1), out=largest)
    s[...] = np.exp(s - largest[:, None])
    sums += s.sum(axis=1)
    o += s @ values


def train_without_rescaling(world, config, layout, options):
    """Train with the bug in the model's attention."""

    def merge(self: OnlineSoftmax, exponent, weight, value) -> None:
        exponent = exponent.astype(xp.int32)
        self.exponent = xp.maximum(self.exponent, exponent)
        for total, term in ((self.weight, weight), (self.value, value)):
            total.add(xp.ldexp(term.astype(xp.float64), exponent - self.exponent))

    with patch.object(OnlineSoftmax, "merge", merge):
        return train_rank(world, config, layout, options)
