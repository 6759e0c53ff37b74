"""How far each rank's weights are from those of the single-process run, step by step."""

import numpy as np

from minidist.comm.group import ProcessGroup
from minidist.show.demos.data_parallel.bug import without_sums
from minidist.train.config import TrainConfig
from minidist.train.hooks import StepHook
from minidist.train.layout import Layout
from minidist.train.result import RankResult, Run, RunOptions
from minidist.train.share import Share
from minidist.train.trainer import train_rank

STEPS = 12
SAMPLE = 2**16  # weights that are brought back from each step, at most; evenly spaced


def train_keeping_weights(world: ProcessGroup, config: TrainConfig, layout: Layout, options: RunOptions) -> RankResult:
    """``train_rank`` that brings back, as ``arrays["weights"]``, a sample of the weights after each step."""
    kept = Weights()
    result = train_rank(world, config, layout, options, [kept])
    result.arrays["weights"] = np.stack(kept.found)  # (steps, sample)
    return result


class Weights(StepHook):
    """Keeps a sample of the weights after each step."""

    def begin_run(self, share: Share) -> None:
        self.trained, self.found = share.model.trained, []

    def end_step(self, step: int, loss: float, last: bool) -> None:
        weights = np.concatenate([parameter.data.ravel() for parameter in self.trained])
        self.found.append(weights[:: -(-weights.size // SAMPLE)].copy())


def train_broken_keeping_weights(*arguments) -> RankResult:
    return without_sums(train_keeping_weights, *arguments)


def distances(run: Run, reference: Run) -> np.ndarray:
    """Return each rank's relative distance from the reference's weights: (ranks, steps + 1), 0 at first."""
    right = reference.ranks[0].arrays["weights"].astype(np.float64)
    apart = [np.sqrt(np.mean((rank.arrays["weights"] - right) ** 2, axis=1)) for rank in run.ranks]
    return np.hstack([np.zeros((len(apart), 1)), np.stack(apart) / np.sqrt(np.mean(right**2))])
