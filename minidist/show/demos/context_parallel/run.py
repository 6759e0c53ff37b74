"""Context-parallel attention in a real training step: which keys reach which rank, and the tile pairs it computes.

The bug: a rank computes with its own keys and values, not with those that have arrived. Diffusers had it in backward
(huggingface/diffusers, issue 14265): backward read the keys and values that forward had saved, which are those of the
rank itself. All shapes fit, and the loss of the first step is right.
"""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from unittest.mock import patch

import numpy as np

from minidist import trace
from minidist.comm.group import ProcessGroup
from minidist.nn.attention.tiled import TileMask
from minidist.parallel.context import PASSES, ring_backward, ring_forward
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RankResult, Run, RunOptions
from minidist.train.trainer import train_rank

HEADS, WIDTH = 2, 16
CHUNKS = {"ring": 1, "zigzag": 2}  # per rank, by kind: the fewest possible
FORWARD, BACKWARD = "forward", "backward"


@dataclass(slots=True)
class Visit:
    """Entry of a rank's log: one rank's keys and values on this rank.

    Args:
        way: FORWARD or BACKWARD.
        owner: rank whose keys and values should be here.
        used: CRC-32 of the keys and values that the rank computed with.
        pairs: (chunk of queries, chunk of keys) of each tile pair that it computed.
        gradients: (2, H, B, T/N, D) float32, terms that backward adds for keys and values; empty in forward.
    """

    way: str
    owner: int
    used: int
    pairs: list[tuple[int, int]]
    gradients: np.ndarray


@dataclass(slots=True)
class Sent:
    """Entry of a rank's log: the bytes that it sent for one pass."""

    way: str
    nbytes: int


@dataclass(frozen=True)
class Pass:
    """Forward or backward of a run's attention.

    Args:
        visits: visits by hop and rank.
        slots_of_pair: time of a tile pair, in units of a pair of zigzag's smaller chunks.
        nbytes: bytes that each rank sent.
    """

    visits: Sequence[Sequence[Visit]]
    slots_of_pair: int = 1
    nbytes: int = 0

    @property
    def ranks(self) -> int:
        return len(self.visits[0])

    def pairs(self, hops: int | None = None) -> int:
        """Return the number of tile pairs of all ranks in the first ``hops`` hops, by default in all."""
        return sum(len(visit.pairs) for hop in self.visits[:hops] for visit in hop)

    def work(self) -> int:
        """Return the work of all ranks, in slots."""
        return self.slots_of_pair * self.pairs()

    def times(self) -> list[list[tuple[int, int]]]:
        """Return (begin, end) of each visit, ``[hop][rank]``, in slots, as if messages took no time.

        Keys and values leave a rank when its visit begins, since the rank posts the message to the next one first.
        """
        found: list[list[tuple[int, int]]] = []
        for hop in self.visits:
            times = []
            for rank, visit in enumerate(hop):
                # rank 0 comes after the last rank, -1: they are a ring
                start = max(found[-1][rank][1], found[-1][rank - 1][0]) if found else 0
                times.append((start, start + self.slots_of_pair * len(visit.pairs)))
            found.append(times)
        return found

    def slots(self) -> int:
        """Return the slots of all ranks until the slowest one has finished."""
        return self.ranks * self.end(-1)

    def gradients(self, owner: int) -> np.ndarray:
        """Return the gradients of a rank's keys and values, summed over all ranks: (2, H, B, T/N, D)."""
        added = [visit.gradients for hop in self.visits for visit in hop if visit.owner == owner]
        return np.add.reduce(added, axis=0, dtype=np.float64)

    def stale(self) -> set[tuple[int, int]]:
        """Return each (hop, rank) that has work and computes with other keys than those that have arrived."""
        return {
            (hop, rank)
            for hop, (visits, used) in enumerate(zip(self.visits, self.owners(), strict=True))
            for rank, visit in enumerate(visits)
            if visit.pairs and used[rank] != visit.owner
        }

    def end(self, hop: int) -> int:
        """Return the slot in which the last rank finishes a hop."""
        return max(stop for _, stop in self.times()[hop])

    def busy(self, hops: int | None = None) -> float:
        """Return the share of the ranks' time that is work, up to the end of the first ``hops`` hops."""
        hops = len(self.visits) if hops is None else hops
        return self.slots_of_pair * self.pairs(hops) / (self.ranks * self.end(hops - 1))

    def owners(self) -> list[list[int]]:
        """Return the owner of the keys and values that each rank used, ``[hop][rank]``; in hop 0 they are its own."""
        whose = {visit.used: rank for rank, visit in enumerate(self.visits[0])}
        return [[whose[visit.used] for visit in hop] for hop in self.visits]


def config_of(kind: str, ranks: int, size: int, seed: int) -> TrainConfig:
    """Configure one layer and one sample, so that every rank has one visit a hop. A chunk is one tile.

    Args:
        size: tokens in each of zigzag's chunks; a contiguous chunk is twice as long.
    """
    return TrainConfig(
        layers=1,
        heads=HEADS,
        width=WIDTH,
        context=2 * ranks * size,
        global_batch=1,
        micro_batch=1,
        steps=1,
        sequence_chunks=CHUNKS[kind] * ranks,
        seed=seed,
    )


def nbytes_of(config: TrainConfig, ranks: int, way: str) -> int:
    """Return a rank's bytes sent, by formula: float32 keys and values, and in backward two float64 for a gradient."""
    elements = 2 * config.context // ranks * config.width
    return elements * ((ranks - 1) * 4 + (ranks * 16 if way == BACKWARD else 0))


def train_watched(
    world: ProcessGroup, config: TrainConfig, layout: Layout, options: RunOptions, passes: tuple | None = None
) -> RankResult:
    """Run ``train_rank``, and log a ``Visit`` for each rank's keys. passes: (forward, backward) to use instead."""
    forward, backward = passes or PASSES[layout.cp_kind]
    watched = {layout.cp_kind: (_watched(forward, FORWARD), _watched(backward, BACKWARD))}
    with patch.dict(PASSES, watched):
        return train_rank(world, config, layout, options)


def _watched(go_round: Callable, way: str) -> Callable:
    def watched(keys_values, group: ProcessGroup, visit: Callable):
        def watched_visit(owner: int, keys_values):
            done: set[tuple[int, int]] = set()

            def pairs(mask: TileMask, *tiles):
                for i, queries, j, keys in right_pairs(mask, *tiles):
                    done.add((i, j))
                    yield i, queries, j, keys

            right_pairs = TileMask.pairs
            with patch.object(TileMask, "pairs", pairs):
                gradients = visit(owner, keys_values)
            added = np.empty(0) if gradients is None else gradients.rounded(np.float32)
            trace.record(Visit(way, owner, zlib.crc32(keys_values.tobytes()), sorted(done), added))
            return gradients

        before = _bytes_sent(group)
        gradients = go_round(keys_values, group, watched_visit)
        trace.record(Sent(way, _bytes_sent(group) - before))
        return gradients

    return watched


def _bytes_sent(group: ProcessGroup) -> int:
    return group.traffic.as_dict()["bytes_sent"]


def passes_of(run: Run) -> dict[str, Pass]:
    """Return the passes that the ranks recorded, by way.

    Raises:
        RuntimeError: if a rank sent more or less than the formula says.
    """
    return {way: _pass_of(run, way) for way in (FORWARD, BACKWARD)}


def _pass_of(run: Run, way: str) -> Pass:
    by_rank = [[entry for entry in rank.log if isinstance(entry, Visit) and entry.way == way] for rank in run.ranks]
    sent = {entry.nbytes for rank in run.ranks for entry in rank.log if isinstance(entry, Sent) and entry.way == way}
    expected = nbytes_of(run.config, len(by_rank), way)
    if sent != {expected}:
        raise RuntimeError(f"{run.layout} sends {sent} bytes in {way}, not {expected}: this is a bug in minidist")
    slots = (max(CHUNKS.values()) // CHUNKS[run.layout.cp_kind]) ** 2  # a pair of longer chunks has more scores
    return Pass(list(zip(*by_rank, strict=True)), slots, expected)


BUG = "a GPU computes with its own keys and values instead of the received ones"


def stale_forward(keys_values, group, visit):
    """Run ``ring_forward`` with the rank's own keys and values; the right ones arrive, but are not used."""
    ring_forward(keys_values, group, lambda owner, _: visit(owner, keys_values))


def stale_backward(keys_values, group, visit):
    """Run ``ring_backward`` with the rank's own keys and values; the right ones arrive, but are not used."""
    return ring_backward(keys_values, group, lambda owner, _: visit(owner, keys_values))


train_stale = partial(train_watched, passes=(stale_forward, stale_backward))
train_stale_backward = partial(train_watched, passes=(ring_forward, stale_backward))
