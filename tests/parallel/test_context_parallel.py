"""Context parallelism: whose chunks, and the bits of one process from ranks that have some of the queries."""

import itertools
from unittest import mock

import numpy as np
import pytest

from minidist.nn.attention.tiled import SOFTMAXES, tiled_attention, tiles
from minidist.nn.chunks import Chunks, TakeTokens, join, mean_over_chunks
from minidist.nn.gpt import GPT, Attention, GPTConfig
from minidist.nn.precision.policy import POLICIES, autocast
from minidist.nn.random import DropoutRNG
from minidist.nn.tensor import Tensor
from minidist.parallel.context import KINDS, PAIRED, ContextParallelAttention, sequence_chunks_of, tiles_of_ranks
from minidist.parallel.tools.passing_attention import PASSES, PassingAttention

HEADS, BATCH, WIDTH = 6, 2, 5

# Who has which chunks


def test_every_chunk_is_on_one_rank():
    for kind, (ranks, chunks) in itertools.product(KINDS, [(1, 2), (2, 4), (2, 12), (3, 6), (5, 10), (7, 14)]):
        found = [sequence_chunks_of(rank, ranks, chunks, kind) for rank in range(ranks)]
        assert sorted(itertools.chain(*found)) == list(range(chunks))
        assert all(mine == sorted(mine) and len(mine) == chunks // ranks for mine in found)
        work = [sum(chunk + 1 for chunk in mine) for mine in found]  # of causal attention: all chunks up to each
        assert len(set(work)) == 1 if kind in PAIRED else work == sorted(work)
        assert kind in PAIRED or ranks == 1 or work[0] < work[-1]
    assert [sequence_chunks_of(rank, 2, 8, "zigzag") for rank in range(2)] == [[0, 1, 6, 7], [2, 3, 4, 5]]
    with pytest.raises(ValueError, match="6 sequence chunks cannot be split over 2 ranks by zigzag: 4 must divide"):
        sequence_chunks_of(0, 2, 6, "zigzag")


def test_tiles_never_cross_a_chunk():
    assert tiles(10, 3, 2) == [slice(0, 3), slice(3, 5), slice(5, 8), slice(8, 10)]
    mine, theirs = tiles_of_ranks(20, 3, 4, 2, "zigzag")
    assert mine == list(zip([0, 1, 6, 7], tiles(10, 3, 2), strict=True))  # chunks 0 and 3, of two tiles each
    assert [number for number, _ in theirs] == [2, 3, 4, 5]


def test_products_are_shared_out_evenly_by_zigzag():
    def products(kind: str) -> list[int]:
        parts, output = tiles_of_ranks(32, 128, 8, 4, kind), np.empty((1, 1, 8, 4))
        of = lambda rank: PassingAttention.flops(output, 0, 0, 0, parts, 0, 0, mock.Mock(rank=rank))  # noqa: E731
        return [of(rank) for rank in range(4)]

    zigzag, ring = products("zigzag"), products("ring")
    assert len(set(zigzag)) == 1 and sum(zigzag) == sum(ring)
    assert ring == [ring[0] * n // 3 for n in (3, 7, 11, 15)]  # pairs of chunks


# The pieces of one process


def test_a_gradient_of_zero_keeps_its_sign():
    x = Tensor(np.ones((1, 4, 1), np.float32), requires_grad=True)
    x.grad_dtype = np.float32
    halves = [TakeTokens.apply(x, slice(0, 2)), TakeTokens.apply(x, slice(2, 4))]
    join(halves).backward(np.float32([[[0.0], [-0.0], [-0.0], [1.0]]]))
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


def test_the_mean_is_over_all_tokens():
    for precision in ("fp32", "bf16"):
        means = [Tensor(np.float32(value), requires_grad=True) for value in (1.5, 2.5)]
        with autocast(precision):
            loss = mean_over_chunks(means, 8)  # two of eight chunks are here
            loss.backward()
        assert (loss.dtype, loss.item()) == (np.float64, 0.5)
        assert [mean.grad.item() for mean in means] == [1 / 8, 1 / 8]
        assert mean_over_chunks(means[:1], 1) is means[0]


# Attention alone


def inputs(length: int):
    random = np.random.default_rng(length)
    qkv = random.standard_normal((HEADS, BATCH, length, 3 * WIDTH)).astype(np.float32) * 2
    return qkv, random.standard_normal((HEADS, BATCH, length, WIDTH)).astype(np.float32)


def attention_of(precision: str, function, qkv, gradient):
    """Output, and the gradient as what made the queries, keys and values gets it."""
    with autocast(precision):
        policy = POLICIES[precision]
        x = Tensor(policy.round(qkv), requires_grad=True)
        x.grad_dtype = x.dtype
        y = function(x)
        y.backward(policy.round(gradient))
    return y.data, policy.round(x.grad)


def attention(length, tile, chunks, softmax):
    made = Attention(GPTConfig(heads=HEADS, width=HEADS * WIDTH, context=length, sequence_chunks=chunks), 0)
    made.tile, made.rate, made.softmax = tile, 0.3, softmax
    return made


def one_process(length, tile, chunks, precision="fp32", softmax="exact"):
    whole = attention(length, tile, chunks, softmax)
    return attention_of(precision, lambda x: whole.core(x, DropoutRNG(1, 2, 3)), *inputs(length))


def part_of_attention(world, kind, length, tile, chunks, precision="fp32", softmax="exact"):
    """Runs in a rank. Output and gradient of this rank's tokens, and the tokens."""
    each = length // chunks
    mine = [slice(c * each, (c + 1) * each) for c in sequence_chunks_of(world.rank, world.size, chunks, kind)]
    taken = [np.concatenate([array[:, :, part] for part in mine], 2) for array in inputs(length)]
    part = ContextParallelAttention(attention(length, tile, chunks, softmax), world, kind)
    return *attention_of(precision, lambda x: part.core(x, DropoutRNG(1, 2, 3)), *taken), mine


@pytest.mark.parametrize(
    ("sizes", "kinds"),
    [([(2, 16, None, 4), (3, 30, 4, 6)], KINDS), pytest.param([(7, 56, 4, 28)], KINDS[:3], marks=pytest.mark.long)],
    ids=["few ranks", "seven ranks"],
)
def test_attention_has_the_bits_of_one_process(ranks, sizes, kinds):
    for (size, *arguments), precision, kind in itertools.product(sizes, ("fp32", "bf16"), kinds):
        expected = one_process(*arguments, precision)
        for *found, mine in ranks(size).run(part_of_attention, kind, *arguments, precision):
            for array, right in zip(found, expected, strict=True):
                assert array.tobytes() == np.concatenate([right[:, :, part] for part in mine], 2).tobytes(), kind


def test_in_float32_the_order_shows(ranks):
    """What everybody else lives with: the keys come in another order on each rank, and the last bits say so."""
    for softmax, least, most in (("exact", 0, 0), ("online32", 0.2, 0.9)):
        expected = one_process(48, None, 6, softmax=softmax)
        found = ranks(6).run(part_of_attention, "ring", 48, None, 6, "fp32", softmax)
        for which, right in enumerate(expected):
            joined = np.concatenate([result[which] for result in found], 2)
            np.testing.assert_allclose(joined, right, atol=1e-5 * np.abs(right).max())
            assert least <= np.mean(joined != right) <= most, softmax


def backwards_round(keys_values, group, visit):
    """As if the keys came the other way round."""
    from minidist.comm.collectives import all_gather_into_tensor

    gathered = np.empty((group.size, *keys_values.shape), keys_values.dtype)
    all_gather_into_tensor(gathered, keys_values, group)
    for step in range(group.size):
        rank = (group.rank + 1 + step) % group.size
        visit(rank, gathered[rank])


def test_keys_may_come_in_any_order(ranks):
    def in_another_order(world, *arguments):
        with mock.patch.dict(PASSES, ring=(backwards_round, PASSES["ring"][1])):
            return part_of_attention(world, *arguments)

    found = ranks(6).run(in_another_order, "ring", 30, 4, 6)
    assert np.concatenate([result[0] for result in found], 2).tobytes() == one_process(30, 4, 6)[0].tobytes()


def test_softmaxes_have_the_same_names_and_nearly_the_same_numbers():
    for module in SOFTMAXES.values():
        assert all(hasattr(module, name) for name in ("EXPONENT", "exponent_of", "weights", "Total", "OnlineSoftmax"))
    exact, usual = (
        attention_of("fp32", lambda x, s=softmax: tiled_attention(x, tile=8, softmax=s), *inputs(33))
        for softmax in SOFTMAXES
    )
    for one, right in zip(usual, exact, strict=True):
        np.testing.assert_allclose(one, right, atol=1e-5 * np.abs(right).max())
        assert (one != right).any()
