"""Context parallelism: whose chunks, whose bits, how many bytes, and faults of real systems that must be found."""

import itertools
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest

from minidist.comm.transports.shared_memory.segment import MAX_RANKS
from minidist.nn.attention.tiled import SOFTMAXES, tiled_attention, tiles
from minidist.nn.chunks import Chunks, TakeTokens, join, mean_over_chunks
from minidist.nn.gpt import GPT, Attention, GPTConfig
from minidist.nn.precision.policy import POLICIES, autocast
from minidist.nn.random import DropoutRNG
from minidist.nn.tensor import Tensor
from minidist.parallel.context import KINDS, PAIRED, ContextParallelAttention, sequence_chunks_of, tiles_of_ranks
from minidist.parallel.tools import passing_attention
from minidist.parallel.tools.passing_attention import PASSES, PassingAttention
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RunOptions
from minidist.train.trainer import run, train_rank
from minidist.verify.comparison import agrees, first_difference

BASE = TrainConfig(
    layers=2, heads=6, width=24, context=24, steps=2, global_batch=6, micro_batch=2, clip=0.05, warmup=2,
    sequence_chunks=12, dropout=0.2,
)  # fmt: skip
HEADS, BATCH, WIDTH = 6, 2, 5


# Who has which chunks


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("ranks", "chunks"), [(1, 2), (2, 4), (2, 12), (3, 6), (5, 10), (7, 14)])
def test_every_chunk_is_on_one_rank(kind, ranks, chunks):
    found = [sequence_chunks_of(rank, ranks, chunks, kind) for rank in range(ranks)]
    assert sorted(itertools.chain(*found)) == list(range(chunks))
    assert all(mine == sorted(mine) and len(mine) == chunks // ranks for mine in found)
    work = [sum(chunk + 1 for chunk in mine) for mine in found]  # of causal attention: the chunks up to each of mine
    if kind in PAIRED:
        assert len(set(work)) == 1
    else:
        assert work == sorted(work) and (ranks == 1 or work[0] < work[-1])


def test_zigzag_is_an_early_and_a_late_part():
    assert [sequence_chunks_of(rank, 2, 8, "zigzag") for rank in range(2)] == [[0, 1, 6, 7], [2, 3, 4, 5]]
    with pytest.raises(ValueError, match="6 sequence chunks cannot be split over 2 ranks by zigzag: 4 must divide"):
        sequence_chunks_of(0, 2, 6, "zigzag")


def test_tiles_never_cross_a_chunk():
    assert tiles(10, 3, 2) == [slice(0, 3), slice(3, 5), slice(5, 8), slice(8, 10)]
    mine, theirs = tiles_of_ranks(20, 3, 4, 2, "zigzag")
    assert mine == list(zip([0, 1, 6, 7], tiles(10, 3, 2), strict=True))  # chunks 0 and 3, of two tiles each
    assert [number for number, _ in theirs] == [2, 3, 4, 5]


# The pieces of one process


def test_a_gradient_of_zero_keeps_its_sign():
    x = Tensor(np.ones((1, 4, 1), np.float32), requires_grad=True)
    x.grad_dtype = np.float32
    join([TakeTokens.apply(x, slice(0, 2)), TakeTokens.apply(x, slice(2, 4))]).backward(
        np.float32([[[0.0], [-0.0], [-0.0], [1.0]]])
    )
    assert np.signbit(x.grad[0, :, 0]).tolist() == [False, True, True, False]


def test_a_sequence_that_the_chunks_do_not_divide_is_one():
    chunks = Chunks(4)
    assert chunks.places(12) == [slice(0, 3), slice(3, 6), slice(6, 9), slice(9, 12)]
    assert chunks.places(10) == [slice(0, 10)]
    x = Tensor(np.arange(20.0).reshape(1, 10, 2))
    assert chunks.split(x) == [x]
    chunks.here = [1, 2]
    assert chunks.places(12) == [slice(3, 6), slice(6, 9)]
    assert [part.data[0, :, 0].tolist() for part in Chunks(2).split(x)] == [[0, 2, 4, 6, 8], [10, 12, 14, 16, 18]]


def test_chunks_change_no_more_than_the_last_bits():
    tokens = np.random.default_rng(0).integers(0, 256, (2, 24))
    models = [GPT(GPTConfig(heads=2, width=16, context=24, sequence_chunks=n)) for n in (1, 2, 3, 24)]
    for model in models:
        model(tokens, tokens).backward()
    losses = [model(tokens, tokens).item() for model in models]
    np.testing.assert_allclose(losses, losses[0], rtol=1e-6)  # sums of float32 products in another order
    for one, *others in zip(*(model.parameters() for model in models), strict=True):
        for other in others:
            np.testing.assert_allclose(other.grad, one.grad, atol=2e-6 * max(1, np.abs(one.grad).max()))
    np.testing.assert_allclose(models[2].logits(tokens[:, :7]).data, models[0].logits(tokens[:, :7]).data, atol=1e-5)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_mean_is_over_all_tokens(precision):
    means = [Tensor(np.float32(value), requires_grad=True) for value in (1.5, 2.5)]
    with autocast(precision):
        loss = mean_over_chunks(means, 8)  # two of eight chunks are here
        loss.backward()
    assert (loss.dtype, loss.item()) == (np.float64, 0.5)
    assert [mean.grad.item() for mean in means] == [1 / 8, 1 / 8]
    assert mean_over_chunks(means[:1], 1) is means[0]


# Attention alone: the bits of one process, from ranks that have some of the queries


def inputs(length: int):
    random = np.random.default_rng(length)
    qkv = random.standard_normal((HEADS, BATCH, length, 3 * WIDTH)).astype(np.float32) * 2
    return qkv, random.standard_normal((HEADS, BATCH, length, WIDTH)).astype(np.float32)


def attention_of(precision: str, function, qkv, gradient):
    with autocast(precision):
        policy = POLICIES[precision]
        x = Tensor(policy.round(qkv), requires_grad=True)
        x.grad_dtype = x.dtype
        y = function(x)
        y.backward(policy.round(gradient))
    return y.data, policy.round(x.grad)  # as what made the queries, keys and values gets it


def keep_all_but_some(h, i, j, sizes):
    return DropoutRNG(1, 2, 3).generator(0, "test", h, i, j).random((BATCH, sizes[j], sizes[i])) >= 0.3


def part_of_attention(world, length, tile, chunks, kind, precision, softmax="exact"):
    """Runs in a rank. Output and gradient of this rank's tokens, and the tokens."""
    qkv, gradient = inputs(length)
    each = length // chunks
    mine = [slice(c * each, (c + 1) * each) for c in sequence_chunks_of(world.rank, world.size, chunks, kind)]
    taken = [np.concatenate([array[:, :, part] for part in mine], 2) for array in (qkv, gradient)]
    attention = Attention(GPTConfig(heads=HEADS, width=HEADS * WIDTH, context=length, sequence_chunks=chunks), 0)
    attention.tile, attention.rate, attention.softmax = tile, 0.3, softmax
    attention = ContextParallelAttention(attention, world, kind)
    found = attention_of(precision, lambda x: attention.core(x, DropoutRNG(1, 2, 3)), *taken)
    return *found, mine, world.traffic.as_dict()["bytes_sent"]


def one_process(length, tile, chunks, precision, softmax="exact"):
    attention = Attention(GPTConfig(heads=HEADS, width=HEADS * WIDTH, context=length, sequence_chunks=chunks), 0)
    attention.tile, attention.rate, attention.softmax = tile, 0.3, softmax
    return attention_of(precision, lambda x: attention.core(x, DropoutRNG(1, 2, 3)), *inputs(length))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("size", "length", "tile", "chunks", "precision"),
    [(2, 16, None, 4, "fp32"), (3, 30, 4, 6, "fp32"), (3, 18, None, 18, "fp32"), (3, 30, 4, 6, "bf16")],
)
def test_attention_has_the_bits_of_one_process(ranks, kind, size, length, tile, chunks, precision):
    expected = one_process(length, tile, chunks, precision)
    for output, gradient, mine, _ in ranks(size).run(part_of_attention, length, tile, chunks, kind, precision):
        for found, right in zip((output, gradient), expected, strict=True):
            assert found.tobytes() == np.concatenate([right[:, :, part] for part in mine], 2).tobytes()


@pytest.mark.long
@pytest.mark.parametrize("kind", ["ring", "zigzag", "all-gather"])
@pytest.mark.parametrize(("size", "length", "tile", "chunks"), [(5, 50, 4, 10), (7, 56, None, 28)])
def test_attention_on_more_ranks(ranks, kind, size, length, tile, chunks):
    expected = one_process(length, tile, chunks, "fp32")
    for output, gradient, mine, _ in ranks(size).run(part_of_attention, length, tile, chunks, kind, "fp32"):
        for found, right in zip((output, gradient), expected, strict=True):
            assert found.tobytes() == np.concatenate([right[:, :, part] for part in mine], 2).tobytes()


def test_in_float32_the_order_shows(ranks):
    """What everybody else lives with: the keys come in another order on each rank, and the last bits say so."""
    arguments = 48, None, 6
    for softmax, least, most in (("exact", 0, 0), ("online32", 0.2, 0.9)):
        expected = one_process(*arguments, "fp32", softmax)
        found = ranks(6).run(part_of_attention, *arguments, "ring", "fp32", softmax)
        for which, right in enumerate(expected):
            joined = np.concatenate([result[which] for result in found], 2)
            np.testing.assert_allclose(joined, right, atol=1e-5 * np.abs(right).max())
            assert least <= np.mean(joined != right) <= most, softmax


def backwards_round(keys_values, group, visit):
    """As if the keys came the other way round."""
    from minidist.backend import xp
    from minidist.comm.collectives import all_gather_into_tensor

    gathered = xp.empty((group.size, *keys_values.shape), keys_values.dtype)
    all_gather_into_tensor(gathered, keys_values, group)
    for step in range(group.size):
        rank = (group.rank + 1 + step) % group.size
        visit(rank, gathered[rank])


def in_another_order(world, *arguments):
    with mock.patch.dict(PASSES, ring=(backwards_round, PASSES["ring"][1])):
        return part_of_attention(world, *arguments)


def test_keys_may_come_in_any_order(ranks):
    arguments = 30, 4, 6
    expected = one_process(*arguments, "fp32")[0]
    found = ranks(6).run(in_another_order, *arguments, "ring", "fp32")
    assert np.concatenate([result[0] for result in found], 2).tobytes() == expected.tobytes()


def test_softmaxes_have_the_same_four_names():
    for module in SOFTMAXES.values():
        assert all(hasattr(module, name) for name in ("EXPONENT", "exponent_of", "weights", "Total", "OnlineSoftmax"))
    qkv, gradient = inputs(33)
    exact, usual = (
        attention_of("fp32", lambda x, s=softmax: tiled_attention(x, tile=8, softmax=s), qkv, gradient)
        for softmax in SOFTMAXES
    )
    for one, right in zip(usual, exact, strict=True):
        np.testing.assert_allclose(one, right, atol=1e-5 * np.abs(right).max())
        assert (one != right).any()


# Bytes


def bytes_of(kind: str, ranks: int, length: int, itemsize: int, exact: bool = True) -> int:
    """What a rank sends in forward and backward of attention, from the formulas of parallel/context.py."""
    keys_values = 2 * HEADS * BATCH * (length // ranks) * WIDTH  # elements of one rank
    gradients = keys_values * (16 if exact else 4)  # bytes: two float64 each
    if kind == "ulysses":
        there, back = 3 * keys_values // 2, keys_values // 2  # queries too; the output
        return 2 * (ranks - 1) * (there + back) // ranks * itemsize  # and the gradients of both
    passes = 2 * (ranks - 1) * keys_values * itemsize  # in forward, and again in backward
    return passes + (ranks if kind in ("ring", "zigzag") else ranks - 1) * gradients


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("size", "precision", "softmax"), [(2, "fp32", "exact"), (3, "bf16", "exact"), (3, "fp32", "online32")]
)
def test_bytes_are_those_of_the_formula(ranks, kind, size, precision, softmax):
    before = ranks(size).run(lambda world: world.traffic.as_dict()["bytes_sent"])
    found = ranks(size).run(part_of_attention, 36, None, 12, kind, precision, softmax)
    expected = bytes_of(kind, size, 36, 2 if precision == "bf16" else 4, softmax == "exact")
    assert [result[-1] - sent for result, sent in zip(found, before, strict=True)] == [expected] * size


def test_products_are_shared_out_evenly_by_zigzag():
    def products(kind: str) -> list[int]:
        parts = tiles_of_ranks(32, 128, 8, 4, kind)
        output = np.empty((1, 1, 8, 4))
        return [
            PassingAttention.flops(output, None, None, 0, parts, None, None, mock.Mock(rank=rank)) for rank in range(4)
        ]

    assert len(set(products("zigzag"))) == 1 and sum(products("zigzag")) == sum(products("ring"))
    assert products("ring") == [3 * products("ring")[0] // 3 * n // 3 for n in (3, 7, 11, 15)]  # pairs of chunks


# Whole runs


@pytest.fixture(scope="module")
def base(ranks):
    return run(ranks(1), BASE, Layout(), RunOptions(step_digests=True))


@pytest.mark.parametrize(
    "text",
    [
        "cp=2",
        pytest.param("cp=3", marks=pytest.mark.long),
        pytest.param("cp=2,cp_kind=zigzag,dp=2,zero=2", marks=pytest.mark.long),
        "cp=3,cp_kind=zigzag",
        pytest.param("cp=2,cp_kind=all-gather,tp=2,sp=1", marks=pytest.mark.long),
        "cp=2,cp_kind=ulysses,recompute=selective",
        "cp=2,pp=2,recompute=full",
        pytest.param("cp=6,cp_kind=zigzag", marks=pytest.mark.long),
        pytest.param("cp=3,cp_kind=ulysses,tp=2,sp=1", marks=pytest.mark.long),
        pytest.param("cp=2,cp_kind=zigzag,dp=3,zero=3,shard=3,prefetch=1", marks=pytest.mark.long),
        pytest.param("cp=2,zero=3,tp=2,pp=2", marks=pytest.mark.long),
        pytest.param("cp=2,dp=2,zero=3,tp=2,pp=2,reshard_after_forward=0,grad_sync=step", marks=pytest.mark.long),
    ],
)
def test_bits_of_one_process(ranks, base, text):
    layout = Layout.parse(text)
    config = replace(BASE, global_batch=8) if layout.zero == 3 and layout.pp > 1 else BASE  # dp divides the batch
    expected = base if config is BASE else run(ranks(1), config, Layout())
    assert agrees(expected, run(ranks(layout.world_size), config, layout))


def targets_shifted_after_sharding(world, config, layout, options):
    """The last token of each chunk gets the first one of the same chunk as its target."""
    from minidist.nn.gpt import Head

    right = Head.mean_loss

    def shifted(self, x, targets):
        return right(self, x, np.concatenate([targets[:, :-1], targets[:, :1]], 1))

    with mock.patch.object(Head, "mean_loss", shifted):
        return train_rank(world, config, layout, options)


def loss_over_local_tokens(world, config, layout, options):
    from minidist.nn import gpt

    right = gpt.mean_over_chunks
    with mock.patch.object(gpt, "mean_over_chunks", lambda means, count: right(means, len(means))):
        return train_rank(world, config, layout, options)


def stale_keys_in_backward(world, config, layout, options):
    """Backward multiplies by this rank's own keys and values (diffusers #14265)."""
    right = passing_attention.ring_backward

    def stale(keys_values, group, visit):
        return right(keys_values, group, lambda rank, _: visit(rank, keys_values))

    with mock.patch.dict(PASSES, ring=(PASSES["ring"][0], stale)):
        return train_rank(world, config, layout, options)


def positions_from_zero(world, config, layout, options):
    """Every rank numbers its tokens from 0."""
    from minidist.nn import functional

    right = functional.add_positions
    with mock.patch.object(functional, "add_positions", lambda x, weight, first=0: right(x, weight, 0)):
        return train_rank(world, config, layout, options)


@pytest.mark.long
@pytest.mark.parametrize(
    "fault", [targets_shifted_after_sharding, loss_over_local_tokens, stale_keys_in_backward, positions_from_zero]
)
def test_a_fault_is_found(ranks, base, fault):
    found = run(ranks(2), BASE, Layout(cp=2), RunOptions(step_digests=True), rank_function=fault)
    assert not agrees(base, found)
    assert first_difference(base, found, rank_function=fault).step == 0


# Bad input


@pytest.mark.parametrize(
    ("changes", "text", "message"),
    [
        (
            {"sequence_chunks": 1},
            "cp=2",
            "1 part of the sequence on each rank, and sequence_chunks 1 is not a ",
        ),
        (
            {"sequence_chunks": 6},
            "cp=2,cp_kind=zigzag",
            "needs 2 parts of .* of 4: .* set sequence_chunks to 4 or 8",
        ),
        ({"sequence_chunks": 3}, "cp=5", "with a context of 24 tokens, set another cp or context"),
        ({}, "cp=4,cp_kind=ulysses", "splits the 6 attention heads of a rank, .* choose cp from 2, 3, 6, or another"),
        ({}, "cp=2,cp_kind=ulysses,tp=2", r"the 3 attention heads of a rank \(6 over tp=2\), .* choose cp from 3"),
        ({"heads": 1}, "cp=2,cp_kind=ulysses", "which it must divide: choose another cp_kind"),
        ({"sequence_chunks": 8}, "cp=2,tp=2,sp=1", "do not divide chunks of 3 tokens: choose a multiple of 2"),
    ],
)
def test_runs_that_cannot_be_split(changes, text, message):
    with pytest.raises(ValueError, match=message):
        replace(BASE, **changes).check(Layout.parse(text))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Layout.parse("cp_kind=zigzag"), "cp=1 is none: set cp to 2 or more"),
        (lambda: Layout.parse("cp=2,cp_kind=disk"), "cp_kind=disk: choose from ring, zigzag, all-gather, ulysses"),
        (lambda: Layout.parse(f"cp={MAX_RANKS + 1}"), "the number of context-parallel ranks must be from 1"),
        (lambda: Layout.parse("cp=2,dp=3,zero=1,shard=4"), "shard=4 must divide dp x cp = 6"),
        (lambda: replace(BASE, sequence_chunks=5), "does not divide a context of 24 tokens: choose from 1, 2, 3, 4, 6"),
        (lambda: replace(BASE, sequence_chunks=0), "sequence_chunks must be a whole number of at least 1, not 0"),
        (lambda: replace(BASE, softmax="fast"), "softmax must be one of exact, online32, not 'fast'"),
        (
            lambda: replace(BASE, softmax="online32", sequence_chunks=1),
            "a way to merge tiles, and plain attention has none: choose attention tiled",
        ),
    ],
)
def test_unusable_settings(make, message):
    with pytest.raises(ValueError, match=message):
        make()
