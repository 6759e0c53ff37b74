"""Documents in packs, their tiles of scores, and training whose ranks record what counts.

documents.jsonl has sentences of the course, whose targets all count, and sums, of which the answer counts. The bug:
each rank divides by its own number of targets, and the ranks average. torchtitan (issue 2206) and transformers
(gradient accumulation, until October 2024) had it. No error, no odd curve.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from unittest.mock import patch

import numpy as np

from minidist import trace
from minidist.comm.group import ProcessGroup
from minidist.data.documents import read_documents
from minidist.data.packing import Packing, Piece
from minidist.data.samples import Samples
from minidist.nn.attention.tiled import TileMask, tiled_attention, tiles
from minidist.nn.documents import hidden_keys
from minidist.nn.loss import IGNORED
from minidist.nn.tensor import Tensor
from minidist.train import parallelize
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.parallelize import ParallelModel
from minidist.train.result import RankResult, Run, RunOptions
from minidist.train.trainer import train_rank

TEXT = Path(__file__).with_name("documents.jsonl")
KINDS = ("padding", "cut", "first-fit", "best-fit")
DRAWN = 24  # documents that are packed on the stage
PER_SIDE = 16  # tiles
STEPS, SEEDS = 200, 3
PROVED = 20  # steps of the run that is compared with one process


def config_of(ranks: int, size: int, seed: int) -> TrainConfig:
    """A document for each rank in each step; SGD, since AdamW scales every gradient anew and hides how large it is."""
    return TrainConfig(
        layers=1, heads=4, width=16, context=size, global_batch=ranks, micro_batch=1, steps=STEPS, optimizer="sgd",
        lr=0.5, warmup=5, weight_decay=0.0, seed=seed, text=str(TEXT), packing="padding",
    )  # fmt: skip


@dataclass(frozen=True)
class Packed:
    """The first documents, packed in one of KINDS into samples of ``context`` places."""

    kind: str
    context: int

    @cached_property
    def samples(self) -> Samples:
        return Samples(Packing(read_documents(TEXT).part(0, DRAWN), self.context, self.kind))

    @property
    def pieces(self) -> list[list[Piece]]:
        """Those of each sample, in order."""
        return [self.samples.packing.sample(number) for number in range(len(self.samples))]

    @property
    def padding(self) -> float:
        """The share of the places that have no token."""
        return 1 - self.samples.packing.places / (len(self.samples) * self.context)

    @property
    def cut(self) -> int:
        """How many documents lie in more than one sample."""
        where = [{piece.document for piece in pieces} for pieces in self.pieces]
        return sum(sum(number in those for those in where) > 1 for number in range(DRAWN))

    def variety(self, number: int) -> tuple[int, int]:
        """Whether a sample has sentences and sums, and how many documents it has."""
        pieces = self.pieces[number]
        prompts = self.samples.packing.documents.bounds[[piece.document for piece in pieces], 1]
        return len({*(prompts > 0).tolist()}), len(pieces)

    def text(self, piece: Piece) -> str:
        """The text of a piece: its tokens, and the last target behind them."""
        first = self.samples.packing.documents.span(piece.document)[0] + piece.first
        return bytes(self.samples.packing.documents.tokens[first : first + piece.places + 1]).decode()

    @property
    def skipped(self) -> float:
        """The share of the causal triangles' tiles that are skipped, in all samples."""
        grids = [Grid.of(self.samples, number) for number in range(len(self.samples))]
        return 1 - sum(len(grid.computed) for grid in grids) / sum(grid.causal for grid in grids)


@dataclass(frozen=True)
class Grid:
    """The tiles of one sample's scores.

    Attributes:
        first: (1, T), as of ``nn.documents.Documents``.
        parts: the tokens of each tile's side.
        computed: (tile of queries, tile of keys) of those that attention computes, in its order.
    """

    first: np.ndarray
    parts: list[slice]
    computed: list[tuple[int, int]]

    @classmethod
    def of(cls, samples: Samples, number: int) -> "Grid":
        *_, mask = samples.batch([number])
        parts = tiles(samples.packing.context, samples.packing.context // PER_SIDE)
        return cls(mask.first, parts, [(i, j) for i, _, j, _ in TileMask(parts, mask).pairs()])

    @property
    def causal(self) -> int:
        """Tiles in the triangle."""
        return len(self.parts) * (len(self.parts) + 1) // 2

    def seen(self, i: int, j: int) -> np.ndarray:
        """The queries that see a key, once for each such key: their places."""
        queries = self.parts[i]
        return np.nonzero(~hidden_keys(self.first, queries, self.parts[j])[0])[1] + queries.start


def check_alone(samples: Samples, number: int, seed: int) -> str:
    """A sentence that says that tiled attention lets no document of a sample see the first one.

    Raises:
        RuntimeError: if it does.
    """
    *_, mask = samples.batch([number])
    length = samples.packing.context
    qkv = np.random.default_rng(seed).standard_normal((1, 1, length, 24), np.float32)
    end = int(np.argmax(mask.first[0] > 0))  # of the first document
    outputs = []
    for _ in range(2):
        with trace.span("attention of a pack", "compute"):
            outputs.append(tiled_attention(Tensor(qkv), tile=length // PER_SIDE, documents=mask).data)
        qkv = np.concatenate((-qkv[:, :, :1], qkv[:, :, 1:]), 2)
    moved = (outputs[0] != outputs[1]).any(-1)[0, 0]  # (T,)
    if not moved[:end].all() or moved[end:].any():
        raise RuntimeError("a document sees the one before it: this is a bug in minidist")
    return "With another first token, the outputs of the first document change, and no bit of any other."


def train_counting(world: ProcessGroup, config: TrainConfig, layout: Layout, options: RunOptions) -> RankResult:
    """``train_rank`` that brings back, as ``arrays``, of each step tokens, targets (steps, T), and losses (steps,).

    A loss is the sum over the targets that count. The held-out loss is measured too.
    """
    forward_backward, seen = parallelize.forward_backward, []

    def record(model, micro_batch, scale):
        loss = forward_backward(model, micro_batch, scale)
        total = float(loss) * micro_batch.documents.places
        more = 0, config.context - micro_batch.tokens.shape[1]  # a micro-batch ends with its document
        tokens, targets = micro_batch.tokens[0], micro_batch.targets[0]
        seen.append((np.pad(tokens, more), np.pad(targets, more, constant_values=IGNORED), total))
        return loss

    with patch.object(parallelize, "forward_backward", record):
        result = train_rank(world, config, layout, replace(options, validate=True))
    result.arrays |= dict(zip(("tokens", "targets", "losses"), map(np.stack, zip(*seen, strict=True)), strict=True))
    return result


@dataclass(frozen=True)
class Counted:
    """One step: what each rank has.

    Attributes:
        tokens, targets: (ranks, T).
        losses: (ranks,), summed over the targets that count.
    """

    tokens: np.ndarray
    targets: np.ndarray
    losses: np.ndarray

    @classmethod
    def most_uneven(cls, run: Run) -> "Counted":
        """The step whose counts are furthest apart; of several, the one whose two means are."""
        names = ("tokens", "targets", "losses")
        tokens, targets, losses = (np.stack([rank.arrays[name] for rank in run.ranks], 1) for name in names)
        steps = [cls(*step) for step in zip(tokens, targets, losses, strict=True)]
        return max(steps, key=lambda one: (one.counts.max() / one.counts.min(), abs(one.loss(True) - one.loss(False))))

    @property
    def counts(self) -> np.ndarray:
        """Each rank's targets that count."""
        return (self.targets != IGNORED).sum(-1)

    def weights(self, local: bool) -> np.ndarray:
        """What one target of each rank weighs in the loss."""
        return 1 / (len(self.counts) * self.counts) if local else np.full(len(self.counts), 1 / self.counts.sum())

    def loss(self, local: bool) -> float:
        """The mean over all targets, or the mean of the ranks' means."""
        return float((self.losses * self.weights(local)).sum())


@dataclass(frozen=True)
class Curves:
    """The losses of runs with several seeds: (seeds, steps), and on held-out text (seeds,)."""

    losses: np.ndarray
    held_out: np.ndarray

    @classmethod
    def of(cls, runs: list[Run]) -> "Curves":
        return cls(np.array([run.losses for run in runs]), np.array([run.ranks[0].validation_loss for run in runs]))


BUG = "each GPU divides by its own count of targets"


def train_locally(world, config, layout, options):
    """``train_counting`` with this bug."""
    forward_backward = ParallelModel.forward_backward

    def count_no_others(self: ParallelModel, batch) -> None:
        self.divisor = layout.dp

    def divide_by_own(self: ParallelModel, batch, scale: float) -> float:
        own = sum(int((one.targets != IGNORED).sum()) for one in batch) / self.targets
        return forward_backward(self, batch, scale / own) / own

    with (
        patch.object(ParallelModel, "count_targets", count_no_others),
        patch.object(ParallelModel, "forward_backward", divide_by_own),
    ):
        return train_counting(world, config, layout, options)
