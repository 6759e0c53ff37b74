"""Documents in packs, the tiles of their scores, and training that records each step's targets and losses.

documents.jsonl has sentences of the course, whose targets all count, and sums, in which only the answer counts. The
bug: each rank divides its loss by its own number of targets, and the ranks average the results. torchtitan (issue 2206)
and transformers (gradient accumulation, until October 2024) had it. It causes no error and no odd curve.
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
DRAWN = 24  # documents that are packed and drawn
PER_SIDE = 16  # tiles along each side of the scores
STEPS, SEEDS = 200, 3
PROVED = 20  # steps of the run that is compared with one process


def config_of(ranks: int, size: int, seed: int) -> TrainConfig:
    """Return a config with one document per rank and step, and SGD: AdamW rescales gradients and hides their size."""
    return TrainConfig(
        layers=1, heads=4, width=16, context=size, global_batch=ranks, micro_batch=1, steps=STEPS, optimizer="sgd",
        lr=0.5, warmup=5, weight_decay=0.0, seed=seed, text=str(TEXT), packing="padding",
    )  # fmt: skip


@dataclass(frozen=True)
class Packed:
    """The first DRAWN documents, packed as ``kind``, one of KINDS, into samples of ``context`` places."""

    kind: str
    context: int

    @cached_property
    def samples(self) -> Samples:
        return Samples(Packing(read_documents(TEXT).part(0, DRAWN), self.context, self.kind))

    @property
    def pieces(self) -> list[list[Piece]]:
        """Pieces of each sample, in order."""
        return [self.samples.packing.sample(number) for number in range(len(self.samples))]

    @property
    def padding(self) -> float:
        """Share of the places that hold no token."""
        return 1 - self.samples.packing.places / (len(self.samples) * self.context)

    @property
    def cut(self) -> int:
        """Number of documents that lie in more than one sample."""
        where = [{piece.document for piece in pieces} for pieces in self.pieces]
        return sum(sum(number in those for those in where) > 1 for number in range(DRAWN))

    def variety(self, number: int) -> tuple[int, int]:
        """Return the number of kinds in a sample (2 if it has both sentences and sums), and its number of pieces."""
        pieces = self.pieces[number]
        prompts = self.samples.packing.documents.bounds[[piece.document for piece in pieces], 1]
        return len({*(prompts > 0).tolist()}), len(pieces)

    def text(self, piece: Piece) -> str:
        """Return the text of a piece: its tokens, and the last target, which follows them."""
        first = self.samples.packing.documents.span(piece.document)[0] + piece.first
        return bytes(self.samples.packing.documents.tokens[first : first + piece.places + 1]).decode()

    @property
    def skipped(self) -> float:
        """Share of the tiles in the causal triangles of all samples that attention skips."""
        grids = [Grid.of(self.samples, number) for number in range(len(self.samples))]
        return 1 - sum(len(grid.computed) for grid in grids) / sum(grid.causal for grid in grids)


@dataclass(frozen=True)
class Grid:
    """Tiles of one sample's scores.

    Attributes:
        first: place of the first token that each token sees, integers (1, T): see ``nn.documents.Documents``.
        parts: the tokens of each tile along a side.
        computed: tiles that attention computes, in its order, as (tile of queries, tile of keys).
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
        """Number of tiles in the causal triangle, with its diagonal."""
        return len(self.parts) * (len(self.parts) + 1) // 2

    def seen(self, i: int, j: int) -> np.ndarray:
        """Return the query's place for each pair of a query in tile ``i`` and a key in tile ``j`` that it sees."""
        queries = self.parts[i]
        return np.nonzero(~hidden_keys(self.first, queries, self.parts[j])[0])[1] + queries.start


def check_alone(samples: Samples, number: int, seed: int) -> str:
    """Check that tiled attention lets no other document of a sample see the first; return a sentence that says so.

    Raises:
        RuntimeError: if changing the first token changes another document's output, or not all of its own's.
    """
    *_, mask = samples.batch([number])
    length = samples.packing.context
    qkv = np.random.default_rng(seed).standard_normal((1, 1, length, 24), np.float32)
    end = int(np.argmax(mask.first[0] > 0))  # end of the first document
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
    """Run ``train_rank`` and record in ``arrays`` each step's tokens and targets (steps, T), and losses (steps,).

    A loss is the sum over the targets that count. The run also measures the held-out loss.
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
    """One step's tokens, targets and losses on every rank.

    Attributes:
        tokens, targets: (ranks, T)
        losses: sums over the targets that count, (ranks,)
    """

    tokens: np.ndarray
    targets: np.ndarray
    losses: np.ndarray

    @classmethod
    def most_uneven(cls, run: Run) -> "Counted":
        """Return the step with the largest ratio of ranks' counts; on a tie, the one whose two means differ most."""
        names = ("tokens", "targets", "losses")
        tokens, targets, losses = (np.stack([rank.arrays[name] for rank in run.ranks], 1) for name in names)
        steps = [cls(*step) for step in zip(tokens, targets, losses, strict=True)]
        return max(steps, key=lambda one: (one.counts.max() / one.counts.min(), abs(one.loss(True) - one.loss(False))))

    @property
    def counts(self) -> np.ndarray:
        """Number of each rank's targets that count, (ranks,)."""
        return (self.targets != IGNORED).sum(-1)

    def weights(self, local: bool) -> np.ndarray:
        """Return each rank's weight of one target in the loss, (ranks,). ``local``: each divides by its own count."""
        return 1 / (len(self.counts) * self.counts) if local else np.full(len(self.counts), 1 / self.counts.sum())

    def loss(self, local: bool) -> float:
        """Return the mean loss over all targets, or with ``local`` the mean of the ranks' means."""
        return float((self.losses * self.weights(local)).sum())


@dataclass(frozen=True)
class Curves:
    """Losses of runs with several seeds: of each step (seeds, steps), and on held-out text (seeds,)."""

    losses: np.ndarray
    held_out: np.ndarray

    @classmethod
    def of(cls, runs: list[Run]) -> "Curves":
        return cls(np.array([run.losses for run in runs]), np.array([run.ranks[0].validation_loss for run in runs]))


BUG = "each GPU divides by its own count of targets"


def train_locally(world, config, layout, options):
    """Run ``train_counting`` with the bug: each rank divides by its own count of targets."""
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
