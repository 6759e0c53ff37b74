"""The promise: every layout ends on the bits of one process. And its opposite: planted faults do not."""

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest

import minidist as md
from minidist.comm.tables import ALL_REDUCE
from minidist.parallel.data import SYNCS
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RunOptions
from minidist.train.trainer import run, train_rank
from minidist.verify.comparison import agrees, first_difference, verify
from minidist.verify.matrix import covering
from minidist.verify.ulps import ulps_between

SMALL = TrainConfig(
    layers=1, heads=2, width=16, context=16, global_batch=10, micro_batch=1, steps=3, warmup=2, lr=1e-2, clip=0.5
)
CONFIGS = {
    "plain": SMALL,
    "dropout": replace(SMALL, dropout=0.2),
    "odd": replace(
        SMALL, layers=2, heads=3, width=15, context=7, global_batch=18, micro_batch=2, dropout=0.1, clip=1e9
    ),
}
LIMIT = 60


def layouts_to_try() -> list[tuple[str, Layout]]:
    """A sample of all settings: every value of each, and every pair of values of two, at least once."""
    settings = {
        "config": list(CONFIGS),
        "dp": [1, 2, 3, 4, 5, 6, 7, 8],
        "algorithm": ["auto", *ALL_REDUCE],
        "sync": list(SYNCS),
        "bucket_mb": [1e-6, 0.01, 10.0],  # a parameter each, a few, all in one
    }
    everything = [dict(zip(settings, row, strict=True)) for row in itertools.product(*settings.values())]
    random.Random(0).shuffle(everything)
    rows = [everything[place] for place in covering(everything)]
    return [(row.pop("config"), Layout(**row)) for row in rows]


@pytest.fixture(scope="module")
def one_process(ranks):
    return {name: run(ranks(1), config, Layout()) for name, config in CONFIGS.items()}


@pytest.mark.parametrize("dp", [1, 2, 3, *(pytest.param(dp, marks=pytest.mark.long) for dp in range(4, 9))])
def test_every_layout_ends_on_the_bits_of_one_process(ranks, one_process, dp):
    tried = [(name, layout) for name, layout in layouts_to_try() if layout.dp == dp]
    assert len(tried) >= 5
    for name, layout in tried:
        result = run(ranks(layout.world_size), CONFIGS[name], layout)
        assert agrees(one_process[name], result), f"{name}: {layout}"
        assert result.losses == one_process[name].losses


def test_configs_differ(one_process):
    assert len({result.fingerprint for result in one_process.values()}) == len(CONFIGS)


@pytest.mark.long
def test_training_learns(ranks):
    result = run(
        ranks(2), TrainConfig(steps=40, global_batch=16), Layout.parse("dp=2"), RunOptions(validate=True, sample=5)
    )
    assert result.losses[0] > 5.3  # about log(256) nats before it has seen anything
    assert result.losses[-1] < 3.3 and result.ranks[0].validation_loss < 3.3
    assert len(result.ranks[0].sample) == 5


@pytest.mark.long
def test_float32_sums_drift(ranks):
    """What float64 sums are for: without them two layouts part, at the first step, by an ulp or so."""
    config = replace(SMALL, reduce_dtype="float32")
    reference, *others = verify(
        [Layout.parse("dp=2"), Layout.parse("dp=3"), Layout.parse("dp=4,algorithm=tree")], config
    )
    differing = [other for other in others if not agrees(reference, other)]
    assert differing
    place = first_difference(reference, differing[0])
    assert place.step == 0 and 1 <= place.ulps < 10_000 and place.elements > 0
    assert place.expected != place.found
    losses = np.array([run.losses for run in (reference, *others)])
    assert np.allclose(losses, losses[0], atol=1e-3)  # it is drift, not an error


def test_float32_sums_alone_are_reproducible(ranks):
    config = replace(SMALL, reduce_dtype="float32")
    layout = Layout.parse("dp=4,algorithm=ring")
    assert run(ranks(4), config, layout).fingerprint == run(ranks(4), config, layout).fingerprint


# Planted faults. Each is put into the ranks of every run but the reference.


def without_all_reduce(world, config, layout, options):
    import minidist.parallel.data as data

    class Done:
        def wait(self):
            return True

    data.all_reduce = lambda *arguments, **options: Done()
    return train_rank(world, config, layout, options)


def sum_for_mean(world, config, layout, options):
    from minidist.train import step

    average = step.average_gradients
    step.average_gradients = lambda parameters, count: average(parameters, count // layout.dp)
    return train_rank(world, config, layout, options)


def same_batch_on_two_ranks(world, config, layout, options):
    from minidist.train import parallelize

    share = parallelize.share_of
    parallelize.share_of = lambda rank, size, count: share(0 if rank == 1 else rank, size, count)
    return train_rank(world, config, layout, options)


def seed_by_rank(world, config, layout, options):
    return train_rank(world, replace(config, seed=config.seed + world.rank), layout, options)


def a_gradient_arrives_damaged(world, config, layout, options):
    from minidist.parallel.data import BucketedDataParallel

    finish = BucketedDataParallel.wait_for_gradients

    def finish_then_damage(self):
        finish(self)
        self.buckets[-1].buffer[:1] = 0  # as if the start of its message had been lost

    BucketedDataParallel.wait_for_gradients = finish_then_damage
    return train_rank(world, config, layout, options)


FAULTS = [without_all_reduce, sum_for_mean, same_batch_on_two_ranks, seed_by_rank, a_gradient_arrives_damaged]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_planted_faults_are_found(fault):
    reference, broken = verify([Layout.parse("dp=2")], SMALL, rank_function=fault)
    assert not agrees(reference, broken)
    place = first_difference(reference, broken, fault)
    assert place.step == 0
    assert place.name in reference_names(SMALL) and place.ulps >= 1
    assert "first differs after step 0, in " in str(place)


def reference_names(config) -> set[str]:
    with md.Cluster(1) as cluster:
        return set(run(cluster, config, Layout(), RunOptions(stop_after=0)).ranks[0].arrays) | {"loss"}


def three_weights_move_on_rank_one_in_step_two(world, config, layout, options):
    import minidist.train.share as share

    class Nudging(share.AdamW):
        def step(self):
            super().step()
            if world.rank == 1 and self.steps == 3:
                weight = next(p for p in self.parameters if p.name == "blocks.0.mlp.fc.weight").data
                for place in ((0, 3, 5), (1, 0, 0), (1, 2, 2)):
                    weight[place] = np.nextafter(np.nextafter(weight[place], np.float32(9)), np.float32(9))

    share.AdamW = Nudging
    return train_rank(world, config, layout, options)


def test_the_first_difference_is_the_planted_one():
    fault = three_weights_move_on_rank_one_in_step_two
    reference, broken = verify([Layout.parse("dp=2")], SMALL, rank_function=fault)
    place = first_difference(reference, broken, fault)
    assert (place.step, place.name, place.index) == (2, "blocks.0.mlp.fc.weight", (0, 3, 5))
    assert (place.ulps, place.elements, place.shape) == (2, 3, (2, 16, 32))
    assert place.found > place.expected and ulps_between(place.expected, place.found) == 2
    numbers = f"expected {place.expected!s}, got {place.found!s}, 2 ulps apart"
    where = f"first differs after step 2, in blocks.0.mlp.fc.weight[0, 3, 5] ({numbers})"
    assert str(place) == f"{where}; 3 of its 1,024 elements differ"


def a_wrong_loss_in_step_one(world, config, layout, options):
    from minidist.train.parallelize import ParallelModel

    mean_loss, calls = ParallelModel.mean_loss, []

    def wrong(*arguments):
        calls.append(None)
        return mean_loss(*arguments) + (len(calls) == 2) * 1e-9

    ParallelModel.mean_loss = wrong
    return train_rank(world, config, layout, options)


def test_a_loss_alone_can_differ():
    reference, broken = verify([Layout.parse("dp=2")], SMALL, rank_function=a_wrong_loss_in_step_one)
    place = first_difference(reference, broken, a_wrong_loss_in_step_one)
    assert (place.step, place.name, place.index) == (1, "loss", ())


def only_rank_one_is_wrong(world, config, layout, options):
    result = train_rank(world, config, layout, options)
    if world.rank == 1:
        result.fingerprint = "another"
    return result


def test_replicas_that_differ_from_rank_0_are_found():
    reference, broken = verify([Layout.parse("dp=2")], SMALL, rank_function=only_rank_one_is_wrong)
    assert broken.fingerprint == reference.fingerprint and not agrees(reference, broken)
