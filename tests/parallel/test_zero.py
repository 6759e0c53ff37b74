"""ZeRO: the bits, the bytes that each rank holds and sends, and what happens when something is left out."""

from dataclasses import replace

import numpy as np
import pytest
from choosing import long

import minidist as md
from minidist import ledger
from minidist.nn.gpt import GPT
from minidist.trace import Event
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RunOptions
from minidist.train.trainer import run, train_rank
from minidist.verify.comparison import agrees, first_difference

# 7 micro-batches: some ranks have fewer than others. Clipping works hard, dropout is on, and nothing divides evenly.
CONFIG = TrainConfig(
    layers=3, heads=3, width=15, context=9, steps=2, global_batch=14, micro_batch=2, dropout=0.2, clip=0.05, warmup=2
)
EVEN = TrainConfig(
    layers=3, heads=2, width=16, context=16, steps=2, global_batch=4, micro_batch=1, reduce_dtype="float32"
)
LAYOUTS = [
    f"zero={stage},dp={dp}{more}"
    for stage in (1, 2, 3)
    for dp in (2, 3, 4, 7)
    for more in ("", ",shard=1", ",shard=2", ",algorithm=direct")
    if not (more == ",shard=2" and dp % 2)
] + [
    f"zero=3,dp={dp},prefetch={prefetch},reshard_after_forward={reshard}{shard}"
    for dp in (2, 4, 5)
    for prefetch, reshard in ((1, 1), (1, 0), (0, 0))
    for shard in ("", ",shard=2")
    if not (shard and dp % 2)
]


def takes_long(layout: Layout) -> bool:
    """More than four ranks, or four that are not in two groups of shards."""
    return layout.dp > 4 or (layout.dp == 4 and layout.shard != 2)


@pytest.fixture(scope="module")
def one_process(ranks):
    return run(ranks(1), CONFIG, Layout())


@pytest.mark.parametrize(
    "text",
    [pytest.param(text, marks=pytest.mark.long if takes_long(Layout.parse(text)) else ()) for text in LAYOUTS],
)
def test_every_stage_ends_on_the_bits_of_one_process(ranks, one_process, text):
    layout = Layout.parse(text)
    result = run(ranks(layout.dp), CONFIG, layout)
    assert agrees(one_process, result) and result.losses == one_process.losses


@pytest.mark.long
def test_eight_ranks_and_every_step(ranks):
    """Also the state after every step, which is gathered in the middle of training."""
    config = replace(CONFIG, global_batch=16)
    options = RunOptions(step_digests=True)
    expected = run(ranks(1), config, Layout(), options)
    for text in ("zero=1,dp=8", "zero=2,dp=8", "zero=3,dp=8,prefetch=1", "zero=3,dp=8,shard=4"):
        found = run(ranks(8), config, Layout.parse(text), options)
        assert agrees(expected, found)
        assert all(rank.step_digests == expected.ranks[0].step_digests for rank in found.ranks)


@pytest.mark.long
@pytest.mark.parametrize("text", ["zero=1,dp=2", "zero=2,dp=2", "zero=3,dp=2", "zero=3,dp=2,reshard_after_forward=0"])
def test_validation_and_writing_afterwards(ranks, text):
    """The model is whole again when training is over, on the rank that validates and writes."""
    options = RunOptions(validate=True, sample=20)
    config = replace(CONFIG, width=12, context=32)
    one, other = run(ranks(1), config, Layout(), options), run(ranks(2), config, Layout.parse(text), options)
    assert one.ranks[0].validation_loss == other.ranks[0].validation_loss
    assert one.ranks[0].sample == other.ranks[0].sample


# Traffic


def elements_sent(ranks, layout: str, config=EVEN) -> list[int]:
    """Of each rank in one step, without the losses' and the norm's few numbers."""
    found = []
    for steps in (1, 2):
        result = run(ranks(Layout.parse(layout).dp), replace(config, steps=steps), Layout.parse(layout))
        found.append([int(rank.traffic.sent[:, 2].sum()) for rank in result.ranks])
    return [two - one for one, two in zip(*found, strict=True)]


def padded(config: TrainConfig, shard: int) -> int:
    """The model's parameters, in units that are padded to a multiple of the shards."""
    model = GPT(config.model)
    blocks = [sum(p.size for p in block.parameters()) for block in model.blocks]
    units = [*blocks, sum(p.size for p in model.parameters()) - sum(blocks)]
    return sum(-(-unit // shard) * shard for unit in units)


@pytest.mark.parametrize("dp", [2, long(4)])
def test_traffic(ranks, dp):
    """What a rank sends in a step of one micro-batch each, in elements. M is the model: plain data parallelism sends
    2 (N-1)/N M, stages 1 and 2 as much, stage 3 sends 3 (N-1)/N M, or 2 without resharding."""
    config = replace(EVEN, global_batch=dp)
    M = padded(config, dp)
    assert sum(parameter.size for parameter in GPT(config.model).parameters()) == M  # all units divide evenly
    small = 2 * dp * (2 + 2)  # the loss, and for clipping a maximum and two sums: a few numbers a step
    share = (dp - 1) * M // dp
    for layout, times in (
        (f"dp={dp},algorithm=ring,sync=bucketed", 2),
        (f"zero=1,dp={dp},algorithm=ring", 2),
        (f"zero=2,dp={dp},algorithm=ring", 2),
        (f"zero=3,dp={dp},algorithm=ring", 3),
        (f"zero=3,dp={dp},algorithm=ring,prefetch=1", 3),
        (f"zero=3,dp={dp},algorithm=ring,reshard_after_forward=0", 2),
    ):
        for sent in elements_sent(ranks, layout, config):
            assert 0 <= sent - times * share <= small, (layout, sent / share)


def test_bytes_exactly(ranks):
    """The same to the byte: what a rank sends to its right neighbour in the collectives of units."""

    def measured(world, stage, reshard):
        from minidist.nn.random import DropoutRNG
        from minidist.parallel.zero import ZeroStage1, ZeroStage2, ZeroStage3

        model = GPT(EVEN.model)
        alone = world.new_group([world.rank])
        arguments = model, model.blocks, world, alone, 1, "ring", np.float32
        kinds = {1: ZeroStage1, 2: ZeroStage2, 3: ZeroStage3}
        zero = kinds[stage](*arguments, reshard) if stage == 3 else kinds[stage](*arguments)
        tokens = np.arange(16)[None] % 7
        before = world.traffic
        zero.zero_grad()
        model(tokens, tokens, DropoutRNG(0, 0, 0)).backward()
        zero.wait_for_gradients()
        zero.sync_params()
        return (world.traffic - before).sent[:, 0].tolist()

    for size in (2, 4):
        M = 4 * padded(EVEN, size)
        for stage, reshard, times in ((1, True, 2), (2, True, 2), (3, True, 3), (3, False, 2)):
            for rank, sent in enumerate(ranks(size).run(measured, stage, reshard, timeout=60)):
                right = [0] * size
                right[(rank + 1) % size] = times * (size - 1) * M // size
                assert sent == right, (size, stage, reshard)


@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_replicas_are_summed_once_a_step(ranks, stage, rounds):
    """Hybrid sharding on 2 x 2 ranks, counted by collective. Within a group of shards, stages 2 and 3 sum in every
    micro-batch; over the replicas, every stage sums each shard once."""
    layout = Layout.parse(f"zero={stage},dp=4,shard=2")
    config = replace(EVEN, steps=1, global_batch=4 * rounds, reduce_dtype="float64")
    M, units = padded(config, 2), config.layers + 1
    for rank in run(ranks(4), config, layout).ranks:
        found = {(row["axis"], row["name"], row["dtype"]): [0, 0] for row in rank.collectives}
        for row in rank.collectives:
            if row["elements"] > 1:  # not the loss, nor what the norm needs
                entry = found[row["axis"], row["name"], row["dtype"]]
                entry[0] += row["calls"]
                entry[1] += row["bytes_sent"]
        scatters = rounds if stage > 1 else 1
        assert found["shard", "reduce_scatter_tensor", "float64"] == [scatters * units, scatters * 8 * M // 2]
        assert found["replicate", "all_reduce", "float64"] == [units, 8 * M // 2]


# Memory


@pytest.mark.long
@pytest.mark.parametrize("dp", [2, 3, 4])
def test_memory(ranks, dp):
    """Bytes at peak, from the arrays that exist: optimizer state is 1/N from stage 1 on, gradients are 1/N from stage 2
    on but for the units under way, and parameters from stage 3 on but for those that are gathered."""
    config = replace(CONFIG, layers=16, global_batch=4 * dp, steps=2)
    model = GPT(config.model)
    P = sum(parameter.size for parameter in model.parameters())
    block = sum(parameter.size for parameter in model.blocks[0].parameters())
    root = P - 16 * block
    largest = max(parameter.size for parameter in model.parameters())
    shards = 16 * -(-block // dp) + -(-root // dp)  # elements of all shards of a rank
    for stage in range(4):
        result = run(ranks(dp), config, Layout(dp, zero=stage))
        for memory in (rank.memory for rank in result.ranks):
            if stage == 0:
                assert memory["optimizer"] == 8 * P and memory["parameters"] == 4 * P and memory["gradients"] == 12 * P
                continue
            assert 8 * (shards - 17 * dp) <= memory["optimizer"] <= 8 * shards
            whole = 4 * padded(config, dp)
            # Under way, in float64: two units that are being summed or collected, the root that is collected all the
            # time, and parameters that have not been collected yet, the tied embedding from the head on.
            under_way = 8 * (2 * max(block, root) + root + 2 * largest + 3 * dp)
            if stage == 1:
                assert memory["parameters"] == whole
                assert memory["gradients"] >= 8 * P
            if stage >= 2:
                assert 8 * shards <= memory["gradients"] <= 8 * shards + under_way
                assert memory["gradients"] < 8 * P
            if stage == 3:
                gathered = 4 * (-(-max(block, root) // dp) * dp + -(-block // dp) * dp)
                assert 4 * shards < memory["parameters"] <= 4 * shards + gathered < whole
    assert ledger.KINDS


def test_prefetch_overlaps(ranks):
    """With prefetch the all-gather of a block runs, on the background thread, while the block before it computes."""
    config = replace(CONFIG, width=48, context=48, layers=4, dropout=0.0, steps=2, global_batch=8)

    def overlap(prefetch: int) -> float:
        """The share of forward and backward time during which an all-gather was under way."""
        result = run(ranks(2), config, Layout(2, zero=3, prefetch=prefetch), RunOptions(trace=True))
        gathers, computing = [], []
        for entry in result.ranks[0].log:
            if not isinstance(entry, Event):
                continue
            if entry.track == "communication" and entry.name.startswith("all_gather"):
                gathers.append((entry.start, entry.end))
            if entry.name.split(".")[0] in ("Linear", "CausalAttention", "LayerNorm", "Gelu"):
                computing.append((entry.start, entry.end))
        return sum(max(0, min(a[1], b[1]) - max(a[0], b[0])) for a in gathers for b in computing)

    assert overlap(0) == 0 < overlap(1)


# What verify must find


def stale_block(world, config, layout, options):
    """Block 1 is not gathered again after the optimizer's step: its parameters are those of the first step."""
    import minidist.parallel.zero as zero

    sync_params = zero.ZeroStage1.sync_params

    def forgetful(self):
        kept = self.blocks[1]
        others = self.units
        self.units = [unit for unit in others if unit is not kept]
        sync_params(self)
        self.units = others

    zero.ZeroStage1.sync_params = forgetful
    try:
        return train_rank(world, config, layout, options)
    finally:
        zero.ZeroStage1.sync_params = sync_params


def stale_gather(world, config, layout, options):
    """Block 1 is gathered in the first step only; afterwards the parameters of that time are used."""
    import minidist.parallel.zero as zero

    start, kept = zero.ZeroStage3.start_gather, {}

    def once(self, unit):
        if unit is self.blocks[1] and unit in kept:
            unit.full = kept[unit]
            unit.show(unit.full)
            return
        start(self, unit)
        if unit is self.blocks[1] and unit in self.gathering:
            kept[unit] = self.gathering[unit][0]

    zero.ZeroStage3.start_gather = once
    try:
        return train_rank(world, config, layout, options)
    finally:
        zero.ZeroStage3.start_gather = start


def bounds_off_by_one(world, config, layout, options):
    """A rank's pieces begin one element too far to the right."""
    import minidist.parallel.tools.units as units

    parts = units.Unit.parts

    def shifted(self):
        for parameter, place in parts(self):
            if place.stop - place.start > 1:
                yield parameter, slice(place.start + 1, place.stop)

    units.Unit.parts = shifted
    try:
        return train_rank(world, config, layout, options)
    finally:
        units.Unit.parts = parts


def no_reduce_scatter(world, config, layout, options):
    """Each rank keeps its own gradients of its shard."""
    import minidist.parallel.zero as zero

    reduce_scatter = zero.reduce_scatter_tensor

    def alone(output, input, op, group, async_op, algorithm):
        output[:] = input.reshape(group.size, -1)[group.rank]
        return reduce_scatter(np.empty(1), np.empty(group.size), op, group, async_op, algorithm=algorithm)

    zero.reduce_scatter_tensor = alone
    try:
        return train_rank(world, config, layout, options)
    finally:
        zero.reduce_scatter_tensor = reduce_scatter


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (stale_block, "zero=1,dp=2"),
        (stale_block, "zero=2,dp=3"),
        (stale_gather, "zero=3,dp=2"),
        (bounds_off_by_one, "zero=1,dp=3"),
        (bounds_off_by_one, "zero=3,dp=2"),
        (no_reduce_scatter, "zero=1,dp=2"),
        (no_reduce_scatter, "zero=2,dp=2"),
        (no_reduce_scatter, "zero=3,dp=4,shard=2"),
    ],
)
def test_verify_finds(ranks, fault, text):
    layout = Layout.parse(text)
    options = RunOptions(step_digests=True)
    config = replace(CONFIG, clip=100.0)
    one = run(ranks(1), config, Layout(), options)
    try:
        found = run(ranks(layout.dp), config, layout, options, rank_function=fault)
    except md.RankFailed as error:  # a hole in a parameter is a NaN, which is told as what it is
        assert "KeyError" in str(error) or "not finite" in str(error)
        return
    assert not agrees(one, found)
    assert first_difference(one, found, rank_function=fault) is not None


def test_a_parameter_that_is_not_gathered_is_a_hole(ranks):
    """Using a unit that was given up spreads NaN, instead of quietly using old numbers."""

    def main(world):
        from minidist.parallel.zero import ZeroStage3

        model = GPT(EVEN.model)
        ZeroStage3(model, model.blocks, world, world.new_group([world.rank]), 1)
        weight = model.blocks[0].mlp.fc.weight
        return weight.shape, bool(np.isnan(weight.data).all()), weight.data.strides

    for shape, hole, strides in ranks(2).run(main, timeout=30):
        assert shape == (2, 16, 32) and hole and strides == (0, 0, 0)


# Bad input


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("zero=3", "zero=3 shards over data-parallel and context-parallel ranks, and dp=1"),
        ("zero=3,dp=1", "set dp or cp to 2 or more"),
        ("zero=4,dp=2", "zero=4: ZeRO has the stages 1, 2 and 3"),
        ("zero=-1,dp=2", "zero=-1"),
        ("zero=3,dp=4,shard=3", "shard=3 must divide dp=4"),
        ("zero=3,dp=4,shard=-2", "shard=-2 must divide"),
        ("zero=3,dp=4,shard=8", "shard=8 must divide dp=4"),
        ("dp=4,shard=2", "shard=2 is for ZeRO"),
        ("zero=2,dp=2,prefetch=1", "they need zero=3"),
        ("zero=1,dp=2,reshard_after_forward=0", "they need zero=3"),
        ("zero=3,dp=2,prefetch=2", "prefetch=2: choose 0 or 1"),
        ("zero=1,dp=2,sync=naive", "leave sync and bucket_mb as they are"),
        ("zero=1,dp=2,algorithm=tree", "choose auto, ring, direct or hierarchical"),
        ("zero=x,dp=2", "zero=x is not a whole number"),
    ],
)
def test_unusable_layouts(text, message):
    with pytest.raises(ValueError, match=message):
        Layout.parse(text)
