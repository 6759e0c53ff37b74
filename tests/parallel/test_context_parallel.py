"""Context parallelism: whose chunks, tiles within them, and more ranks than verify/test_matrix.py draws."""

import itertools

import pytest

from minidist.nn.attention.tiled import tiles
from minidist.parallel.context import (
    BOTH_ENDS,
    KINDS,
    chunks_of_ranks,
    deal_chunks,
    sequence_chunks_of,
    tiles_of_ranks,
)
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.trainer import run
from minidist.verify.comparison import agrees


def test_every_chunk_is_on_one_rank():
    for kind, (ranks, chunks) in itertools.product(
        (*BOTH_ENDS, "ring", "ulysses"), [(1, 2), (2, 4), (2, 12), (3, 6), (5, 10), (7, 14)]
    ):
        found = [sequence_chunks_of(rank, ranks, chunks, kind) for rank in range(ranks)]
        assert sorted(itertools.chain(*found)) == list(range(chunks))
        assert all(mine == sorted(mine) and len(mine) == chunks // ranks for mine in found)
        work = [sum(chunk + 1 for chunk in mine) for mine in found]  # of causal attention: all chunks up to each
        assert len(set(work)) == 1 if kind in BOTH_ENDS else work == sorted(work)
        assert kind in BOTH_ENDS or ranks == 1 or work[0] < work[-1]
    assert [sequence_chunks_of(rank, 2, 8, "zigzag") for rank in range(2)] == [[0, 1, 6, 7], [2, 3, 4, 5]]
    assert deal_chunks([9, 1, 1, 1], 2) == [[0, 3], [1, 2]]  # as many each, although one chunk has most of the work


def test_tiles_never_cross_a_chunk():
    assert tiles(10, 3, 2) == [slice(0, 3), slice(3, 5), slice(5, 8), slice(8, 10)]
    mine, theirs = tiles_of_ranks(20, 3, 4, chunks_of_ranks(2, 4, "zigzag"))
    assert mine == list(zip([0, 1, 6, 7], tiles(10, 3, 2), strict=True))  # chunks 0 and 3, of two tiles each
    assert [number for number, _ in theirs] == [2, 3, 4, 5]


@pytest.mark.long
def test_five_and_seven_ranks_have_the_bits_of_one_process(ranks):
    """Tiles end within a chunk; the keys come in another order on every rank."""
    for size, kind in itertools.product((5, 7), KINDS):
        config = TrainConfig(
            layers=1, heads=size, width=3 * size, context=6 * size, sequence_chunks=2 * size, attention="tiled",
            attention_tile=2, dropout=0.3, steps=1, global_batch=2, precision="bf16" if size == 7 else "fp32",
        )  # fmt: skip
        assert agrees(run(ranks(1), config, Layout()), run(ranks(size), config, Layout(cp=size, cp_kind=kind))), kind
