"""Ulysses in a real training step: which rank has which tokens of which heads, before and after each all-to-all.

The bug is the same as in the ring: a rank computes with its own keys and values.
"""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from unittest.mock import patch

import numpy as np

from minidist import trace
from minidist.backend import to_host
from minidist.comm.group import ProcessGroup
from minidist.parallel import context
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RankResult, Run, RunOptions
from minidist.train.trainer import train_rank

WIDTH_OF_HEAD = 8
Place = tuple[int, int]  # chunk of tokens, head


@dataclass(slots=True)
class Exchanged:
    """Entry of a rank's log: an all-to-all in forward.

    Args:
        before, after: CRC-32 of the rank's data for each chunk of tokens and head: of keys and values in the first
            all-to-all, of the outputs in the second.
        nbytes: bytes that the rank sent.
    """

    before: dict[Place, int]
    after: dict[Place, int]
    nbytes: int


def config_of(ranks: int, size: int, seed: int) -> TrainConfig:
    """Configure one layer and one sample, with one head per rank; a rank has ``2 * size`` tokens, as in the ring."""
    return TrainConfig(
        layers=1,
        heads=ranks,
        width=WIDTH_OF_HEAD * ranks,
        context=2 * ranks * size,
        global_batch=1,
        micro_batch=1,
        steps=1,
        sequence_chunks=ranks,
        seed=seed,
    )


def train_heads(
    world: ProcessGroup, config: TrainConfig, layout: Layout, options: RunOptions, spoil: Callable | None = None
) -> RankResult:
    """Run ``train_rank``, and log an ``Exchanged`` for both all-to-alls of forward.

    Args:
        spoil: called with (array from the first all-to-all, rank, number of ranks); it may change the array.
    """
    exchange = context.all_to_all_in_group

    def watched(x, group: ProcessGroup, split_axis: int, join_axis: int):
        first = split_axis == context.HEADS
        sent, before = group.traffic.as_dict()["bytes_sent"], _parts(x.data, group, not first, first)
        y = exchange(x, group, split_axis, join_axis)
        sent = group.traffic.as_dict()["bytes_sent"] - sent
        if first and spoil is not None:
            spoil(y.data, group.rank, group.size)
        trace.record(Exchanged(before, _parts(y.data, group, first, first), sent))
        return y

    with patch.object(context, "all_to_all_in_group", watched):
        return train_rank(world, config, layout, options)


def _parts(x, group: ProcessGroup, all_tokens: bool, qkv: bool) -> dict[Place, int]:
    """Return the CRC-32 of each chunk of tokens and head of (heads, B, tokens, D). qkv: leave out the queries."""
    array = to_host(x)
    array = array[..., array.shape[-1] // 3 :] if qkv else array
    if all_tokens:
        chunks = np.split(array[0], group.size, axis=1)
        return {(chunk, group.rank): zlib.crc32(part.tobytes()) for chunk, part in enumerate(chunks)}
    return {(group.rank, head): zlib.crc32(part.tobytes()) for head, part in enumerate(array)}


def exchanges_of(run: Run) -> list[tuple[Exchanged, ...]]:
    """Return the two all-to-alls of forward, each with an entry for every rank.

    Raises:
        RuntimeError: if a rank sent more or less than the formula says.
    """
    by_rank = [[entry for entry in rank.log if isinstance(entry, Exchanged)] for rank in run.ranks]
    found = list(zip(*by_rank, strict=True))
    for exchange, times in zip(found, (3, 1), strict=True):  # queries, keys and values; then the outputs
        expected = nbytes_of(run.config, len(run.ranks), times)
        if {one.nbytes for one in exchange} != {expected}:
            sent = [one.nbytes for one in exchange]
            raise RuntimeError(f"{run.layout}: ranks send {sent} bytes, not {expected}: this is a bug in minidist")
    return found


def nbytes_of(config: TrainConfig, ranks: int, times: int) -> int:
    """Return the bytes that a rank sends in an all-to-all of ``times`` float32 arrays (T/N, C), by formula."""
    return 4 * times * config.context // ranks * config.width * (ranks - 1) // ranks


def same(one: Sequence[Exchanged], other: Sequence[Exchanged]) -> set[Place]:
    """Return the places at which two runs have the same data after an all-to-all."""
    return {place for a, b in zip(one, other, strict=True) for place, crc in a.after.items() if b.after[place] == crc}


def keep_own(qkv, rank: int, ranks: int) -> None:
    """Overwrite the others' keys and values with this rank's, in all tokens of some heads, (H/N, B, T, 3 D)."""
    tokens, width = qkv.shape[2] // ranks, qkv.shape[3] // 3
    mine = qkv[:, :, rank * tokens : (rank + 1) * tokens, width:].copy()
    for chunk in range(ranks):
        qkv[:, :, chunk * tokens : (chunk + 1) * tokens, width:] = mine


train_stale_heads = partial(train_heads, spoil=keep_own)
