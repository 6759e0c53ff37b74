"""Each use of dropout has its own mask.

The fingerprint cannot see two masks that are the same by mistake: one process draws them as well.
"""

import pytest

from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.trainer import run, train_rank

LIMIT = 60
# The context is as long as the model is wide, so that all masks have one shape and two of them can be the same.
CONFIG = TrainConfig(
    layers=3, heads=2, width=32, context=32, steps=2, global_batch=4, micro_batch=2, dropout=0.5, warmup=1
)
PLACES = 1 + CONFIG.layers * (2 + CONFIG.heads)  # the embeddings; in each block two places and every head's weights


def masks_drawn(world, config, layout, options):
    """Train, and return the bits of all dropout masks in the order in which they were drawn."""
    from unittest import mock

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


@pytest.fixture(scope="module")
def masks_of_one_process(ranks):
    return run(ranks(1), CONFIG, Layout(), rank_function=masks_drawn).ranks[0].log


def test_no_two_places_layers_heads_micro_batches_or_steps_share_a_mask(masks_of_one_process):
    count = CONFIG.steps * CONFIG.micro_batches * PLACES
    assert len(masks_of_one_process) == count
    assert len(set(masks_of_one_process)) == count


@pytest.mark.parametrize("text", ["dp=2", "pp=3", "tp=2"])
def test_every_layout_draws_the_masks_of_one_process(ranks, masks_of_one_process, text):
    layout = Layout.parse(text)
    result = run(ranks(layout.world_size), CONFIG, layout, rank_function=masks_drawn)
    drawn = [set(rank.log) for rank in result.ranks]
    assert set().union(*drawn) == set(masks_of_one_process)
    if text == "dp=2":  # each rank has micro-batches of its own
        assert not drawn[0] & drawn[1]


def test_recomputation_draws_each_mask_again_and_no_other(ranks, masks_of_one_process):
    again = run(ranks(1), CONFIG, Layout(recompute="full"), rank_function=masks_drawn).ranks[0].log
    assert set(again) == set(masks_of_one_process) and len(again) > len(masks_of_one_process)
