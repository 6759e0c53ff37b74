"""ZeRO's stages 2 and 3 under a pipeline: the bits, how often a unit is sent, what that holds, and what is refused."""

from collections import Counter
from dataclasses import replace
from unittest import mock

import pytest

from minidist.parallel.zero import Zero
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RunOptions
from minidist.train.trainer import run, train_rank
from minidist.verify.comparison import agrees, first_difference

BASE = TrainConfig(
    layers=4, heads=2, width=16, context=8, steps=2, global_batch=12, micro_batch=1, clip=0.05, warmup=2, dropout=0.2
)
BLOCKS = 2  # on each of two stages
MINE = 6  # micro-batches of a rank with dp=2


@pytest.fixture(scope="module")
def base(ranks):
    return run(ranks(1), BASE, Layout(), RunOptions(step_digests=True))


@pytest.mark.parametrize(
    "text",
    [
        "zero=2",
        "zero=3,prefetch=1",
        "zero=3,reshard_after_forward=0,prefetch=1",
        "zero=2,grad_sync=step,schedule=zb-h1",
        "zero=3,grad_sync=step,virtual=2,recompute=full",
        "zero=3,schedule=zb-h1,recompute=selective,reshard_after_forward=0",
        pytest.param("zero=3,schedule=gpipe,dp=4,shard=2", marks=pytest.mark.long),
        pytest.param("zero=3,schedule=zb-h1,pp=4", marks=pytest.mark.long),
        pytest.param("zero=2,schedule=naive,dp=3,tp=2,sp=1", marks=pytest.mark.long),
        pytest.param("zero=3,virtual=2,dp=3,tp=2,grad_sync=step,reshard_after_forward=0", marks=pytest.mark.long),
    ],
)
def test_bits_of_one_process(ranks, base, text):
    layout = Layout.parse(",".join([text, *(f"{key}=2" for key in ("dp", "pp") if f"{key}=" not in text)]))
    assert agrees(base, run(ranks(layout.world_size), BASE, layout))


@pytest.mark.parametrize("text", ["dp=3,zero=2,grad_sync=step", "dp=5,zero=3,grad_sync=step,reshard_after_forward=0"])
def test_summing_once_a_step_without_a_pipeline(ranks, base, text):
    """The ranks have 12 micro-batches between them: with five of them, some have fewer."""
    layout = Layout.parse(text)
    assert agrees(base, run(ranks(layout.world_size), BASE, layout))


def calls_of_a_step(ranks, text: str, layers: int = 2 * BLOCKS) -> tuple[Counter, dict]:
    """Rank 0's large collectives over the shards, by name; and its peak memory by kind."""
    config = replace(BASE, dropout=0.0, layers=layers)
    (rank, *_) = run(ranks(4), config, Layout.parse("dp=2,pp=2," + text)).ranks
    calls = Counter()
    for row in rank.collectives:
        if row["axis"] == "shard" and row["elements"] > 8:
            calls[row["name"]] += row["calls"]
    return calls, rank.memory


@pytest.mark.long
def test_how_often_a_unit_is_sent(ranks):
    """A rank has two blocks, and a root with the tied weight, whose gradients wait for the step's end in any case."""
    names = "reduce_scatter_tensor", "all_gather_into_tensor"
    expected = {  # rank 0 has six micro-batches
        "zero=1": (BLOCKS + 1, BLOCKS + 1),
        "zero=2": (MINE * BLOCKS + 1, BLOCKS + 1),
        "zero=2,grad_sync=step": (BLOCKS + 1, BLOCKS + 1),
        "zero=3": (MINE * BLOCKS + 1, MINE * (2 * BLOCKS + 2)),
        "zero=3,grad_sync=step": (BLOCKS + 1, MINE * (2 * BLOCKS + 2)),
        "zero=3,reshard_after_forward=0": (MINE * BLOCKS + 1, BLOCKS + 1),
        "zero=3,grad_sync=step,reshard_after_forward=0": (BLOCKS + 1, BLOCKS + 1),
    }
    found = {text: calls_of_a_step(ranks, text)[0] for text in expected}
    assert {text: tuple(calls[name] for name in names) for text, calls in found.items()} == expected


@pytest.mark.long
def test_what_it_holds(ranks):
    """The traffic that grad_sync=step and reshard_after_forward=0 save is bought with memory.

    With several blocks on a rank: one unit's gradients are full while they are on their way.
    """
    memory = {
        text: calls_of_a_step(ranks, text, layers=12)[1]
        for text in ("zero=1", "zero=2", "zero=3", "zero=3,grad_sync=step", "zero=3,reshard_after_forward=0")
    }
    gradients = {text: found["gradients"] for text, found in memory.items()}
    assert gradients["zero=2"] == gradients["zero=3"] < gradients["zero=1"] == gradients["zero=3,grad_sync=step"]
    parameters = {text: found["parameters"] for text, found in memory.items()}
    assert parameters["zero=3"] < parameters["zero=1"] < parameters["zero=3,reshard_after_forward=0"]


def tied_gradient_sharded_too_early(world, config, layout, options):
    """Nothing is held back: the root's gradients are scattered before both ends have added theirs."""
    with mock.patch.object(Zero, "hold_back", lambda self, parameters: None):
        return train_rank(world, config, layout, options)


def test_a_tied_weight_must_wait(ranks, base):
    with pytest.raises(Exception, match="NoneType"):  # the pipeline finds no gradient to sum
        run(ranks(4), BASE, Layout.parse("dp=2,pp=2,zero=2"), rank_function=tied_gradient_sharded_too_early)


def old_parameters_kept(world, config, layout, options):
    """Units stay unsharded over the step's end, so the next step computes with the parameters of this one."""
    from minidist.parallel.zero import ZeroStage2, ZeroStage3

    with mock.patch.object(ZeroStage3, "wait_for_gradients", ZeroStage2.wait_for_gradients):
        return train_rank(world, config, layout, options)


@pytest.mark.long
def test_parameters_are_gathered_anew_in_each_step(ranks, base):
    layout = Layout.parse("dp=2,pp=2,zero=3,reshard_after_forward=0")
    found = run(ranks(4), BASE, layout, RunOptions(step_digests=True), rank_function=old_parameters_kept)
    assert first_difference(base, found, rank_function=old_parameters_kept).step == 1


@pytest.mark.parametrize("text", ["dp=5,pp=2,zero=2", "dp=5,pp=2,zero=3,grad_sync=step"])
def test_all_ranks_need_as_many_micro_batches(text):
    with pytest.raises(ValueError, match="dp=5 does not divide the 12 of global_batch 12 / micro_batch 1"):
        BASE.check(Layout.parse(text))
    BASE.check(Layout.parse("dp=5,pp=2,zero=2,grad_sync=step"))  # nothing is sent before the step's end


@pytest.mark.parametrize("text", ["grad_sync=step", "dp=2,zero=1,grad_sync=step"])
def test_gradients_must_be_sharded_to_be_kept(text):
    with pytest.raises(ValueError, match="grad_sync=step is about sharded gradients: it needs zero=2 or zero=3"):
        Layout.parse(text)
