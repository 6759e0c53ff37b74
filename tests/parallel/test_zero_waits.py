"""What a collective in the background brings may be used after its wait, and not before."""

import pytest

from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.trainer import run, train_rank
from minidist.verify.comparison import agrees

CONFIG = TrainConfig(
    layers=3, heads=2, width=16, context=8, steps=2, global_batch=6, micro_batch=1, clip=0.05, warmup=1
)


def results_at_the_wait_alone(world, config, layout, options):
    """Train with collectives that do their work in ``wait``. Until then their result is NaN.

    A wait that comes too late may go unnoticed, because the collective happens to be over by then. Here it cannot.
    """
    from unittest import mock

    import numpy as np

    from minidist.parallel import data, zero

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
        return train_rank(world, config, layout, options)
    finally:
        mock.patch.stopall()


@pytest.fixture(scope="module")
def one_process(ranks):
    return run(ranks(1), CONFIG, Layout())


@pytest.mark.parametrize(
    "text",
    [
        "dp=2,bucket_mb=0.01",
        "dp=2,sync=bucketed,bucket_mb=0.01",
        *(f"zero={stage},dp=2" for stage in (1, 2, 3)),
        *(f"zero={stage},dp=4,shard=2" for stage in (1, 2, 3)),
        "zero=3,dp=2,prefetch=1",
        "zero=3,dp=3,prefetch=1,reshard_after_forward=0",
    ],
)
def test_no_result_is_used_before_its_wait(ranks, one_process, text):
    layout = Layout.parse(text)
    assert agrees(one_process, run(ranks(layout.dp), CONFIG, layout, rank_function=results_at_the_wait_alone))
