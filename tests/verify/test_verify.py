"""What ``minidist verify`` is made of: the comparison of two runs, bit by bit, its distances, and its lists of layouts.

That every layout ends on the bits of one process is in test_matrix.py, and that faults show in parallel/test_faults.py.
"""

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from minidist.comm.collectives import ALL_REDUCE
from minidist.nn.moe import balance
from minidist.nn.recompute import MODES
from minidist.parallel.context import KINDS
from minidist.parallel.data import SYNCS
from minidist.parallel.loosened import local
from minidist.parallel.tools.schedules import SCHEDULES
from minidist.train import share
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.parallelize import ParallelModel
from minidist.train.trainer import train_rank
from minidist.verify.comparison import DEFAULT_LAYOUTS, MORE_LAYOUTS, agrees, bits, first_difference, verify
from minidist.verify.ulps import in_words, ulps_between

SMALL = TrainConfig(
    layers=1, heads=2, width=16, context=16, global_batch=10, micro_batch=1, steps=3, warmup=2, lr=1e-2, clip=0.5
)
# 3 heads pad the vocabulary of 256 to 258. No token looks up the last two rows, and their moments stay 0.0.
PADDED = TrainConfig(layers=1, heads=3, width=12, context=8, global_batch=4, micro_batch=2, steps=2, warmup=1)
DEEP = replace(SMALL, layers=3)
SPARSE = replace(SMALL, experts=4, bias_rate=0.01)
LINEAR = replace(SMALL, optimizer="sgd", clip=inf, weight_decay=0.0)  # for workers that average after each step


# Where two runs differ first. Each fault is put into the ranks of every run but the reference.


def after_step(world, change):
    """Train with an optimizer that ends each step with ``change(optimizer)``; returns a rank's function."""

    class Changing(share.AdamW):
        def step(self):
            super().step()
            change(self, world.rank)

    share.AdamW = Changing


def three_weights_move_on_rank_one_in_step_two(world, *arguments):
    def change(optimizer, rank) -> None:
        if rank == 1 and optimizer.steps == 3:
            weight = next(p for p in optimizer.parameters if p.name == "blocks.0.mlp.fc.weight").data
            for place in ((0, 3, 5), (1, 0, 0), (1, 2, 2)):
                weight[place] = np.nextafter(np.nextafter(weight[place], np.float32(9)), np.float32(9))

    after_step(world, change)
    return train_rank(world, *arguments)


def a_zero_loses_its_sign(world, *arguments):
    """After the last step one moment of a padding row is -0.0 where one process has 0.0."""

    def change(optimizer, _) -> None:
        if optimizer.steps == PADDED.steps:
            moments = optimizer.state()["exp_avg.embeddings.token.weight"]  # (H, V/H, C)
            assert moments[2, 85, 3] == 0
            moments[2, 85, 3] = -0.0

    after_step(world, change)
    return train_rank(world, *arguments)


def a_wrong_loss_in_step_one(world, *arguments):
    average_loss, calls = ParallelModel.average_loss, []

    def wrong(*own):
        calls.append(None)
        return average_loss(*own) + (len(calls) == 2) * 1e-9

    ParallelModel.average_loss = wrong
    return train_rank(world, *arguments)


def the_last_stage_moves_its_embeddings_after_the_last_step(world, *arguments):
    """The first stage has the same; the one between them has none."""

    def change(optimizer, rank) -> None:
        if rank == 2 and optimizer.steps == DEEP.steps:
            next(p for p in optimizer.parameters if p.name == "embeddings.token.weight").data[1, 2, 3] += 1

    after_step(world, change)
    return train_rank(world, *arguments)


def workers_never_average(world, *arguments):
    local.due = lambda *_: []
    return train_rank(world, *arguments)


def biases_in_float64(world, *arguments):
    balance.moved_bias = lambda bias, counts, rate: bias + rate * np.sign(counts.mean(axis=1, keepdims=True) - counts)
    return train_rank(world, *arguments)


@pytest.mark.parametrize(
    ("fault", "config", "layout", "place", "words"),
    [
        (
            three_weights_move_on_rank_one_in_step_two, SMALL, "dp=2",
            (2, "blocks.0.mlp.fc.weight", (0, 3, 5), 3, 2), "",
        ),
        (
            a_zero_loses_its_sign, PADDED, "dp=2", (1, "exp_avg.embeddings.token.weight", (2, 85, 3), 1, 0),
            "(expected 0.0, got -0.0, 0 ulps apart)",
        ),
        (a_wrong_loss_in_step_one, SMALL, "dp=2", (1, "loss", ()), ""),
        (
            the_last_stage_moves_its_embeddings_after_the_last_step, DEEP, "pp=3",
            (2, "embeddings.token.weight", (1, 2, 3), 1), "",
        ),
        (
            workers_never_average, LINEAR, "dp=2,sync=local,local_steps=1,outer_lr=1,outer_momentum=0",
            (0, "embeddings.token.weight"), "of its 4,096 elements differ",
        ),
        (biases_in_float64, SPARSE, "dp=2", (0, "router_bias", (0, 0), 4), "expected np.float32("),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)  # fmt: skip
def test_the_first_difference_is_the_planted_one(fault, config, layout, place, words):
    reference, broken = verify([Layout.parse(layout)], config, rank_function=fault)
    assert not agrees(reference, broken)
    found = first_difference(reference, broken, fault)
    assert (found.step, found.name, found.index, found.elements, found.ulps)[: len(place)] == place
    assert words in str(found)
    if fault is three_weights_move_on_rank_one_in_step_two:
        numbers = f"expected {found.expected!s}, got {found.found!s}, 2 ulps apart"
        where = f"first differs after step 2, in blocks.0.mlp.fc.weight[0, 3, 5] ({numbers})"
        assert str(found) == f"{where}; 3 of its 1,024 elements differ"


def biases_without_layers(world, *arguments):
    balance.moved_bias = lambda *_: np.ones(4, np.float32)
    return train_rank(world, *arguments)


def test_an_array_of_another_shape_is_named():
    reference, broken = verify([Layout.parse("dp=2")], SPARSE, rank_function=biases_without_layers)
    with pytest.raises(ValueError, match=r"router_bias has shape \(4,\) after step 0, where \(1, 4\) is expected"):
        first_difference(reference, broken, biases_without_layers)


# Bits, not values


def quiet_nan(payload: int) -> np.ndarray:
    return np.array([0x7FC00000 + payload], np.uint32).view(np.float32)


def test_bits_tell_apart_what_compares_equal_and_equate_what_compares_unequal():
    zeros = np.array([0.0, -0.0], np.float32)
    assert zeros[0] == zeros[1] and bits(zeros)[0] != bits(zeros)[1]
    nan, other = quiet_nan(0), quiet_nan(1)
    assert nan != nan and bits(nan) == bits(nan) != bits(other)
    assert bits(np.zeros((2, 3))).shape == (2, 3) and bits(np.zeros(2)).dtype == np.uint64


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_ulps_are_steps_to_the_next_number(dtype):
    """Signed, from one number to the other, also through 0; so far that they do not fit, they are the most."""
    for start in (0.999, 1.0, -2.0, 0.0, np.finfo(dtype).smallest_subnormal * -20, np.finfo(dtype).tiny):
        one = other = dtype(start)
        for _ in range(50):
            other = np.nextafter(other, dtype(9))
        assert ulps_between(np.array([[one]]), np.array([[other]])).tolist() == [[50]]
        with np.errstate(over="raise"):  # also from one side of 0 to the other
            assert ulps_between(other, one) == -50
    assert ulps_between(dtype(0.0), dtype(-0.0)) == 0 == ulps_between(0.5, 0.5)  # Python's floats are float64, too
    farthest, near = 2**63 - 1, 2 * int(np.float64(1).view(np.int64))
    assert ulps_between(np.array([-1e300, 1e300, -1.0]), np.array([1e300, -1e300, 1.0])).tolist() == [
        farthest, -farthest, near
    ]  # fmt: skip
    found = [in_words(count) for count in (1, -1, 0, 1234, 10**9, np.int64(2**63 - 1))]
    assert found == ["1 ulp", "1 ulp", "0 ulps", "1,234 ulps", "about 10^9 ulps", "about 10^19 ulps"]


# The lists that the command tries


def test_the_lists_have_every_value_of_each_setting_and_every_two_axes():
    both = MORE_LAYOUTS + DEFAULT_LAYOUTS
    values = {
        "sync": SYNCS, "algorithm": ALL_REDUCE, "zero": range(4), "sp": range(2), "schedule": SCHEDULES,
        "recompute": MODES, "reshard_after_forward": range(2), "prefetch": range(2), "cp_kind": KINDS,
    }  # fmt: skip
    for key, wanted in values.items():
        assert {getattr(layout, key) for layout in (both if key == "cp_kind" else DEFAULT_LAYOUTS)} >= set(wanted), key
    for one, others in {
        "cp": ("tp", "dp", "zero"),
        "ep": ("tp", "cp", "pp", "dp", "zero", "sp"),
        "dp": ("shard",),
    }.items():
        for other in others:
            least = 1 if other in ("zero", "sp", "shard") else 2
            assert any(getattr(layout, one) > 1 and getattr(layout, other) >= least for layout in both), (one, other)
    assert any(min(layout.dp, layout.tp, layout.pp) > 1 for layout in DEFAULT_LAYOUTS)
    assert len(set(both)) == len(both)
    for layout in both:  # the usual model
        experts = 0 if layout.ep == 1 else 8 if layout.ep != 5 else 10
        TrainConfig(sequence_chunks=1 if layout.cp == 1 else 4, experts=experts).check(layout)
