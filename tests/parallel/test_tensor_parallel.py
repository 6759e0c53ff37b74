"""Tensor and sequence parallelism: the bits, the calls and their sizes, the memory, and faults that must be found."""

import itertools
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest

from minidist.nn.gpt import GPT, MLP, GPTConfig
from minidist.nn.layers import Dropout
from minidist.nn.random import DropoutRNG
from minidist.nn.tensor import Tensor
from minidist.parallel import sequence, tensor
from minidist.parallel.tensor import TensorParallel, heads_of
from minidist.parallel.tools.accumulation import accumulate
from minidist.parallel.tools.plan import parallelize_module
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.parallelize import ParallelModel, gpt_plan
from minidist.train.result import RunOptions
from minidist.train.trainer import run, train_rank
from minidist.verify.comparison import agrees, first_difference

LIMIT = 60
# 7 micro-batches: some ranks have fewer than others. Clipping works hard, and the vocabulary has 2 rows of padding.
SIX_HEADS = TrainConfig(
    layers=2, heads=6, width=24, context=12, steps=2, global_batch=14, micro_batch=2, clip=0.05, warmup=2
)
CONFIGS = {
    "six heads": SIX_HEADS,
    "six heads, dropout": replace(SIX_HEADS, dropout=0.2),
    "four heads, dropout": replace(SIX_HEADS, heads=4, width=20, context=8, dropout=0.2),
}


def layouts_to_try() -> list:
    """Every tp, with and without sp, and several ways to share the batch out; by turns with and without dropout.
    Those of more than three ranks are long."""
    splits = ("dp=1", "dp=2", "dp=3,sync=naive", "zero=1,dp=2", "zero=2,dp=2", "zero=3,dp=2", "zero=3,dp=3,prefetch=1")
    rows = list(itertools.product((2, 3, 6), (0, 1), splits))
    found = [
        (("six heads", "six heads, dropout")[number % 2], f"{split},tp={tp},sp={sp}")
        for number, (tp, sp, split) in enumerate(rows)
        if Layout.parse(f"{split},tp={tp}").world_size <= 8
    ]
    fours = [f"{split},tp=4,sp={sp}" for split in ("dp=1", "zero=3,dp=2") for sp in (0, 1)]
    hybrid = "zero=3,dp=4,shard=2,reshard_after_forward=0,tp=2,sp=1"
    found += [("four heads, dropout", text) for text in [*fours, hybrid, "zero=1,dp=2,algorithm=direct,tp=2"]]
    return [
        pytest.param(name, text, marks=pytest.mark.long if Layout.parse(text).world_size > 3 else ())
        for name, text in found
    ]


@pytest.fixture(scope="module")
def one_process(ranks):
    return {name: run(ranks(1), config, Layout()) for name, config in CONFIGS.items()}


@pytest.mark.parametrize(("name", "text"), layouts_to_try())
def test_every_layout_ends_on_the_bits_of_one_process(ranks, one_process, name, text):
    layout = Layout.parse(text)
    result = run(ranks(layout.world_size), CONFIGS[name], layout)
    assert agrees(one_process[name], result) and result.losses == one_process[name].losses


@pytest.mark.parametrize("text", ["tp=2", "zero=3,dp=2,tp=2"])
def test_writing_alone(ranks, text):
    config, layout, options = replace(SIX_HEADS, context=30), Layout.parse(text), RunOptions(sample=5)
    one, found = run(ranks(1), config, Layout(), options), run(ranks(layout.world_size), config, layout, options)
    assert found.ranks[0].sample == one.ranks[0].sample and found.ranks[0].validation_loss is None


@pytest.mark.long
@pytest.mark.parametrize("text", ["tp=2", "tp=3,sp=1", "zero=3,dp=2,tp=2,sp=1"])
def test_every_step_and_what_comes_after_training(ranks, text):
    """The state after each step; the loss on held-out text and what the model writes, of lengths that sp cannot cut."""
    config = replace(SIX_HEADS, context=30, dropout=0.2)
    layout, options = Layout.parse(text), RunOptions(step_digests=True, validate=True, sample=35)
    one, found = run(ranks(1), config, Layout(), options), run(ranks(layout.world_size), config, layout, options)
    assert all(rank.step_digests == one.ranks[0].step_digests for rank in found.ranks)
    assert found.ranks[0].validation_loss == one.ranks[0].validation_loss
    assert found.ranks[0].sample == one.ranks[0].sample


# What is called, and how much it moves

EVEN = GPTConfig(layers=3, heads=4, width=16, context=8)
BATCH = 2


def one_micro_batch(world, sequence: bool, reduce_dtype):
    """Calls and bytes of a forward pass, and of its backward."""
    model = GPT(EVEN)
    TensorParallel(world, gpt_plan(sequence, reduce_dtype)).apply(model)
    tokens = np.arange(BATCH * EVEN.context).reshape(BATCH, -1) % 7
    counts = [world.collectives]
    loss = model(tokens, tokens)
    counts.append(world.collectives)
    loss.backward()
    counts.append(world.collectives)
    sent = world.traffic
    return [(after - before).as_list() for before, after in itertools.pairwise(counts)], sent


def calls(rows: list[dict], name: str, elements: int, dtype: str) -> int:
    """How many calls of this kind."""
    kind = {"name": name, "elements": elements, "dtype": dtype}
    return sum(row["calls"] for row in rows if kind.items() <= row.items())


ACTIVATIONS, TOKENS = BATCH * EVEN.context * EVEN.width, BATCH * EVEN.context


@pytest.mark.parametrize("size", [2, 4])
def test_two_all_reduces_a_block_each_way(ranks, size):
    """Each of micro-batch x sequence x width elements; one more where the head begins, one small one at the embedding,
    and for the loss three numbers a token. There is nothing else."""
    for (forward, backward), _ in ranks(size).run(one_micro_batch, False, np.float64, timeout=LIMIT):
        assert calls(forward, "all_reduce", ACTIVATIONS, "float64") == 2 * EVEN.layers
        assert calls(backward, "all_reduce", ACTIVATIONS, "float64") == 2 * EVEN.layers + 1
        assert calls(forward, "all_reduce", ACTIVATIONS, "float32") == 1  # the embedding's rows
        assert calls(forward, "all_reduce", TOKENS, "float32") == 1  # the largest logit
        assert calls(forward, "all_reduce", TOKENS, "float64") == 2  # the exponentials, and the target's logit
        assert sum(row["calls"] for row in forward) == 2 * EVEN.layers + 4
        assert sum(row["calls"] for row in backward) == 2 * EVEN.layers + 1


@pytest.mark.parametrize("size", [2, 4])
def test_with_sequence_parallelism_each_is_a_reduce_scatter_and_an_all_gather(ranks, size):
    """Of as many elements; besides, for gains and biases a sum of the width each."""
    for (forward, backward), _ in ranks(size).run(one_micro_batch, True, np.float64, timeout=LIMIT):
        into, out = 2 * EVEN.layers + 1, 2 * EVEN.layers  # the head's way in has no way out
        assert calls(forward, "all_gather_into_tensor", ACTIVATIONS, "float32") == into
        assert calls(forward, "reduce_scatter_tensor", ACTIVATIONS, "float64") == out
        assert calls(backward, "reduce_scatter_tensor", ACTIVATIONS, "float64") == into
        assert (
            calls(backward, "all_gather_into_tensor", ACTIVATIONS, "float32") == out + 1
        )  # and the embeddings' scatter
        assert calls(backward, "all_reduce", EVEN.width, "float64") == EVEN.layers * (2 * 2 + 2) + 2
        assert sum(row["calls"] for row in backward) == into + out + 1 + EVEN.layers * (2 * 2 + 2) + 2


@pytest.mark.parametrize("size", [2, 4])
def test_with_sums_in_float32_the_bytes_are_the_same(ranks, size):
    """Of all ranks together: an all-reduce of the tree sends as much as the ring's, from other ranks."""

    def sent(sequence: bool) -> int:
        results = ranks(size).run(one_micro_batch, sequence, np.float32, timeout=LIMIT)
        rows = [row for passes, _ in results for rows in passes for row in rows if row["elements"] == ACTIVATIONS]
        return sum(row["bytes_sent"] for row in rows)

    gather = size * (size - 1) * ACTIVATIONS * 4 // size  # of the embeddings' gradient, which only sp cuts
    assert sent(True) - gather == sent(False)
    assert sent(False) == (4 * EVEN.layers + 2) * 2 * (size - 1) * ACTIVATIONS * 4


def test_a_step_has_a_table(ranks):
    """Each axis with its own calls, the same ones on every rank."""
    config = replace(SIX_HEADS, global_batch=8)  # 4 micro-batches, 2 on each of the data-parallel ranks
    result = run(ranks(4), config, Layout.parse("dp=2,sync=naive,tp=2"))
    tables = [
        sorted((r["axis"], r["name"], r["elements"], r["calls"]) for r in rank.collectives) for rank in result.ranks
    ]
    assert all(table == tables[0] for table in tables)
    activations = config.micro_batch * config.context * config.width
    dtypes = {"float64": 2 * (4 * config.layers + 1), "float32": 2}  # the sums over blocks, and the embedding's rows
    for dtype, count in dtypes.items():
        assert calls(result.ranks[0].collectives, "all_reduce", activations, dtype) == count
    model = GPT(config.model)
    summed = sum(elements * count for axis, _, elements, count in tables[0] if axis == "dp") - 1  # and the loss
    sharded = sum(p.size for p in model.parameters() if p.ndim == 3 or p.shape[0] == config.heads)
    whole = sum(p.size for p in model.parameters()) - sharded
    assert summed == sharded // 2 + whole


def test_sums_are_taken_in_the_dtype_that_is_asked_for(ranks):
    """Of float32 nothing of the size of activations or of the width crosses in float64, with sp and without."""
    config = replace(SIX_HEADS, reduce_dtype="float32")
    for sp in (0, 1):
        for rank in run(ranks(2), config, Layout(tp=2, sp=sp)).ranks:
            wide = {row["elements"] for row in rank.collectives if row["dtype"] == "float64"}
            assert wide == {
                1,
                config.micro_batch * config.context,
            }  # the norm's maximum; the loss's three numbers a token


def test_tensor_parallel_ranks_are_neighbours(ranks):
    """Megatron-LM's order: tp changes fastest, so that its many messages stay on one machine."""
    result = run(ranks(4), replace(SIX_HEADS, steps=1), Layout(dp=2, tp=2))
    sent = result.ranks[0].traffic.sent[:, 1]  # messages to each rank
    assert sent[1] > 50 > sent[2] > 0 == sent[3]


def numbers_joined(world):
    model = ParallelModel(
        GPT(EVEN), [TensorParallel(world, tensor.tensor_plan())], accumulate, lambda count: ([0], 1), 1
    )
    return model.global_sum((1 << 60) + world.rank), model.global_max(float(world.rank))


def test_what_the_norm_joins_is_exact(ranks):
    assert ranks(4).run(numbers_joined, timeout=LIMIT) == [((1 << 62) + 6, 3.0)] * 4


# Memory


def test_memory(ranks):
    """A rank holds 1/N of what is in blocks. With sp it saves 1/N of what LayerNorm and dropout keep, too."""
    config = replace(SIX_HEADS, steps=1, global_batch=2, dropout=0.2)
    size, tokens, norms = 3, 2 * config.context, 2 * config.layers + 1
    one = run(ranks(1), config, Layout()).ranks[0].memory
    tp = run(ranks(size), config, Layout(tp=size)).ranks[0].memory
    sp = run(ranks(size), config, Layout(tp=size, sp=1)).ranks[0].memory
    model = GPT(config.model)
    copied = 4 * sum(p.size for p in model.parameters() if p.ndim < 3 and p.shape[0] != config.heads)
    for kind, times in (("parameters", 1), ("optimizer", 2)):
        assert tp[kind] == sp[kind] == times * (copied + (4 * sum(p.size for p in model.parameters()) - copied) // size)
    assert one["activations"] > tp["activations"] > sp["activations"]
    kept = norms * tokens * (config.width + 1) * 4  # by LayerNorm: a normalised copy, and a number for each token
    gains = norms * config.width * 4  # copies of the gains
    masks = norms * tokens * config.width  # a byte for each element: after the embeddings, and two a block
    assert tp["activations"] - sp["activations"] == (kept + masks) - (kept + masks) // size - gains


# A part of a model


def mlp_alone(world):
    config = GPTConfig(heads=6, width=24)
    mlp = MLP(config)
    mlp.init_parameters(seed=0)
    if world.size > 1:
        plan = {"fc": tensor.ColumnParallelLinear, "proj": tensor.RowParallelLinear}
        plan = {name: lambda module, group, kind=kind: kind(module, group, False) for name, kind in plan.items()}
        assert parallelize_module(mlp, world, plan) is mlp
    x = Tensor(np.random.default_rng(1).standard_normal((2, 5, 24), np.float32), requires_grad=True)
    y = mlp(x)
    y.backward(np.ones(y.shape, np.float32))
    return y.data, x.grad, mlp.fc.weight.grad, mlp.proj.bias.grad


@pytest.mark.parametrize("size", [2, 3, 6])
def test_parallelize_a_module_by_itself(ranks, size):
    (y, grad_x, grad_weight, grad_bias), *_ = ranks(1).run(mlp_alone, timeout=LIMIT)
    found = ranks(size).run(mlp_alone, timeout=LIMIT)
    for one in found:
        assert np.array_equal(one[0], y) and np.array_equal(one[1], grad_x) and np.array_equal(one[3], grad_bias)
    assert np.array_equal(np.concatenate([one[2] for one in found]), grad_weight)


# What verify must find


def f_without_its_backward(world, config, layout, options):
    """What goes into the column layers: each rank keeps its own blocks' part of the gradient."""
    with mock.patch.object(tensor, "copy_to_group", lambda x, *others: x):
        return train_rank(world, config, layout, options)


def bias_on_every_rank(world, config, layout, options):
    """A row layer's bias is added before the sum over the ranks, so N times."""

    def forward(self, x):
        total = tensor.functional.reduce_from_heads(tensor.functional.linear(x, self.weight), self.reduce_dtype)
        bias = tensor.copy_parameter_to_group(self.bias, self.group)
        return tensor.reduce_from_group(total + bias, self.group, self.reduce_dtype, x.dtype)

    with mock.patch.object(tensor.RowParallelLinear, "forward", forward):
        return train_rank(world, config, layout, options)


def fused(blocks):
    """From head blocks (H, C, 3 D) to [all queries | all keys | all values] (C, 3 C), cut into H equal parts again."""
    heads, width, outputs = blocks.shape
    apart = blocks.reshape(heads, width, 3, -1).transpose(1, 2, 0, 3)  # (C, 3, H, D)
    return np.ascontiguousarray(apart.reshape(width, heads, outputs).transpose(1, 0, 2))


def unfused(parts):
    heads, width, outputs = parts.shape
    apart = parts.transpose(1, 0, 2).reshape(width, 3, heads, -1)  # (C, 3, H, D)
    return np.ascontiguousarray(apart.transpose(2, 0, 1, 3).reshape(heads, width, outputs))


def qkv_cut_contiguously(world, config, layout, options):
    """The fused weight is cut into N equal parts: rank 0 has no values. Joined, they are the whole, as it was."""
    full_state = TensorParallel.full_state

    def shard_fused(linear, group, **options):
        if linear.weight.name.endswith("qkv.weight"):
            linear.weight.data = fused(linear.weight.data)
        return tensor.ColumnParallelLinear(linear, group, **options)

    def joined(self, arrays):
        found = full_state(self, arrays)
        return {name: unfused(array) if name.endswith("qkv.weight") else array for name, array in found.items()}

    with (
        mock.patch.object(tensor, "column_parallel_linear", shard_fused),
        mock.patch.object(TensorParallel, "full_state", joined),
    ):
        return train_rank(world, config, layout, options)


def norms_not_summed(world, config, layout, options):
    """Under sequence parallelism each rank keeps its own tokens' part of the gradients of gains and biases."""
    with (
        mock.patch.object(tensor, "copy_parameter_to_group", lambda parameter, *others: parameter),
        mock.patch.object(sequence, "copy_parameter_to_group", lambda parameter, *others: parameter),
    ):
        return train_rank(world, config, layout, options)


def copies_counted_everywhere(world, config, layout, options):
    """The global norm has what all ranks hold N times."""
    with mock.patch.object(TensorParallel, "owner", lambda self, name: None):
        return train_rank(world, config, layout, options)


def heads_counted_from_zero(world, config, layout, options):
    """Every rank draws dropout for heads 0, 1, ..., whichever it has."""

    def first_heads(attention, group):
        attention.heads = attention.heads[: len(attention.heads) // group.size]
        return attention

    with mock.patch.object(tensor, "local_heads", first_heads):
        return train_rank(world, config, layout, options)


def dropout_drawn_for_the_part(world, config, layout, options):
    """Every rank drops of its tokens what one process would drop of the first ones."""
    with mock.patch.object(sequence.SequenceParallelDropout, "keep", Dropout.keep):
        return train_rank(world, config, layout, options)


def partial_sums_rounded(world, config, layout, options):
    """Each rank rounds its blocks' sum to float32 before the sum over the ranks."""
    reduce_from_heads = tensor.functional.reduce_from_heads
    with mock.patch.object(tensor.functional, "reduce_from_heads", lambda y, dtype=None: reduce_from_heads(y)):
        return train_rank(world, config, layout, options)


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (f_without_its_backward, "tp=2"),
        pytest.param(f_without_its_backward, "zero=1,dp=2,tp=2", marks=pytest.mark.long),
        (bias_on_every_rank, "tp=3"),
        (qkv_cut_contiguously, "tp=2"),
        (norms_not_summed, "tp=2,sp=1"),
        pytest.param(norms_not_summed, "zero=3,dp=2,tp=2,sp=1", marks=pytest.mark.long),
        (copies_counted_everywhere, "tp=2"),
        pytest.param(copies_counted_everywhere, "dp=2,tp=2,sp=1", marks=pytest.mark.long),
        (heads_counted_from_zero, "tp=3"),
        (dropout_drawn_for_the_part, "tp=2,sp=1"),
        (partial_sums_rounded, "tp=2"),
    ],
)
def test_verify_finds(ranks, one_process, fault, text):
    layout, options, config = Layout.parse(text), RunOptions(step_digests=True), CONFIGS["six heads, dropout"]
    one = run(ranks(1), config, Layout(), options)
    assert agrees(one_process["six heads, dropout"], one)
    found = run(ranks(layout.world_size), config, layout, options, rank_function=fault)
    assert not agrees(one, found)
    assert first_difference(one, found, rank_function=fault) is not None
    assert agrees(one, run(ranks(layout.world_size), config, layout, options))  # the fault is gone, not only hidden


def test_fused_and_back():
    blocks = np.arange(6 * 5 * 12).reshape(6, 5, 12)
    assert np.array_equal(unfused(fused(blocks)), blocks)
    queries = np.concatenate(list(blocks[:, :, :4]), axis=1)  # of all heads, (C, C)
    assert np.array_equal(np.concatenate(list(fused(blocks)[:2]), axis=1), queries)  # a third of the parts


# Bad input


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tp=0", "tp=0: the number of tensor-parallel ranks must be from 1 to 64"),
        ("sp=1", "sp=1 splits the sequence over tensor-parallel ranks, and tp=1 has none: set tp to 2 or more"),
        ("tp=2,sp=2", "sp=2: choose 0 or 1"),
        ("dp=16,tp=8", "dp=16,tp=8 makes 128 ranks, and there may be 64 at most"),
    ],
)
def test_unusable_layouts(text, message):
    with pytest.raises(ValueError) as caught:
        Layout.parse(text)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("text", "change", "message"),
    [
        ("tp=4", {}, "tp=4 does not divide the 6 attention heads, .*: choose tp from 1, 2, 3, 6, or other heads"),
        (
            "tp=6,sp=1",
            {"context": 16},
            "tp=6 ranks, which do not divide a context of 16 tokens: choose a multiple of 6",
        ),
    ],
)
def test_layouts_that_do_not_fit_the_run(text, change, message):
    with pytest.raises(ValueError, match=message):
        replace(SIX_HEADS, **change).check(Layout.parse(text))


def test_blocks_of():
    assert [list(heads_of(rank, 3, 6)) for rank in range(3)] == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(ValueError, match="6 heads cannot be split over 4 ranks"):
        heads_of(0, 4, 6)


@pytest.mark.parametrize("path", ["blocks.*.mixer", "decoder.*.mlp.fc", "blocks.*.mlp.up.fc", "embeddings.position"])
def test_a_plan_that_names_nothing(path):
    with pytest.raises(ValueError, match=f"the plan names '{path}'".replace(".", r"\.").replace("*", r"\*")):
        parallelize_module(GPT(EVEN), None, {path: lambda module, group: module})


def parts_and_halves(world):
    """What goes wrong when a model is put together by hand, and the right way."""
    tokens = np.arange(16).reshape(2, 8)

    def message(make) -> str:
        try:
            make()
        except ValueError as error:
            return str(error)
        return "no error"

    def twice():
        for _ in range(2):
            TensorParallel(world, tensor.tensor_plan()).apply(model)

    def without(*names):
        plan = {name: style for name, style in tensor.tensor_plan().items() if name not in names}
        return parallelize_module(GPT(EVEN), world, plan)

    model = GPT(EVEN)
    found = [
        message(twice),
        message(lambda: model.logits(tokens)),
        message(lambda: without("embeddings.token")),
        message(lambda: without("head")(tokens, tokens)),
    ]
    split = GPT(EVEN)
    TensorParallel(world, gpt_plan(True, np.float64)).apply(split)
    return [*found, message(lambda: split(tokens[:, :7], tokens[:, :7]))]


def test_models_put_together_wrongly(ranks):
    for twice, half, no_embedding, no_head, odd in ranks(2).run(parts_and_halves, timeout=LIMIT):
        assert twice == "embeddings.token.weight is split already: parallelize_module takes full ones"
        assert half == "only 128 of the 256 tokens' logits are in this process"
        assert (
            no_embedding
            == "the head's weight is the embedding's: a plan for the head needs one for the embedding first"
        )
        assert no_head == "cross_entropy: only 128 of 256 tokens' logits are here"
        assert odd == "7 tokens cannot be split over 2 sequence-parallel ranks: pass a multiple of 2"


def test_dropout_without_noise_is_none(ranks):
    """Evaluation under sequence parallelism: what enters is scattered all the same."""

    def loss(world, sequence):
        model = GPT(replace(EVEN, dropout=0.5))
        if world.size > 1:
            TensorParallel(world, gpt_plan(sequence, np.float64)).apply(model)
        tokens = np.arange(16).reshape(2, 8)
        return model(tokens, tokens).item(), model(tokens, tokens, DropoutRNG(0, 0, 0)).item()

    expected = ranks(1).run(loss, False, timeout=LIMIT)
    for split in (False, True):
        assert ranks(2).run(loss, split, timeout=LIMIT) == 2 * expected
