"""Each use of dropout has its own mask, of the right statistics, and every layout draws the same ones.

The fingerprint cannot see two masks that are the same by mistake: one process draws them as well.
"""

from collections import Counter
from dataclasses import replace
from unittest import mock

import numpy as np

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


def masks_drawn(world, config, layout, options):
    """Train, and return the bits of all dropout masks in the order in which they were drawn."""
    from minidist.nn import functional

    draw, masks = functional.dropout_mask, []

    def recording(*arguments):
        mask = draw(*arguments)
        masks.append(mask.tobytes())
        return mask

    with mock.patch.object(functional, "dropout_mask", recording):
        result = train_rank(world, config, layout, options)
    result.log = masks
    return result


def drawn(ranks, config: TrainConfig, text: str) -> list[Counter]:
    """How often each rank draws each mask."""
    layout = Layout.parse(text)
    result = run(ranks(layout.world_size), config, layout, rank_function=masks_drawn)
    return [Counter(rank.log) for rank in result.ranks]


def test_no_two_uses_share_a_mask_and_every_layout_draws_those_of_one_process(ranks):
    """Of places, layers, heads, micro-batches, steps, and chunks of the sequence; recomputed, each mask once more."""
    (masks,) = drawn(ranks, CONFIG, "dp=1")
    assert len(masks) == masks.total() == CONFIG.steps * CONFIG.micro_batches * PLACES
    for text in ("dp=2", "pp=2", "tp=2", "recompute=full"):
        found = drawn(ranks, CONFIG, text)
        assert set().union(*found) == set(masks), text
        if text == "dp=2":  # each rank has micro-batches of its own
            assert not set(found[0]) & set(found[1])
        if text == "recompute=full":
            assert found[0].total() > masks.total()
    (masks,) = drawn(ranks, CHUNKS, "dp=1")
    uses = CHUNKS.steps * CHUNKS.micro_batches * (2 * (1 + CHUNKS.layers * 2) + TILES * CHUNKS.layers * CHUNKS.heads)
    assert len(masks) == uses, "backward draws the tiles' masks again, and no others"
    assert set().union(*drawn(ranks, CHUNKS, "cp=2")) == set(masks)


def test_dropout_keeps_the_mean_and_is_off_without_random_numbers():
    layer, x = Dropout(0.25, 0, "here"), Tensor(np.ones((400, 400), np.float32))
    assert layer(x, None) is x and Dropout(0.0, 0, "here")(x, DropoutRNG(0, 0, 0)) is x
    y = layer(x, DropoutRNG(0, 0, 0)).data
    assert set(np.unique(y).tolist()) == {0.0, np.float32(4 / 3)}
    for kept in (y > 0).mean(), *(y > 0).mean(axis=0)[:5], (y[1:] * y[:-1] > 0).mean() / 0.75:  # rows are independent
        assert abs(kept - 0.75) < 0.1  # always the same numbers; more than four standard deviations of each
