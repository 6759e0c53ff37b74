"""The load of the experts over a training run, without and with a balance loss: two runs, each also with the bug."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from minidist.show.demos.expert_parallel.run import TOP_K, layout_of, train_too_large
from minidist.show.demos.shared.runs import WarmRanks
from minidist.train.config import TrainConfig
from minidist.train.result import Run

STEPS = 32  # steps of a run
AUX_LOSS = {"no balance loss": 0.0, "balance loss": 0.01}  # coefficients
EXPERTS_OF_RANK = 2


@dataclass(frozen=True)
class Load:
    """Load of the experts in one run.

    Args:
        aux_loss: coefficient of the balance loss.
        counts: number of tokens that chose each expert, integers (steps, E).
        losses: loss of each step.
        fingerprint: fingerprint of the run.
    """

    aux_loss: float
    counts: np.ndarray
    losses: list[float]
    fingerprint: str

    def excess(self) -> np.ndarray:
        """Return each expert's load in each step, as a multiple of an even share: (steps, E)."""
        return self.counts / self.counts.mean(axis=1, keepdims=True)

    def pace(self) -> np.ndarray:
        """Return the busiest rank's load in each step, as a multiple of the mean: (steps,)."""
        by_rank = self.counts.reshape(len(self.counts), -1, EXPERTS_OF_RANK).sum(axis=2)  # (steps, ranks)
        return by_rank.max(axis=1) / by_rank.mean(axis=1)


def config_of(ranks: int, seed: int, aux_loss: float) -> TrainConfig:
    """Return the config of one layer whose router, without a balance loss, soon uses the experts unevenly."""
    return TrainConfig(
        layers=1,
        heads=2,
        width=32,
        context=32,
        global_batch=2 * ranks,
        micro_batch=2,
        steps=STEPS,
        lr=1e-3,
        experts=EXPERTS_OF_RANK * ranks,
        top_k=TOP_K,
        expert_hidden=32,
        aux_loss=aux_loss,
        bias_rate=0.0,
        seed=seed,
    )


def loads_of(warm: WarmRanks, ranks: int, seed: int) -> tuple[dict[str, Load], dict[str, Load]]:
    """Train both runs on ``ranks`` ranks, each compared with one process, and both with the bug; return their loads."""
    right, wrong = {}, {}
    for name, aux_loss in AUX_LOSS.items():
        config = config_of(ranks, seed, aux_loss)
        right[name] = _load_of(warm, config, ranks, prove=True)
        wrong[name] = _load_of(warm, config, ranks, train_too_large)
    return right, wrong


def _load_of(
    warm: WarmRanks, config: TrainConfig, ranks: int, function: Callable | None = None, prove: bool = False
) -> Load:
    run: Run = warm.train(config, layout_of(ranks), function, digests=False)
    if prove:
        warm.prove(config, run)
    counts = np.array(run.ranks[0].expert_counts)[:, 0, : config.experts]
    return Load(config.aux_loss, counts, run.losses, run.fingerprint)
