"""What is in flight: ZeRO's next unit, no result before its wait, and nothing that a pipeline has sent already."""

import weakref
from dataclasses import replace
from unittest import mock

import numpy as np

from minidist.nn.gpt import GPT
from minidist.parallel import data, pipeline, zero
from minidist.parallel.zero import ZeroStage3
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.trainer import run, train_rank
from minidist.verify.comparison import agrees

# Nothing divides evenly
CONFIG = TrainConfig(layers=3, heads=3, width=15, context=9, steps=2, global_batch=6, micro_batch=1, warmup=1)


def noting_gathers(*arguments):
    """Train; log after each unit's forward how many all-gathers are under way."""
    after_forward, noted = ZeroStage3.after_forward, []

    def noting(self, unit, output):
        noted.append(len(self.gathering))
        return after_forward(self, unit, output)

    with mock.patch.object(ZeroStage3, "after_forward", noting):
        result = train_rank(*arguments)
    result.log = noted
    return result


def test_with_prefetch_the_next_unit_is_gathered_while_one_computes(ranks):
    for prefetch, most in ((0, {0}), (1, {0, 1})):
        found = run(ranks(2), CONFIG, Layout(2, zero=3, prefetch=prefetch), rank_function=noting_gathers)
        assert all(set(rank.log) == most for rank in found.ranks)


def test_a_parameter_that_is_not_gathered_is_a_hole(ranks):
    """Using a unit that was given up spreads NaN, instead of quietly using old numbers."""

    def main(world):
        model = GPT(CONFIG.model)
        ZeroStage3(model, model.blocks, world, world.new_group([world.rank]), 1)
        weight = model.blocks[0].mlp.fc.weight
        return weight.shape, bool(np.isnan(weight.data).all()), weight.data.strides

    assert ranks(2).run(main, timeout=30) == [((3, 15, 20), True, (0, 0, 0))] * 2


def results_at_the_wait_alone(*arguments):
    """Train with collectives that do their work in ``wait``. Until then their result is NaN.

    A wait that comes too late may go unnoticed, because the collective happens to be over by then. Here it cannot.
    """

    def late(collective):
        def started(output, *arguments, async_op=False, **options):
            if not async_op:
                return collective(output, *arguments, **options)
            values = output.copy()
            output.fill(np.nan)

            class Work:
                def wait(self) -> bool:
                    output[...] = values
                    collective(output, *arguments, **options)
                    return True

            return Work()

        return started

    names = [(zero, "reduce_scatter_tensor"), (zero, "all_gather_into_tensor"), (zero, "all_reduce")]
    for module, name in [*names, (data, "all_reduce")]:
        mock.patch.object(module, name, late(getattr(module, name))).start()
    try:
        return train_rank(*arguments)
    finally:
        mock.patch.stopall()


def test_no_result_is_used_before_its_wait(ranks):
    """Two of four ranks have no second micro-batch, and take part in the others' messages all the same."""
    one_process = run(ranks(1), CONFIG, Layout())
    for text in (
        "dp=2,bucket_mb=0.01", "dp=2,sync=bucketed,bucket_mb=0.01", "zero=1,dp=2", "zero=2,dp=2", "zero=3,dp=4",
        "zero=1,dp=4,shard=2", "zero=2,dp=4,shard=2", "zero=3,dp=4,shard=2", "zero=3,dp=2,prefetch=1",
        "zero=3,dp=3,prefetch=1,reshard_after_forward=0",
    ):  # fmt: skip
        layout = Layout.parse(text)
        found = run(ranks(layout.dp), CONFIG, layout, rank_function=results_at_the_wait_alone)
        assert agrees(one_process, found), text


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
        assert len(many) == 2 * 12 and max(many) == max(few) <= 1, schedule
