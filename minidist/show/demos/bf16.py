"""One weight in a real training run, bit by bit: its master in float32, and the 16 bits that all ranks compute with.

The weight is a gain of the first block's norm. They begin at 1, so the distance to the next number of 16 bits is known.
ZeRO's stage 1 trains it on rank 0, and sends it to the others in 16 bits.
"""

from dataclasses import dataclass, replace
from functools import partial
from unittest.mock import patch

import numpy as np

from minidist.comm.group import ProcessGroup
from minidist.nn.gpt import GPT
from minidist.nn.precision.policy import POLICIES
from minidist.parallel.zero import ZeroStage1
from minidist.show.demos import bitboard
from minidist.show.demos.bitboard import Weight
from minidist.show.demos.runs import told, warm_ranks
from minidist.show.demos.widths import check_width, heads_of
from minidist.show.player.animation import Animation
from minidist.show.player.scene import Frame, Scene
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RankResult, Run, RunOptions
from minidist.train.trainer import train_rank

STEPS = 24
BUG = "no master weights: each update is added to the 16 bits"


@dataclass(slots=True)
class Published:
    """An entry of a rank's log, for each step: the gains of the first norm."""

    masters: np.ndarray | None  # (width,) float32 as the optimizer left them, on the rank that trains them
    stored: np.ndarray  # (width,) codes, as all ranks have them from then on


def animation(ranks: int, size: int, seed: int) -> Animation:
    """So many ranks train a model of width ``size`` in bf16, in fp16, and in bf16 without master weights."""
    check_width(size, 4, 256)
    config = TrainConfig(
        layers=1, heads=heads_of(size), width=size, context=16, global_batch=ranks, micro_batch=1, steps=STEPS,
        lr=1e-3, warmup=0, precision="bf16", seed=seed,
    )  # fmt: skip
    fp16 = replace(config, precision="fp16", loss_scale=1024.0)
    layout = Layout(dp=ranks, zero=1)
    with warm_ranks() as warm:
        right, finer = (warm.train(one, layout, train_noted, trace=True) for one in (config, fp16))
        proofs = warm.prove(config, right), warm.prove(fp16, finer)
        bad = warm.train(config, layout, train_without_masters, trace=True)
        place = warm.parting(config, bad, train_without_masters)
    index = _liveliest(right)
    weight, fine, lost = (_weight(run, index) for run in (right, finer, bad))
    ends = f"This weight ends at {lost.number(STEPS):g} instead of {weight.number(STEPS):g}."
    scenes = _scene("bf16", weight, index, ranks, proofs[0]), _scene("fp16", fine, index, ranks, proofs[1])
    broken = _scene("broken", lost, index, ranks, f"{ends} {told(place)}", weight)
    title = "Mixed precision: a master weight, and the 16 bits that are stored and sent"
    return Animation("bf16", title, scenes, broken, BUG, [rank.log for rank in right.ranks])


def train_noted(
    world: ProcessGroup, config: TrainConfig, layout: Layout, options: RunOptions, keeps_masters: bool = True
) -> RankResult:
    """``train_rank``, with a ``Published`` in the log for each step."""
    right, album = ZeroStage1.sync_params, []

    def sync_params(self: ZeroStage1) -> None:
        masters = self.blocks[0].master[: config.width].copy() if world.rank == 0 else None
        right(self)
        album.append(Published(masters, self.blocks[0].full[: config.width].copy()))
        if not keeps_masters:
            for unit in self.units:
                unit.master[...] = unit.format.decode(unit.shard)

    with patch.object(ZeroStage1, "sync_params", sync_params):
        result = train_rank(world, config, layout, options)
    return replace(result, log=[*result.log, *album])


train_without_masters = partial(train_noted, keeps_masters=False)


def _published(run: Run, rank: int) -> list[Published]:
    return [entry for entry in run.ranks[rank].log if isinstance(entry, Published)]


def _liveliest(run: Run) -> int:
    """The gain whose stored number moves most often, the first of them."""
    stored = np.stack([entry.stored for entry in _published(run, 0)])
    return int((stored[1:] != stored[:-1]).sum(axis=0).argmax())


def _weight(run: Run, index: int) -> Weight:
    format = POLICIES[run.config.precision].compute
    album = _published(run, 0)
    for rank in range(1, len(run.ranks)):
        if any((a.stored != b.stored).any() for a, b in zip(album, _published(run, rank), strict=True)):
            raise RuntimeError(f"rank {rank} has other weights than rank 0: this is a fault of minidist")
    before = GPT(run.config.model, seed=run.config.seed).blocks[0].norm1.gain.data[index]
    masters = np.array([before, *(entry.masters[index] for entry in album)], np.float32)
    first = format.encode(masters[:1])[0]
    return Weight(format, masters, np.array([first, *(entry.stored[index] for entry in album)], format.dtype))


def _scene(name: str, weight: Weight, index: int, ranks: int, verdict: str, right: Weight | None = None) -> Scene:
    seen = [weight.masters, *([right.masters] if right else []), [weight.number(step) for step in range(STEPS + 1)]]
    low, high = min(map(min, seen)), max(map(max, seen))
    low, high = float(low) - 0.15 * float(high - low), float(high) + 0.15 * float(high - low)
    frames = [
        Frame(
            bitboard.draw(weight, step, low, high, right),
            _note(weight, step, right),
            _facts(weight, step, right is None),
        )
        for step in range(STEPS + 1)
    ]
    title = f"{weight.format.name}: gain {index} of block 0's first norm, trained on {ranks} ranks (dp={ranks},zero=1)"
    key = bitboard.BROKEN_KEY if right else bitboard.KEY
    stills = (1, STEPS // 2, STEPS)
    return Scene(name, title, tuple(frames), bitboard.HEIGHT, key, verdict, 1 if right else None, stills)


def _facts(weight: Weight, step: int, has_master: bool) -> dict[str, str]:
    before = max(0, step - 1)
    begins = weight.masters[before] if has_master else weight.number(before)
    update = float(weight.masters[step]) - float(begins)
    format = weight.format
    return {
        "steps done": f"{step} of {STEPS}",
        "update": f"{update:+.6f}",
        f"from the stored number to the next {format.name} that way": f"{weight.distance(before, update > 0):.6f}",
        f"formula 2^-{format.mantissa + 1} below 1, 2^-{format.mantissa} above": _formula(weight, before, update > 0),
        "moves of the stored number": str(weight.moves(step)),
        "bytes of it in a message": f"{format.bits // 8}, in float32 4",
    }


def _formula(weight: Weight, step: int, up: bool) -> str:
    """The distance from a number of (1/2, 2) to the next one above or below."""
    number = weight.number(step)
    return f"{2.0 ** -(weight.format.mantissa + (number < 1 or (number == 1 and not up))):.6f}"


def _note(weight: Weight, step: int, right: Weight | None) -> str:
    if not step:
        return "Before the first step the weight is 1, in float32 and in 16 bits."
    moved = weight.stored[step] != weight.stored[step - 1]
    number = f"{weight.number(step):g}"
    step -= 1  # as everywhere steps count from 0
    if right is None:
        if moved:
            return f"Step {step}: the master has come far enough; the nearest {weight.format.name} is now {number}."
        return f"Step {step}: the master moves, but the nearest {weight.format.name} is still {number}."
    if moved:
        return f"Step {step}: this update is large enough, and the weight jumps to {number}."
    return f"Step {step}: the update is rounded away, and nothing remembers it: the weight stays {number}."
