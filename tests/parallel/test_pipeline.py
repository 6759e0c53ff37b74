"""Pipeline parallelism: what is held while messages travel."""

import weakref
from dataclasses import replace
from unittest import mock

from minidist.parallel import pipeline
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.trainer import run, train_rank

CONFIG = TrainConfig(layers=4, heads=4, width=16, context=8, steps=1, global_batch=12, micro_batch=1, warmup=1)


def noting_sends(world, *arguments):
    """Train; log for every message how many of the arrays sent before it were in memory then."""
    isend, sent, noted = pipeline.isend, [], []

    def recording(tensor, dst, group, tag):
        noted.append(sum(reference() is not None for reference in sent))
        sent.append(weakref.ref(tensor))
        return isend(tensor, dst, group, tag)

    with mock.patch.object(pipeline, "isend", recording):
        result = train_rank(world, *arguments)
    result.log = noted
    return result


def test_a_gradient_that_has_been_sent_is_let_go_of(ranks):
    """The last rank sends gradients alone, which nobody else needs; each fits the queue, and so is sent at once."""
    for schedule in ("gpipe", "1f1b", "zb-h1"):
        layout, configs = Layout(pp=2, schedule=schedule), [replace(CONFIG, global_batch=count) for count in (4, 12)]
        few, many = (run(ranks(2), each, layout, rank_function=noting_sends).ranks[1].log for each in configs)
        assert len(many) == 12 and max(many) == max(few) <= 1, schedule
