"""Each use of dropout has its own mask, of the right statistics.

The fingerprint cannot see two masks that are the same by mistake: every layout draws them as one process does.
"""

from collections import Counter
from dataclasses import replace
from unittest import mock

import numpy as np

from minidist.nn import functional
from minidist.nn.layers import Dropout
from minidist.nn.random import DropoutRNG
from minidist.nn.tensor import Tensor
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.trainer import run, train_rank

# The context is as long as the model is wide, so that all masks have one shape and two of them can be the same.
CONFIG = TrainConfig(
    layers=2, heads=2, width=32, context=32, steps=2, global_batch=4, micro_batch=2, dropout=0.5, warmup=1
)
PLACES = 1 + CONFIG.layers * (2 + CONFIG.heads)  # the embeddings; in each block two places and every head's weights
CHUNKS = replace(CONFIG, sequence_chunks=2, context=64)  # chunks of 32 tokens
TILES = 3  # of each head's weights there: up to the diagonal


def masks_drawn(world, *arguments):
    """Train, and return the bits of all dropout masks in the order in which they were drawn."""
    draw, masks = functional.dropout_mask, []

    def recording(*shape):
        mask = draw(*shape)
        masks.append(mask.tobytes())
        return mask

    with mock.patch.object(functional, "dropout_mask", recording):
        result = train_rank(world, *arguments)
    result.log = masks
    return result


def test_no_two_uses_share_a_mask(ranks):
    """Uses differ by place, layer, head, micro-batch, step or sequence chunk. Recomputation makes each mask again."""
    masks, again, chunks = (
        Counter(run(ranks(1), config, layout, rank_function=masks_drawn).ranks[0].log)
        for config, layout in ((CONFIG, Layout()), (CONFIG, Layout(recompute="full")), (CHUNKS, Layout()))
    )
    assert len(masks) == masks.total() == CONFIG.steps * CONFIG.micro_batches * PLACES
    assert set(again) == set(masks) and again.total() > masks.total()
    uses = CHUNKS.steps * CHUNKS.micro_batches * (2 * (1 + CHUNKS.layers * 2) + TILES * CHUNKS.layers * CHUNKS.heads)
    assert len(chunks) == uses, "backward draws the tiles' masks again, and no others"


def test_dropout_keeps_the_mean_and_is_off_without_random_numbers():
    layer, x = Dropout(0.25, 0, "here"), Tensor(np.ones((400, 400), np.float32))
    assert layer(x, None) is x and Dropout(0.0, 0, "here")(x, DropoutRNG(0, 0, 0)) is x
    y = layer(x, DropoutRNG(0, 0, 0)).data
    assert set(np.unique(y).tolist()) == {0.0, np.float32(4 / 3)}
    for kept in (y > 0).mean(), *(y > 0).mean(axis=0)[:5], (y[1:] * y[:-1] > 0).mean() / 0.75:  # rows are independent
        assert abs(kept - 0.75) < 0.1  # always the same numbers; more than four standard deviations of each
