"""The messages between stages: each has a tag of its own, and its array is let go of as soon as it is sent."""

from dataclasses import replace

import pytest

from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.trainer import run, train_rank

CONFIG = TrainConfig(layers=4, heads=2, width=16, context=8, steps=1, global_batch=12, micro_batch=1, warmup=1)


def tags_of_sends(world, config, layout, options):
    """Train, and return the tag of every activation and gradient that this rank sent."""
    from unittest import mock

    from minidist.parallel import pipeline

    isend, tags = pipeline.isend, []

    def recording(tensor, dst, group, tag):
        tags.append(tag)
        return isend(tensor, dst, group, tag)

    with mock.patch.object(pipeline, "isend", recording):
        result = train_rank(world, config, layout, options)
    result.log = tags
    return result


@pytest.mark.parametrize("text", ["pp=2", "pp=3,schedule=zb-h1", "pp=2,virtual=2"])
def test_a_tag_names_one_message_of_a_step(ranks, text):
    """Its border, its micro-batch and its direction, so that no mistake of a rank can swap two messages unnoticed."""
    layout = Layout.parse(text)
    result = run(ranks(layout.world_size), CONFIG, layout, rank_function=tags_of_sends)
    tags = [tag for rank in result.ranks for tag in rank.log]
    borders = layout.stage_count - 1
    assert len(tags) == len(set(tags)) == 2 * borders * CONFIG.micro_batches


def sent_arrays_alive(world, config, layout, options):
    """Train, and return how many of the arrays that this rank had sent before were in memory at each send."""
    import weakref
    from unittest import mock

    from minidist.parallel import pipeline

    isend, sent, alive = pipeline.isend, [], []

    def recording(tensor, dst, group, tag):
        alive.append(sum(reference() is not None for reference in sent))
        sent.append(weakref.ref(tensor))
        return isend(tensor, dst, group, tag)

    with mock.patch.object(pipeline, "isend", recording):
        result = train_rank(world, config, layout, options)
    result.log = alive
    return result


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1"])
def test_a_gradient_that_has_been_sent_is_let_go_of(ranks, schedule):
    """The last rank sends gradients alone, which nobody else needs; each fits the queue, and so is sent at once."""
    layout = Layout.parse(f"pp=2,schedule={schedule}")
    few, many = (
        run(ranks(2), replace(CONFIG, global_batch=count), layout, rank_function=sent_arrays_alive).ranks[1].log
        for count in (4, 12)
    )
    assert len(many) == 12 and max(many) == max(few) <= 1
