"""Training that records weights in every step, the masters and the stored numbers; and the same without masters."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from unittest.mock import patch

import numpy as np

from minidist.comm.group import ProcessGroup
from minidist.nn.gpt import GPT
from minidist.nn.precision.formats import Format
from minidist.nn.precision.policy import POLICIES
from minidist.parallel.zero import ZeroStage1
from minidist.show.demos.shared.runs import check_width, heads_of
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RankResult, Run, RunOptions
from minidist.train.trainer import train_rank

STEPS = 24


def config_of(ranks: int, size: int, seed: int) -> TrainConfig:
    check_width(size, 4, 256)
    return TrainConfig(
        layers=1,
        heads=heads_of(size),
        width=size,
        context=16,
        global_batch=ranks,
        micro_batch=1,
        steps=STEPS,
        lr=1e-3,
        warmup=0,
        precision="bf16",
        seed=seed,
    )


@dataclass(slots=True)
class Synced:
    """Entry of a rank's log for each step: the gains of the first norm."""

    masters: np.ndarray | None  # (width,) float32 from the optimizer; None on other ranks than rank 0
    stored: np.ndarray  # (width,) codes that all ranks have from then on


def train_recording(
    world: ProcessGroup,
    config: TrainConfig,
    layout: Layout,
    options: RunOptions,
    after_sync: Callable[[ZeroStage1], None] | None = None,
) -> RankResult:
    """Run ``train_rank``, and log a ``Synced`` for each step. after_sync: bug to run after each ``sync_params``."""
    right, entries = ZeroStage1.sync_params, []

    def sync_params(self: ZeroStage1) -> None:
        masters = self.blocks[0].master[: config.width].copy() if world.rank == 0 else None
        right(self)
        entries.append(Synced(masters, self.blocks[0].full[: config.width].copy()))
        if after_sync is not None:
            after_sync(self)

    with patch.object(ZeroStage1, "sync_params", sync_params):
        result = train_rank(world, config, layout, options)
    return replace(result, log=[*result.log, *entries])


@dataclass(frozen=True)
class Weight:
    """Values of one weight over a run; step 0 is before the first step.

    Args:
        format: format of the stored weight.
        masters: (steps + 1,) float32 from the optimizer.
        stored: (steps + 1,) codes that are stored for the masters.
    """

    format: Format
    masters: np.ndarray
    stored: np.ndarray

    def bits(self, step: int) -> int:
        """Return the bits of the master as an integer."""
        return int(self.masters[step : step + 1].view(np.uint32)[0])

    @property
    def dropped_bits(self) -> int:
        return 23 - self.format.mantissa

    def dropped(self, step: int) -> float:
        """Return the part of the master that is lost if its low bits are cut off, in steps of the format, 0 to 1."""
        return (self.bits(step) & ((1 << self.dropped_bits) - 1)) / (1 << self.dropped_bits)

    def number(self, step: int) -> float:
        """Return the stored number."""
        return float(self.format.decode(self.stored[step : step + 1])[0])

    def distance(self, step: int, up: bool) -> float:
        """Return the distance from the stored number to its 16-bit neighbour above or below."""
        code = int(self.stored[step])  # codes of positive numbers are in the order of the numbers
        codes = np.array([code, code + 1 if up else code - 1], self.stored.dtype)
        here, there = self.format.decode(codes)
        return abs(float(there - here))

    def moves(self, step: int) -> int:
        """Return how often the stored number has changed up to a step."""
        return int((self.stored[1 : step + 1] != self.stored[:step]).sum())


def most_changed(run: Run) -> int:
    """Return the index of the gain whose stored number changes most often; of several, the first."""
    stored = np.stack([entry.stored for entry in _synced(run, 0)])
    return int((stored[1:] != stored[:-1]).sum(axis=0).argmax())


def weight_of(run: Run, index: int) -> Weight:
    """Return one gain over a run.

    Raises:
        RuntimeError: if the ranks have stored different numbers.
    """
    format = POLICIES[run.config.precision].compute
    assert format is not None
    entries = _synced(run, 0)
    for rank in range(1, len(run.ranks)):
        if any((a.stored != b.stored).any() for a, b in zip(entries, _synced(run, rank), strict=True)):
            raise RuntimeError(f"rank {rank} has different weights than rank 0: this is a bug in minidist")
    before = GPT(run.config.model, seed=run.config.seed).blocks[0].norm1.gain.data[index]
    masters = np.array([before, *(entry.masters[index] for entry in entries if entry.masters is not None)], np.float32)
    first = format.encode(masters[:1])[0]
    return Weight(format, masters, np.array([first, *(entry.stored[index] for entry in entries)], format.dtype))


def _synced(run: Run, rank: int) -> list[Synced]:
    return [entry for entry in run.ranks[rank].log if isinstance(entry, Synced)]


BUG = "no master weights: each update is added to the 16-bit weights"


def forget_masters(optimizer: ZeroStage1) -> None:
    """Round the masters to the stored 16 bits, so that the rest is lost."""
    for unit in optimizer.units:
        assert unit.format is not None
        unit.master[...] = unit.format.decode(unit.shard)


train_without_masters = partial(train_recording, after_sync=forget_masters)
