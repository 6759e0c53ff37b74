"""Pipeline parallelism: the halves of a backward, the messages, and what is held while they travel."""

import weakref
from dataclasses import replace
from unittest import mock

import numpy as np

from minidist.nn.gpt import GPT
from minidist.nn.split_backward import backward_inputs
from minidist.nn.tensor import Tensor
from minidist.parallel import pipeline
from minidist.parallel.pipeline import spread
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.trainer import run, train_rank

CONFIG = TrainConfig(layers=4, heads=4, width=16, context=8, steps=1, global_batch=12, micro_batch=1, warmup=1)


def test_layers_are_spread_evenly():
    assert [spread(7, 3), spread(6, 3), spread(5, 5), spread(3, 1)] == [[3, 2, 2], [2, 2, 2], [1] * 5, [3]]


def test_the_two_halves_of_a_backward_are_the_whole():
    """The same bits, and nothing of a weight before the second half."""
    found = []
    for halves in (False, True):
        model = GPT(CONFIG.model)
        x = Tensor(np.random.default_rng(0).standard_normal((2, 8, 16), np.float32), requires_grad=True)
        y = model.blocks[1](model.blocks[0](x, None), None)
        gradient = np.ones(y.shape, np.float32)
        if halves:
            rest = backward_inputs(y, gradient, [x])
            assert x.grad is not None and all(p.grad is None for p in model.parameters())
            rest()
        else:
            y.backward(gradient)
        found.append([x.grad, *(p.grad for block in model.blocks[:2] for p in block.parameters())])
    assert all(np.array_equal(one, other) for one, other in zip(*found, strict=True))


def noting_sends(world, *arguments):
    """Train; log the tag of every message, and how many of the arrays sent before it were in memory then."""
    isend, sent, noted = pipeline.isend, [], []

    def recording(tensor, dst, group, tag):
        noted.append((tag, sum(reference() is not None for reference in sent)))
        sent.append(weakref.ref(tensor))
        return isend(tensor, dst, group, tag)

    with mock.patch.object(pipeline, "isend", recording):
        result = train_rank(world, *arguments)
    result.log = noted
    return result


def sends(ranks, text: str, micro_batches: int) -> list[list[tuple[int, int]]]:
    layout, config = Layout.parse(text), replace(CONFIG, global_batch=micro_batches)
    return [rank.log for rank in run(ranks(layout.world_size), config, layout, rank_function=noting_sends).ranks]


def test_a_tag_names_one_message_of_a_step(ranks):
    """Its border, its micro-batch and its direction, so that no mistake of a rank can swap two messages unnoticed."""
    for text, borders in (("pp=2", 1), ("pp=3,schedule=zb-h1", 2), ("pp=2,virtual=2", 3)):
        tags = [tag for rank in sends(ranks, text, 12) for tag, _ in rank]
        assert len(tags) == len(set(tags)) == 2 * borders * 12, text


def test_a_gradient_that_has_been_sent_is_let_go_of(ranks):
    """The last rank sends gradients alone, which nobody else needs; each fits the queue, and so is sent at once."""
    for schedule in ("gpipe", "1f1b", "zb-h1"):
        few, many = ([alive for _, alive in sends(ranks, f"pp=2,schedule={schedule}", count)[1]] for count in (4, 12))
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
