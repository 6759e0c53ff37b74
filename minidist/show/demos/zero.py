"""ZeRO: what each rank holds over a step in plain data parallelism and in the three stages."""

from collections.abc import Sequence
from itertools import count
from unittest.mock import patch

from minidist.comm.group import ProcessGroup
from minidist.nn.gpt import GPT
from minidist.nn.layers import Module
from minidist.parallel.zero import ZeroStage1
from minidist.show.demos.runs import told, warm_ranks
from minidist.show.demos.stacks import Mark, Stacks
from minidist.show.demos.watched import Held, last_steps, train_watched
from minidist.show.demos.widths import check_width, heads_of
from minidist.show.player.animation import Animation
from minidist.show.player.scene import Scene
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RankResult, RunOptions

STAGES = ("replicated", "stage 1", "stage 2", "stage 3")
ALL = {"parameters": ("4", lambda n: 4), "optimizer": ("8", lambda n: 8), "gradients": ("8 + 4", lambda n: 12)}
SHARDS = {
    "parameters": ("4/N", lambda n: 4 / n),
    "optimizer": ("8/N", lambda n: 8 / n),
    "gradients": ("12/N", lambda n: 12 / n),
}
STAGE_1 = SHARDS | {"parameters": ALL["parameters"]}
FORMULAS = (ALL, STAGE_1, STAGE_1, SHARDS)  # bytes a parameter that a rank keeps: in words, and of N ranks
UPDATES_SHARD = "Each rank updates its shard, and the parameters are gathered from all."
NOTES = (
    {
        "zero grad": "Every rank has all parameters and all of the optimizer's state; the old gradients go.",
        "forward": "Forward keeps activations.",
        "backward": "Activations go and gradients come, in float64; every rank gets the sum of all of them.",
        "optimizer": "Gradients are averaged into float32 copies, and every rank updates everything.",
    },
    {
        "zero grad": "Room is made for all gradients; each rank has only its own shard of the optimizer's state.",
        "forward": "Forward keeps activations.",
        "backward": "Gradients are filled in; after backward they are summed, and a rank keeps its shard of the sum.",
        "optimizer": UPDATES_SHARD,
    },
    {
        "zero grad": "Each rank has only its own shard of the optimizer's state and of the gradients.",
        "forward": "Forward keeps activations.",
        "backward": "As soon as a block's gradients are complete they are summed, and a rank keeps its shard.",
        "optimizer": UPDATES_SHARD,
    },
    {
        "zero grad": "Between two steps a rank holds its shard of everything, and nothing else.",
        "forward": "A block's parameters are gathered just before it runs, and given up after it.",
        "backward": "Parameters are gathered once more, and gradients are summed and cut, block by block.",
        "optimizer": "Each rank updates its shard; the next forward will gather what it needs.",
    },
)
BUG = "after one step the last block's new parameters are not gathered: ranks go on with stale ones"


def animation(ranks: int, size: int, seed: int) -> Animation:
    """A step in each stage, on so many ranks, of a model of width ``size``."""
    check_width(size, 4, 256)
    config = TrainConfig(
        layers=6, heads=heads_of(size), width=size, context=16, global_batch=ranks, micro_batch=1, steps=3, seed=seed
    )
    layouts = [Layout(dp=ranks, zero=stage) for stage in range(4)]
    with warm_ranks() as warm:
        runs = [warm.train(config, layout, train_watched, trace=True) for layout in layouts]
        proofs = [warm.prove(config, run) for run in runs]
        stale = warm.train(config, layouts[1], train_stale, trace=True)
        verdict = told(warm.parting(config, stale, train_stale))
    held = [[last_steps(rank.log) for rank in run.ranks] for run in runs]
    bad = [last_steps(rank.log, 2) for rank in stale.ranks]
    most = int(1.03 * max(rank.highest() for stage in held for rank in stage))
    model = GPT(config.model)
    total = _elements(model)
    scenes = [_scene(stage, held[stage], most, total, proofs[stage]) for stage in range(4)]
    block = _elements(model.blocks[-1])
    marks = [[_stale_mark(rank, 4 * (block - block // ranks))] for rank in bad]
    broken = _scene(1, bad, most, total, verdict, marks)
    return Animation(
        "zero", "ZeRO: who holds what, over a step", tuple(scenes), broken, BUG, [r.log for r in runs[0].ranks]
    )


def train_stale(world: ProcessGroup, config: TrainConfig, layout: Layout, options: RunOptions) -> RankResult:
    """After the last step but one the parameters of the last block are not gathered."""
    right, steps = ZeroStage1.sync_params, count()

    def sync_params(self) -> None:
        if next(steps) != config.steps - 2:
            return right(self)
        everything = self.units
        self.units = [unit for unit in everything if unit is not self.blocks[-1]]
        right(self)
        self.units = everything

    with patch.object(ZeroStage1, "sync_params", sync_params):
        return train_watched(world, config, layout, options)


def _elements(module: Module) -> int:
    return sum(parameter.size for parameter in module.parameters())


def _stale_mark(held: Held, nbytes: int) -> Mark:
    """From the gather that leaves a block out to the next one."""
    (start, _), (end, _) = held.places("sync parameters")
    return Mark(start, end, "wrong", "last block stale", nbytes)


def _scene(
    stage: int,
    held: list[Held],
    most: int,
    total: int,
    verdict: str,
    marks: Sequence[Sequence[Mark]] = (),
) -> Scene:
    ranks, formulas = len(held), FORMULAS[stage]
    keeps = {kind: (words, count(ranks)) for kind, (words, count) in formulas.items()}

    def facts(rank: Held, place: float) -> dict[str, str]:
        now = rank.at(place)
        found = {}
        for kind, (words, value) in keeps.items():
            formula = words + (f" = {value:g}" if words != f"{value:g}" else "")
            most_so_far = rank.highest(kind, end=place) / total
            found[kind] = f"{now[kind] / total:.2f}, peak {most_so_far:.2f}, formula {formula}"
        highest = rank.highest("activations", end=place)
        found["activations"] = f"{now['activations'] / total:.2f}, peak {highest / total:.2f}"
        found["all of rank 0"] = (
            f"{sum(now.values()) / total:.2f}, peak {rank.highest(end=place) / total:.2f} B a parameter"
        )
        return found

    name = "broken" if marks else STAGES[stage]
    steps = "steps 1 and 2" if marks else "a step"
    title = f"ZeRO, {STAGES[stage]}: {steps} on {ranks} ranks, {total:,} parameters in float32"
    kept = total * sum(value for _, value in keeps.values())
    key = {"kept, by formula": "ink"} | ({"stale parameters": "wrong"} if marks else {})
    shown = Stacks(held, most, kept, NOTES[stage], facts, marks or [()] * ranks, key)
    return shown.scene(name, title, verdict)
