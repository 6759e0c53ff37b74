"""Corrupted numbers: what the vote and the replay find and name, what they do not, and that they change nothing."""

import threading
from dataclasses import replace
from functools import partial
from unittest import mock

import numpy as np
import pytest
from choosing import long

from minidist.comm import RankFailed
from minidist.nn.optim import optimizers
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.resilience import checks
from minidist.train.resilience.checks import CorruptedNumbers, Finding, ReplicaChecks
from minidist.train.resilience.faults import Fault
from minidist.train.resilience.replay import wrong_computation
from minidist.train.resilience.vote import odd_ones_out
from minidist.train.result import RunOptions
from minidist.train.rules import loosened_by
from minidist.train.trainer import run, train_rank
from minidist.verify.comparison import DEFAULT_LAYOUTS

CONFIG = TrainConfig(
    layers=2, heads=2, width=16, context=16, global_batch=8, micro_batch=2, steps=5, warmup=2, dropout=0.1
)
STEP = 3  # in which a bit flips


def config_for(layout: Layout, **changes) -> TrainConfig:
    experts = {"experts": 4} if layout.ep > 1 else {}
    batch = {"global_batch": max(CONFIG.global_batch, layout.dp * CONFIG.micro_batch)}
    return replace(CONFIG, sequence_chunks=4 if layout.cp > 1 else 1, **(batch | experts | changes))


def until_found(world, *arguments):
    try:
        return train_rank(world, *arguments).fingerprint
    except CorruptedNumbers as error:
        return error.finding


def attempt(ranks, text: str, options: RunOptions, rank_function=until_found, **changes):
    """Return what one rank brings back, the same as every other one, and the events of the run."""
    layout, events = Layout.parse(text), []
    cluster = ranks(layout.world_size)
    found = cluster.run(
        rank_function, config_for(layout, **changes), layout, options,
        on_report=lambda rank, event: events.append((rank, *event)),
    )  # fmt: skip
    assert all(str(other) == str(found[0]) for other in found)
    return found[0], events


def test_the_majority_is_believed():
    for digests, odd in {
        "a": [], "aa": [], "ab": None, "aaa": [], "aab": [2], "baa": [0], "abc": None, "aabb": None, "abaa": [1],
        "aabab": [2, 4], "aabbc": None, "aaabb": [3, 4],
    }.items():  # fmt: skip
        assert odd_ones_out(list(digests)) == odd, digests
    for digests, players, wrong in (  # of three computations of one step
        ("abb", (0, 1, 2), 0), ("aba", (0, 1, 2), 1), ("abc", (0, 1, 2), None), ("ab", (0, 1), None),
        ("abb", (0, 1, 0), 0),  # both ranks agree against the first computation
        ("aba", (0, 1, 0), None),  # one rank twice: it may be broken, and repeat its error
    ):  # fmt: skip
        assert wrong_computation(digests, players) == wrong, (digests, players)


# Nothing is found in a healthy run, and nothing changes


INEXACT = {"reduce_dtype": "float32"}  # sums that show it if the replay takes any in another order: on other nodes, say
HEALTHY = [
    (str(layout), INEXACT | ({"softmax": "online32"} if layout.cp > 1 else {}))
    for layout in [Layout(), *DEFAULT_LAYOUTS]
    if not loosened_by(layout)  # they have no checks
] + [
    ("dp=2", {"precision": "bf16"}), ("dp=2,zero=2", {"precision": "bf16"}),
    ("tp=2,recompute=full", {"precision": "fp8"}),
    ("dp=2", {"precision": "fp16", "lr": 3.0}),  # a step is skipped, and the scale of the loss moves
    ("dp=2,ep=2", {"precision": "fp16", "aux_loss": 0.01, "aux_scope": "global_batch"}),
]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(("text", "changes"), HEALTHY, ids=str)
def test_checks_change_nothing_and_raise_no_false_alarm(ranks, text, changes):
    expected, _ = attempt(ranks, text, RunOptions(), **changes)
    found, events = attempt(ranks, text, RunOptions(check_replicas=2, check_by="replay"), **changes)
    assert found == expected, str(found)
    assert [event for event in events if event[1] != "fault"] == [(0, "verified", step) for step in (1, 3, 4)]


@pytest.mark.long
def test_no_thread_is_left_by_a_replay(ranks):
    def threads_after(world, config, layout, options):
        train_rank(world, config, layout, options)
        return [len(world.transport.groups), sum(thread.name == "collectives" for thread in threading.enumerate())]

    without, _ = attempt(ranks, "zero=3,dp=2", RunOptions(), threads_after)
    assert without[1] > 0
    assert attempt(ranks, "zero=3,dp=2", RunOptions(check_replicas=1), threads_after)[0] == without


@pytest.mark.long
def test_steps_are_computed_twice_only_where_a_vote_is_not_enough(ranks):
    def flops(size, way=""):
        options = RunOptions(check_replicas=1, check_by=way) if way else RunOptions()
        return sum(run(ranks(size), CONFIG, Layout(dp=size), options).ranks[0].flops.values())

    for size, way, times in ((2, "vote", 1), (2, "auto", 2), (2, "replay", 2), (3, "auto", 1), (3, "vote", 1)):
        assert flops(size, way) == times * flops(size), (size, way)


# What is found of one flipped bit


FLIPPED = [  # found: by what, the rank that is named, whether the element is; None for nothing
    ("dp=3", "weights", "vote", 1, ("vote", 1, True)),
    ("dp=3", "gradients", "vote", 1, None),  # wrong before the sum: all replicas agree
    ("dp=3", "gradients", "replay", 1, ("replay", 1, True)),
    ("dp=3", "message", "replay", 1, ("replay", None, False)),  # nobody's own numbers are wrong
    ("dp=2", "weights", "vote", 1, ("vote", None, True)),  # one of two
    ("dp=1", "moments", "auto", 3, ("replay", 0, False)),
    long("dp=2", "gradients", "auto", 1, ("replay", 1, True)),
    long("dp=3", "moments", "vote", 3, ("vote", 1, True)),
    long("dp=3", "gradients", "auto", 1, None),  # enough voters, who see nothing
    long("dp=3", "gradients", "replay", 3, ("replay", 1, False)),
    long("tp=2", "weights", "auto", 1, ("replay", None, True)),  # all activations are wrong
    long("pp=2", "moments", "auto", 1, ("replay", 1, True)),
    long("zero=1,dp=3", "moments", "auto", 1, ("replay", 1, True)),
    long("zero=3,dp=3", "gradients", "auto", 3, ("replay", 1, False)),
]


@pytest.mark.parametrize(("text", "place", "way", "every", "found"), FLIPPED)
def test_what_is_found_of_a_flipped_bit(ranks, text, place, way, every, found):
    rank = min(1, Layout.parse(text).world_size - 1)
    options = RunOptions(check_replicas=every, check_by=way, faults=(Fault(rank, STEP, "flip", place=place),))
    finding, events = attempt(ranks, text, options)
    flipped = [event[2:] for event in events if event[1] == "flipped"]
    assert all(0.25 <= abs(after / before - 1) <= 0.5 for _, _, before, after in flipped), flipped
    if found is None:
        assert finding != attempt(ranks, text, RunOptions())[0]  # a wrong fingerprint, and nobody knows
        return
    assert isinstance(finding, Finding) and f"step {STEP}" in str(finding)
    assert (finding.way, finding.rank, finding.step, finding.verified) == (found[0], found[1], STEP, 2)
    if found[2]:
        ((name, index, *_),) = flipped
        assert finding.element.index == index and finding.element.name.split(" ")[-1] == name.split(" ")[-1]
        assert finding.element.values[0] != finding.element.values[1]
    else:
        assert finding.element is None or place == "message"


@pytest.mark.long
def test_a_broken_rank_is_named_by_three(ranks):
    def broken(number, world, *arguments):
        """A rank whose optimizer always computes one element wrong."""
        update = optimizers.adamw_update

        def wrong(data, grad, exp_avg, *rest):
            update(data, grad, exp_avg, *rest)
            exp_avg.reshape(-1)[0] += np.float32(1e-3)

        with mock.patch.object(optimizers, "adamw_update", wrong if world.rank == number else update):
            return until_found(world, *arguments)

    options = RunOptions(check_replicas=1)
    finding, _ = attempt(ranks, "zero=1,dp=3", options, partial(broken, 1))
    assert (finding.way, finding.rank, finding.step, finding.verified) == ("replay", 1, 0, -1)
    finding, _ = attempt(ranks, "zero=1,dp=2", options, partial(broken, 1))
    assert (finding.way, finding.rank, finding.suspects) == ("replay", None, (0, 1))
    fingerprint, _ = attempt(ranks, "dp=1", options, partial(broken, 0))
    assert isinstance(fingerprint, str)  # alone it repeats its error, and nobody can know


def changing(change, when, world, *arguments):
    """Train; on rank 1 ``change(checks)`` is called after step ``when``, before its numbers are noted."""
    end_step = ReplicaChecks.end_step

    def change_first(self, step, *rest):
        if world.rank == 1 and step == when:
            change(self)
        end_step(self, step, *rest)

    with mock.patch.object(checks.ReplicaChecks, "end_step", change_first):
        return until_found(world, *arguments)


def test_a_copy_that_changes_in_memory_is_no_wrong_computation(ranks):
    def change(self):
        self.kept.arrays[0][3] += 1

    options = RunOptions(check_replicas=1, check_by="replay")
    finding, _ = attempt(ranks, "dp=2", options, partial(changing, change, 2))
    assert (finding.rank, finding.step, finding.verified) == (1, 1, 1)
    assert "the copy of its state after step 1 that rank 1 kept for a replay has changed in memory" in str(finding)


@pytest.mark.parametrize(("text", "precision"), [("zero=1,dp=3", "fp32"), ("dp=3", "bf16")])
def test_weights_that_are_not_the_optimizers_are_voted_on_too(ranks, text, precision):
    """Weights that ZeRO has gathered are, and those in 16 bits."""

    def change(self):
        weight = self.share.gpt.embeddings.token.weight
        weight.stored.reshape(-1)[1] += weight.stored.dtype.type(1)  # of rank 0's shard

    options = RunOptions(check_replicas=1, check_by="vote")
    finding, _ = attempt(ranks, text, options, partial(changing, change, STEP), precision=precision)
    assert (finding.rank, finding.step, finding.names) == (1, STEP, ("gathered embeddings.token.weight",))
    assert finding.element.index == (0, 0, 1)


def test_every_rank_ends_the_run(ranks):
    options = RunOptions(check_replicas=1, faults=(Fault(1, STEP, "flip", place="weights"),))
    with pytest.raises(RankFailed, match="CorruptedNumbers: rank 1 holds numbers after step 3 that differ"):
        run(ranks(3), CONFIG, Layout(dp=3), options)
