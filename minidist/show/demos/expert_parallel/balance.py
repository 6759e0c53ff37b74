"""The load of the experts over a training run, without and with a balance loss, on one time axis."""

from dataclasses import dataclass

import numpy as np

from minidist.show.demos.expert_parallel.run import EXPERTS_OF_RANK, TOP_K, layout_of
from minidist.show.demos.shared.runs import WarmRanks
from minidist.show.palette import IDLE, SHARES
from minidist.show.player.scene import Box, Frame, Label, Scene, Shape
from minidist.train.config import TrainConfig

STEPS, STRIDE = 48, 4  # of a run, and how many a frame adds
AUX_LOSS = {"without balance loss": 0.0, "with balance loss": 0.01}  # coefficients
LEFT, LINES, NUMBERS = 5, 8, 55  # left edge and height of a panel of shares, and column of the numbers beside it
LOW, EVEN, HIGH = SHARES  # shares, from none to twice the even one or more
MARKS = {IDLE: " ", LOW: ".", EVEN: "o", HIGH: "#"}
KEY = {"idle": IDLE, "under half of even": LOW, "half to twice": EVEN, "twice even or more": HIGH}


@dataclass(frozen=True)
class Load:
    """The load of the experts in one run.

    Args:
        aux_loss: the coefficient of its balance loss.
        counts: tokens that chose each expert, integers (steps, E).
        losses: of each step.
        fingerprint: of the run, which is that of one process.
    """

    aux_loss: float
    counts: np.ndarray
    losses: list[float]
    fingerprint: str

    def excess(self) -> np.ndarray:
        """How many times its even share each expert had in each step, (steps, E)."""
        return self.counts / self.counts.mean(axis=1, keepdims=True)

    def pace(self) -> np.ndarray:
        """How many times the mean the busiest rank computed, in each step: (steps,)."""
        by_rank = self.counts.reshape(len(self.counts), -1, EXPERTS_OF_RANK).sum(axis=2)  # (steps, ranks)
        return by_rank.max(axis=1) / by_rank.mean(axis=1)


def config_of(ranks: int, seed: int, aux_loss: float) -> TrainConfig:
    """One layer whose experts a router without a balance loss soon uses unevenly."""
    return TrainConfig(
        layers=1, heads=2, width=32, context=32, global_batch=2 * ranks, micro_batch=2, steps=STEPS, lr=1e-3,
        experts=EXPERTS_OF_RANK * ranks, top_k=TOP_K, expert_hidden=32, aux_loss=aux_loss, bias_rate=0.0, seed=seed,
    )  # fmt: skip


def loads_of(warm: WarmRanks, ranks: int, seed: int) -> dict[str, Load]:
    """Both runs on so many ranks, each compared with one process."""
    loads = {}
    for name, aux_loss in AUX_LOSS.items():
        config = config_of(ranks, seed, aux_loss)
        run = warm.train(config, layout_of(ranks), digests=False)
        warm.prove(config, run)
        counts = np.array(run.ranks[0].expert_counts)[:, 0, : config.experts]
        loads[name] = Load(aux_loss, counts, run.losses, run.fingerprint)
    return loads


def of_loads(loads: dict[str, Load]) -> Scene:
    """The scene: step by step, the share of each expert in both runs."""
    off, on = loads.values()
    frames = []
    for now in range(0, STEPS + 1, STRIDE):
        shapes: list[Shape] = []
        for top, (name, load) in zip((0, LINES + 1), loads.items(), strict=True):
            shapes += _panel(top, name, load, now)
        frames.append(Frame((*shapes, *_axis(2 * LINES + 2)), _note(off, on, now), _facts(off, on, now)))
    title = f"Balance: the share of each of {off.counts.shape[1]} experts in {STEPS} steps of training"
    return Scene("balance", title, tuple(frames), 2 * LINES + 3, KEY, _verdict(off, on))


def colour_of(count: int, excess: float) -> str:
    """Of an expert that ``count`` tokens chose, ``excess`` times its even share."""
    if not count:
        return IDLE
    return LOW if excess < 0.5 else HIGH if excess >= 2 else EVEN


def _panel(top: int, name: str, load: Load, now: int) -> list[Shape]:
    experts = load.counts.shape[1]
    h, excess = LINES / experts, load.excess()
    shapes: list[Shape] = [Label(LEFT, top + 0.5, f"{name} (coefficient {load.aux_loss:g})")]
    for expert in range(experts):
        y = top + 1 + expert * h
        if h >= 1 or expert % 2 == 0:
            shapes.append(Label(LEFT - 1, y + 0.5, f"E{expert}", "ink", "end"))
        for step in range(now):
            fill = colour_of(load.counts[step, expert], excess[step, expert])
            shapes.append(Box(LEFT + step, y, 1, h, fill, mark=MARKS[fill]))
    shapes.append(Box(LEFT, top + 1, STEPS, LINES, None, outline="faint"))
    if now:
        lines = (
            ("busiest expert", f"{excess[now - 1].max():.1f} × even"),
            ("idle experts", f"{(load.counts[now - 1] == 0).sum()} of {experts}"),
            ("slowest rank", f"{load.pace()[now - 1]:.1f} × mean"),
        )
        for line, (what, value) in enumerate(lines):
            y = top + 1.5 + 2.5 * line
            shapes += [Label(NUMBERS, y, what, "faint"), Label(NUMBERS, y + 1, value)]
    return shapes


def _axis(y: int) -> list[Shape]:
    ticks = [Label(LEFT + step, y + 0.5, str(step), "ink", "middle") for step in range(0, STEPS + 1, STEPS // 4)]
    return [*ticks, Label(NUMBERS, y + 0.5, "steps")]


def _note(off: Load, on: Load, now: int) -> str:
    if not now:
        return "Two runs from the same weights on the same tokens. A dark expert has twice its even share or more."
    busy, even = off.excess()[now - 1].max(), on.excess()[now - 1].max()
    return (
        f"After {now} steps: without the loss, the busiest expert gets {busy:.1f} times its even share; with it, "
        f"{even:.1f} times."
    )


def _facts(off: Load, on: Load, now: int) -> dict[str, str]:
    step = max(0, now - 1)
    return {
        "steps": f"{now} of {STEPS}",
        "loss without, with": f"{off.losses[step]:.3f}, {on.losses[step]:.3f}" if now else "",
        "rows of a step": f"{off.counts[step].sum()}",
    }


def _verdict(off: Load, on: Load) -> str:
    idle, experts = [(load.counts[-1] == 0).sum() for load in (off, on)], off.counts.shape[1]
    return (
        f"Last step, without a balance loss: {idle[0]} of {experts} experts idle, and all wait for a rank with "
        f"{off.pace()[-1]:.1f} times the mean load; with it: {idle[1]} of {experts}, and {on.pace()[-1]:.1f} times. "
        f"Both runs match the single-process run bit for bit (SHA-256 {off.fingerprint[:8]}, {on.fingerprint[:8]})."
    )
