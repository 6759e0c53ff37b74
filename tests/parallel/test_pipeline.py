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


def sends(ranks, text: str, micro_batches: int) -> list[list[int]]:
    layout, config = Layout.parse(text), replace(CONFIG, global_batch=micro_batches)
    return [rank.log for rank in run(ranks(layout.world_size), config, layout, rank_function=noting_sends).ranks]


def test_a_gradient_that_has_been_sent_is_let_go_of(ranks):
    """The last rank sends gradients alone, which nobody else needs; each fits the queue, and so is sent at once."""
    for schedule in ("gpipe", "1f1b", "zb-h1"):
        few, many = (sends(ranks, f"pp=2,schedule={schedule}", count)[1] for count in (4, 12))
        assert len(many) == 12 and max(many) == max(few) <= 1, schedule


def test_only_the_micro_batches_in_flight_hold_activations(ranks):
    """GPipe's grow with the micro-batches; 1F1B's do not, and a rank in the middle holds p - rank of them."""

    def held(text: str, micro_batches: int) -> list[int]:
        config = replace(CONFIG, global_batch=micro_batches)
        return [rank.memory["activations"] for rank in run(ranks(4), config, Layout.parse(text)).ranks]

    few, many = (held("pp=4,schedule=gpipe", count) for count in (4, 12))
    assert all(2.9 < other / one <= 3 for one, other in zip(few, many, strict=True))  # leaves are counted once
    assert held("pp=4", 4) == held("pp=4", 12)
    middle = held("pp=4", 12)[1:3]  # ranks 1 and 2: a block each
    assert middle[0] / 3 == middle[1] / 2 and many[1] == 4 * middle[0]
