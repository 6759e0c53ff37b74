"""The plan's memory against the ledger of real runs: exact, but for what is stated here.

Each rank of a run notes what its ledger holds whenever a backward pass begins: then nothing of it is temporary. What
the plan leaves out is small, and known to the byte: tokens, the targets' indices, and copies that only this library
makes. With a number of ranks that does not divide a unit of ZeRO, shards are padded.
"""

from dataclasses import asdict, replace
from itertools import product
from math import ceil

import pytest
from planned import planned_of, real_layout, shape_of

from minidist import ledger
from minidist.nn.memory.recompute import MODES
from minidist.nn.tensor import Tensor
from minidist.parallel import pipeline
from minidist.parallel.tools.schedules import schedule
from minidist.plan.layout import PlannedLayout, stages_of
from minidist.plan.memory import (
    HERE,
    MIXED,
    Memory,
    memory_of,
    parameters_of_layers,
    parameters_of_rank,
    saved_by_block,
    saved_by_head,
    saved_scores,
)
from minidist.plan.models.library import model_of
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.trainer import run, train_rank

EVEN = TrainConfig(layers=4, heads=4, width=32, context=16, global_batch=8, micro_batch=1, steps=2, dropout=0.1)
THREES = TrainConfig(layers=6, heads=3, width=24, context=15, global_batch=18, micro_batch=2, steps=2, dropout=0.1)
FIVES = TrainConfig(layers=5, heads=5, width=20, context=10, global_batch=10, micro_batch=1, steps=2, dropout=0.0)
SEVENS = TrainConfig(layers=7, heads=7, width=28, context=14, global_batch=7, micro_batch=1, steps=2, dropout=0.2)
CHUNKS = replace(EVEN, sequence_chunks=4)
TARGET = 3 * 8  # bytes that the loss keeps of a token's target: its head, its column and its row, int64 each


def noting_rank(world, config, layout, options):
    """A rank of a run. Its memory has two more entries: what was held when a backward pass began, each kind at its
    most."""
    memories, most = [], dict.fromkeys(ledger.KINDS, 0)
    start, backward, inputs = ledger.start, Tensor.backward, pipeline.backward_inputs

    def starting(watch=None):
        memories.append(start(watch))
        return memories[-1]

    def noting(function):
        def call(*arguments):
            for kind, nbytes in memories[-1].held.items():
                most[kind] = max(most[kind], nbytes)
            return function(*arguments)

        return call

    ledger.start, Tensor.backward, pipeline.backward_inputs = starting, noting(backward), noting(inputs)
    try:
        result = train_rank(world, config, layout, options)
    finally:
        ledger.start, Tensor.backward, pipeline.backward_inputs = start, backward, inputs
    result.memory["before_backward"] = most
    return result


def held(ranks, text: str, config: TrainConfig) -> tuple[Layout, list[dict]]:
    """What each rank of a real run held."""
    layout = real_layout(text, config)
    return layout, [
        rank.memory for rank in run(ranks(layout.world_size), config, layout, rank_function=noting_rank).ranks
    ]


def most_of_stage(planned: PlannedLayout, rank: int, micro_batches: int, stage: int) -> list[int]:
    """For how many micro-batches a rank holds activations of one of its stages, after each of its actions."""
    found, count = [], 0
    for action in schedule(planned.schedule, planned.pp, micro_batches, planned.virtual)[rank]:
        if action.stage == stage:
            count += (action.kind == "F") - (action.kind in "BW")
        found.append(count)
    return found


def left_out(config: TrainConfig, planned: PlannedLayout, rank: int) -> float:
    """Bytes of activations that the ledger of a rank of the pipeline counts, and the plan does not."""
    shape, e = shape_of(config), HERE.activation
    tokens = config.micro_batch * config.context / planned.cp
    stages, micro_batches = stages_of(config.layers, planned.stage_count), planned.micro_batches(config.global_batch)
    here = range(rank, planned.stage_count, planned.pp)
    if planned.pp == 1:
        counts = [[1]]
    else:
        counts = [most_of_stage(planned, rank, micro_batches, stage) for stage in here]
    layer = end = 0.0
    if planned.sp:  # a norm saves its gain, which is a copy: see copy_parameter_to_group
        layer += 2 * e * config.width * (planned.recompute != "full")
        end += e * config.width
    if config.sequence_chunks > 1 and planned.recompute == "none":
        layer += 4 * config.heads / planned.tp * tokens  # the sum of a row's weights beside its exponent
        if planned.cp_kind == "ulysses" or config.sequence_chunks > planned.cp:
            layer += e * tokens * config.width / planned.tp  # the output of attention once more, chunk by chunk
    if config.sequence_chunks > 1 and planned.recompute == "selective":
        layer -= saved_scores(shape, planned, HERE)  # the plan recomputes nothing of a flash attention
    in_flight = [sum(at) for at in zip(*counts, strict=True)]
    stream = shape.dropout * tokens * config.width / (planned.tp if planned.sp else 1)
    found = []
    for at, count in zip(zip(*counts, strict=True), in_flight, strict=True):
        if count < max(in_flight):
            continue
        total = layer * sum(number * stages[stage] for number, stage in zip(at, here, strict=True))
        if rank == 0:  # the tokens of a micro-batch, and the one behind them, are one array of bytes
            total += at[0] * config.micro_batch * (config.context + 1)
            total += (at[0] - count / planned.virtual) * stream  # the plan spreads the embedding's mask over stages
        if rank == planned.pp - 1:
            total += at[-1] * (end + TARGET * tokens)
        found.append(total)
    return max(found)


def padding(config: TrainConfig, planned: PlannedLayout, rank: int) -> float:
    """Elements that ZeRO's units are longer on a rank than its parameters."""
    if not planned.zero:
        return 0
    shape = shape_of(config)
    layer = parameters_of_layers(shape, planned, 1, 0).full
    total = parameters_of_rank(shape, planned, rank).full
    layers = sum(stages_of(config.layers, planned.stage_count)[rank :: planned.pp])
    units = [layer] * layers + [total - layers * layer]
    return sum(ceil(unit / planned.shards) * planned.shards - unit for unit in units)


SAMPLE = [
    (EVEN, "dp=1"),
    (EVEN, "recompute=selective"),
    (EVEN, "dp=2,recompute=full"),
    (EVEN, "dp=4,zero=1"),
    (EVEN, "tp=2,sp=1"),
    (EVEN, "pp=4,schedule=gpipe"),
    (EVEN, "pp=2,virtual=2"),
    (EVEN, "dp=2,tp=2,sp=1,pp=2"),
    (THREES, "tp=3,sp=1,recompute=selective"),
    (THREES, "pp=3,dp=3,recompute=full"),
    (FIVES, "dp=5,zero=1"),
    (SEVENS, "pp=7"),
    (CHUNKS, "cp=2,cp_kind=zigzag"),
    (CHUNKS, "cp=4"),
    (CHUNKS, "cp=2,cp_kind=ulysses,tp=2"),
]  # fmt: skip
AXES = {
    EVEN: ["dp=1", "dp=2", "tp=2", "tp=4", "tp=2,sp=1", "dp=2,zero=1"],
    THREES: ["dp=3", "tp=3,sp=1", "dp=3,zero=1"],
    FIVES: ["dp=5", "tp=5,sp=1", "pp=5"],
    SEVENS: ["dp=7", "tp=7,sp=1", "pp=3", "pp=7,schedule=gpipe"],
    CHUNKS: [
        "cp=2",
        "cp=4",
        "cp=2,cp_kind=zigzag",
        "cp=2,cp_kind=all-gather",
        "cp=2,cp_kind=ulysses",
        "cp=2,tp=2,pp=2",
    ],
}
PIPELINES = ["pp=2", "pp=2,schedule=gpipe", "pp=2,virtual=2", "pp=2,schedule=naive", "pp=2,schedule=interleaved"]
GENERATED = [
    *((config, f"{axes},recompute={mode}") for config, some in AXES.items() for axes in some for mode in MODES),
    *((EVEN, f"{axes},{pipeline}") for axes, pipeline in product(AXES[EVEN], PIPELINES)),
    *((EVEN, f"{axes},pp=2,virtual=2,recompute=full") for axes in ("tp=2,sp=1", "dp=2,zero=1")),
]


@pytest.mark.parametrize(
    ("config", "text"),
    [
        pytest.param(*case, id=case[1], marks=() if case in SAMPLE[:5:4] else pytest.mark.long)
        for case in [*SAMPLE, *(case for case in GENERATED if case not in SAMPLE)]
    ],
)
def test_what_a_rank_holds(ranks, config, text):
    layout, memories = held(ranks, text, config)
    planned = planned_of(layout, config)
    for number, found in enumerate(memories):
        rank = number // (layout.world_size // layout.pp)
        plan = memory_of(shape_of(config), planned, config.global_batch, HERE, rank)
        before, padded = found["before_backward"], padding(config, planned, rank)
        assert before["parameters"] == plan.parameters + HERE.parameter * padded
        assert before["gradients"] == plan.gradients + HERE.gradient * padded * (1 + 1 / planned.shards)
        assert before["activations"] == plan.activations + left_out(config, planned, rank)
        assert (
            0
            <= plan.optimizer + HERE.optimizer * padded / planned.shards - found["optimizer"]
            <= HERE.optimizer * padded
        )
        if layout.recompute == "none":
            assert found["activations"] == before["activations"]  # backward adds none
    copies = layout.world_size if not layout.zero else layout.world_size // planned.shards
    every = [parameters_of_rank(shape_of(config), planned, rank).full for rank in range(layout.pp)]
    assert sum(found["optimizer"] for found in memories) == HERE.optimizer * sum(every) * copies / layout.pp


def test_the_heads_of_gpipe_wait_for_their_backward_too(ranks):
    """Every micro-batch's logits: with 1F1B there are those of one."""
    shape, found = shape_of(EVEN), {}
    for name in ("gpipe", "1f1b"):
        _, memories = held(ranks, f"pp=2,schedule={name}", EVEN)
        found[name] = memories[1]["before_backward"]["activations"]
    each = 2 * (saved_by_block(shape, PlannedLayout(attention="standard"), HERE, False))
    scores = 2 * saved_scores(shape, PlannedLayout(attention="standard"), HERE)
    head = saved_by_head(shape, PlannedLayout(attention="standard"), HERE) + TARGET * EVEN.context
    assert found["1f1b"] == each + scores + head
    assert found["gpipe"] == 8 * found["1f1b"]


def test_zb_h1_keeps_for_products_what_waits_for_them(ranks):
    """Between I and W a layer keeps the inputs of its products and norms: 9 of 17 arrays, and no scores.

    The plan counts the whole layer: W also needs the gradients of the products' outputs, which the ledger does not
    enter, and which make up for what is gone but for the scores (Qi et al., 2023, arXiv 2401.10241, section 2).
    """
    for p, m in ((2, 8), (4, 8), (4, 2)):
        config = replace(EVEN, global_batch=m)
        layout, memories = held(ranks, f"pp={p},schedule=zb-h1", config)
        planned, shape = planned_of(layout, config), shape_of(config)
        n, layers = config.context, config.layers // p
        inputs = 9 * HERE.activation * n * config.width + 2 * HERE.statistics * n
        for rank, found in enumerate(memories):
            whole = layers * (saved_by_block(shape, planned, HERE, False) + saved_scores(shape, planned, HERE))
            waiting = layers * inputs
            if rank == 0:
                whole += n + 1 + n * config.width
                waiting += n + 1
            if rank == p - 1:
                head = saved_by_head(shape, planned, HERE)
                whole += head + TARGET * n
                waiting += head - HERE.activation * n * shape.vocab
            most = held_now = 0.0
            for action in schedule("zb-h1", p, m)[rank]:
                held_now += {"F": whole, "I": waiting - whole, "W": -waiting}[action.kind]
                most = max(most, held_now)
            plan = memory_of(shape, planned, m, HERE, rank)
            assert found["before_backward"]["activations"] == most <= plan.activations + left_out(config, planned, rank)


@pytest.mark.long
def test_full_recomputation_brings_one_layer_back(ranks):
    """The head is gone by then. And a norm keeps here what it has made of its input, which is kept besides."""
    for text in ("recompute=full", "tp=2,recompute=full", "pp=2,recompute=full", "dp=2,tp=2,sp=1,recompute=full"):
        layout, memories = held(ranks, text, EVEN)
        planned, shape = planned_of(layout, EVEN), shape_of(EVEN)
        for number, found in enumerate(memories):
            rank = number // (layout.world_size // layout.pp)
            plan = memory_of(shape, planned, EVEN.global_batch, HERE, rank)
            stream = HERE.activation * EVEN.context * EVEN.width / (layout.tp if layout.sp else 1)
            gains = 2 * HERE.activation * EVEN.width * layout.sp
            target = 0.0
            if rank == layout.pp - 1:  # the head goes, and with it what the plan leaves out of it
                target = TARGET * EVEN.context + HERE.activation * EVEN.width * layout.sp
            peak = plan.activations + plan.recomputed + left_out(EVEN, planned, rank)
            assert found["activations"] == peak + stream + gains - target


@pytest.mark.long
@pytest.mark.parametrize("text", ["recompute=selective", "pp=2,recompute=selective", "tp=2,recompute=selective"])
def test_selective_recomputation_brings_scores_back_when_the_mlp_is_gone(ranks, text):
    """So a short context's scores are in nobody's way, and of a long one's as much as is more than that."""
    for config in (EVEN, replace(EVEN, context=64, global_batch=2), replace(EVEN, context=256, global_batch=2)):
        layout, memories = held(ranks, text, config)
        planned = planned_of(layout, config)
        for number, found in enumerate(memories):
            rank = number // (layout.world_size // layout.pp)
            plan = memory_of(shape_of(config), planned, config.global_batch, HERE, rank)
            left = left_out(config, planned, rank)
            target = TARGET * config.context if rank == layout.pp - 1 else 0  # goes with the head
            assert found["activations"] == plan.activations + max(left, plan.recomputed + left - target)
            assert plan.recomputed == 0 if config == EVEN else plan.recomputed > 0 or config.context < 256


@pytest.mark.parametrize("stage", [0, 1])
def test_the_optimizer_s_moment(ranks, stage):
    """Averages are float32 and new: for a moment they are beside the float64 sums. No activations are left then."""
    layout, memories = held(ranks, f"dp=2,zero={stage}" if stage else "dp=2", EVEN)
    plan = memory_of(shape_of(EVEN), planned_of(layout, EVEN), EVEN.global_batch, HERE)
    owned = plan.optimizer / HERE.optimizer
    sums = HERE.gradient * owned  # ZeRO has dropped what was not this rank's
    for found in memories:
        assert found["gradients"] == max(plan.gradients, sums + HERE.parameter * owned)
        if stage == 0:
            assert found["peak"] == plan.parameters + plan.gradients + plan.optimizer + HERE.parameter * owned
        else:
            left = left_out(EVEN, planned_of(layout, EVEN), 0)
            assert found["peak"] >= plan.counted + left


@pytest.mark.long
@pytest.mark.parametrize("ranks_number", [2, 4])
@pytest.mark.parametrize("stage", [2, 3])
def test_what_zero_brings_together(ranks, stage, ranks_number):
    """Two layers at once, and the tied embedding all the while: of parameters, and of gradients to be sharded."""
    prefetch = ",prefetch=1" if stage == 3 else ""
    layout, memories = held(ranks, f"dp={ranks_number},zero={stage}{prefetch}", EVEN)
    shape, planned = shape_of(EVEN), planned_of(layout, EVEN)
    plan = memory_of(shape, planned, EVEN.global_batch, HERE)
    layers = parameters_of_layers(shape, planned, 1, 0).full
    together = shape.embeddings + 2 * EVEN.width + 2 * layers
    assert plan.gathered == together * (HERE.gradient + HERE.parameter * (stage == 3))
    for found in memories:
        root = HERE.gradient * (shape.embeddings + 2 * EVEN.width)  # on its way while the next micro-batch goes forward
        assert found["before_backward"]["gradients"] == plan.gradients + root
        assert found["parameters"] == plan.parameters + HERE.parameter * together * (stage == 3)
        # the head's gradient of the tied weight waits apart for the embedding's, and so does each as it is made
        apart = shape.vocab * shape.width + 4 * shape.width**2
        assert found["gradients"] == plan.gradients + HERE.gradient * (together + apart)


@pytest.mark.parametrize("layers", [1, 3])
def test_a_published_model_s_numbers_stay_those_of_the_paper(layers):
    """Korthikanti et al., 2022: s b h (34 + 5 a s / h) bytes a layer, over t with sequence parallelism."""
    shape = replace(model_of("gpt3-175b"), layers=layers)
    s, h, a = shape.context, shape.width, shape.heads
    for b, t in product((1, 4), (1, 8)):
        layout = PlannedLayout(tp=t, sp=int(t > 1), micro_batch=b, attention="standard")
        block = saved_by_block(shape, layout, MIXED, False) + saved_scores(shape, layout, MIXED)
        assert block == pytest.approx(s * b * h * (34 + 5 * a * s / h) / t, rel=1e-12)
        assert saved_by_block(shape, layout, MIXED, False) == s * b * h * 34 / t
    layout = PlannedLayout(tp=8, attention="standard")  # without sequence parallelism
    block = saved_by_block(shape, layout, MIXED, False) + saved_scores(shape, layout, MIXED)
    assert block == pytest.approx(s * h * (10 + 24 / 8 + 5 * a * s / h / 8), rel=1e-12)


def test_more_recomputation_never_holds_more():
    for name, text in product(
        ("gpt3-175b", "llama3-70b", "mixtral-8x7b"), ("tp=8", "tp=8,sp=1", "tp=8,sp=1,pp=8,virtual=2", "pp=8")
    ):
        for attention in ("standard", "flash"):
            world = 8 if "pp" not in text or "tp" not in text else 64
            layout = replace(PlannedLayout.parse(text, world), attention=attention)
            held_by = [memory_of(model_of(name), replace(layout, recompute=mode), 64).activations for mode in MODES]
            assert held_by[0] >= held_by[1] > held_by[2] > 0
            totals = [
                memory_of(model_of(name), replace(layout, zero=zero, tp=layout.tp, dp=4), 64).total for zero in range(4)
            ]
            assert totals == sorted(totals, reverse=True) or totals[3] < totals[0]


def test_parts_add_up():
    found = memory_of(model_of("llama3-8b"), PlannedLayout(dp=8, zero=3, recompute="full", attention="flash"), 64)
    assert isinstance(found, Memory) and found.total == sum(asdict(found).values())
    assert found.counted == found.total - found.fragmentation - found.reserved
