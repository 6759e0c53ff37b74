"""Recomputation: activations over a step that keeps everything, forgets attention's core, or forgets whole blocks."""

from collections.abc import Sequence
from dataclasses import replace
from unittest.mock import patch

from minidist.comm.group import ProcessGroup
from minidist.nn.gpt import GPT
from minidist.nn.memory.recompute import MODES, Region
from minidist.nn.random import DropoutRNG
from minidist.show.demos.runs import told, warm_ranks
from minidist.show.demos.stacks import Mark, Stacks, bytes_told
from minidist.show.demos.watched import Held, last_steps, train_watched
from minidist.show.demos.widths import check_width, heads_of
from minidist.show.player.animation import Animation
from minidist.show.player.scene import Scene
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RankResult, Run, RunOptions

AGAIN = "#F0E442"  # of Okabe and Ito: recomputing
STATE = 2 + 12 + 8  # bytes a parameter in bf16: itself, its master and two moments, room for its gradients' sum
NOTES = {
    "zero grad": "Parameters, the optimizer's state and gradients are the same in every scene.",
    "optimizer": "No activations are left; every rank updates everything.",
}
OF_MODE = {
    "none": {
        "forward": "Forward: every operation keeps what backward will need.",
        "backward": "Backward uses up what was kept, the last block first.",
    },
    "selective": {
        "forward": "Forward: of attention's core queries, keys and values alone are kept, all else as before.",
        "backward": "Backward computes each block's attention weights again, when it comes to them.",
    },
    "full": {
        "forward": "Forward: a block keeps its input alone.",
        "backward": "Backward runs each block's forward again before it goes through it.",
    },
}
BUG = "in the last step the recomputed forward draws other dropout"


def animation(ranks: int, size: int, seed: int) -> Animation:
    """A step in each mode, on so many ranks, of a model of width ``size``."""
    check_width(size, 4, 256)
    config = TrainConfig(
        layers=4, heads=heads_of(size), width=size, context=64, global_batch=4 * ranks, micro_batch=4, steps=2,
        dropout=0.1, precision="bf16", seed=seed,
    )  # fmt: skip
    layouts = [Layout(dp=ranks, recompute=mode) for mode in MODES]
    with warm_ranks() as warm:
        runs = [warm.train(config, layout, train_watched, trace=True) for layout in layouts]
        proofs = [warm.prove(config, run) for run in runs]
        bad = warm.train(config, layouts[-1], train_redrawn, trace=True)
        verdict = told(warm.parting(config, bad, train_redrawn))
    most = int(1.03 * max(last_steps(rank.log).highest() for run in runs for rank in run.ranks))
    scenes = tuple(_scene(run, most, proof) for run, proof in zip(runs, proofs, strict=True))
    broken = _scene(bad, most, verdict, bug=True)
    title = "Recomputation: less memory for more work"
    return Animation("recompute", title, scenes, broken, BUG, [rank.log for rank in runs[0].ranks])


def train_redrawn(world: ProcessGroup, config: TrainConfig, layout: Layout, options: RunOptions) -> RankResult:
    """In the last step, whatever is recomputed has the dropout of the step after it."""
    right = Region.run_again

    def other(value):
        redrawn = isinstance(value, DropoutRNG) and value.step == config.steps - 1
        return replace(value, step=value.step + 1) if redrawn else value

    def run_again(self) -> None:
        self.inputs = [other(value) for value in self.inputs]
        right(self)

    with patch.object(Region, "run_again", run_again):
        return train_watched(world, config, layout, options)


def bytes_of_block(config: TrainConfig, mode: str) -> int:
    """What one block keeps in 16 bits from forward to backward, by the formulas of nn/memory/recompute.py."""
    s, b, h, a = config.context, config.micro_batch, config.width, config.heads
    statistics = s * b * 8  # of the norms
    return {
        "none": s * b * (34 * h + 3 * a * s) + statistics + 4 * a * s * b,
        "selective": s * b * 34 * h + statistics,
        "full": 2 * s * b * h,
    }[mode]


def recomputed_share(config: TrainConfig, mode: str) -> float:
    """The FLOPs that a mode adds, over those of a step's forward and backward, by formula."""
    tokens, h = config.micro_batch * config.context, config.width
    core = 4 * tokens * config.context * h
    block = 24 * tokens * h * h + core
    head = 2 * tokens * h * config.model.vocab
    return {"none": 0, "selective": core, "full": block}[mode] * config.layers / (3 * (config.layers * block + head))


def _scene(run: Run, most: int, verdict: str, bug: bool = False) -> Scene:
    config, mode = run.config, run.layout.recompute
    held = [last_steps(rank.log) for rank in run.ranks]
    flops = run.ranks[0].flops
    share = flops.get("recompute", 0) / (flops["forward"] + flops["backward"])
    words = {"none": "s b (34 h + 3 a s + 4 a + 8)", "selective": "s b (34 h + 8)", "full": "2 s b h"}[mode]
    blocks = config.layers * bytes_of_block(config, mode)
    again = [start for start, _ in held[0].places("recompute")]

    def facts(rank: Held, place: float) -> dict[str, str]:
        return {
            "activations of rank 0 now": bytes_told(rank.at(place)["activations"]),
            "most so far": bytes_told(rank.highest("activations", end=place)),
            f"kept by {config.layers} blocks, formula {words} each": bytes_told(blocks),
            "recomputed so far": f"{sum(start < place for start in again)} of {len(again)} times",
            "FLOPs recomputed, of forward and backward": f"{share:.1%}",
            "by formula": f"{recomputed_share(config, mode):.1%}",
        }

    colour = "wrong" if bug else AGAIN
    text = "other dropout than in forward" if bug else "recomputed"
    marks: Sequence[Sequence[Mark]] = [[Mark(*place, colour, text) for place in r.places("recompute")] for r in held]
    key = {"kept from forward, by formula": "ink", text: colour} if again else {"kept from forward, by formula": "ink"}
    title = f"Recomputation: {mode}, {len(held)} ranks, a model of width {config.width} in bf16"
    state = STATE * sum(parameter.size for parameter in GPT(config.model).parameters())
    shown = Stacks(held, most, state + blocks, NOTES | OF_MODE[mode], facts, marks, key, lane=True)
    return shown.scene("broken" if bug else mode, title, verdict)
