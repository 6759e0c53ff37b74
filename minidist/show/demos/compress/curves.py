"""The loss of training runs with full gradients, and with each method with and without error feedback."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from minidist.show.demos.shared.runs import WarmRanks
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout

METHODS = {"top-k 0.1%": "topk:0.001", "1 bit": "onebit", "rank 1": "powersgd:1"}  # name -> value of --compress
RANKS, SEEDS = 2, 3
STEPS, WINDOW = 120, 10  # steps of a run, and steps whose mean is a point


@dataclass(frozen=True)
class Curves:
    """Losses of all runs, in arrays of shape (seeds, steps).

    Args:
        full: losses with full gradients.
        compressed: method -> losses with error feedback.
        forgetful: method -> losses without error feedback.
        shares: method -> bytes of a step's messages, as a share of those of full gradients.
    """

    full: np.ndarray
    compressed: Mapping[str, np.ndarray]
    forgetful: Mapping[str, np.ndarray]
    shares: Mapping[str, float]


def config_of(seed: int) -> TrainConfig:
    return TrainConfig(
        layers=1,
        heads=4,
        width=32,
        context=32,
        global_batch=8,
        micro_batch=4,
        steps=STEPS,
        optimizer="sgd",
        lr=0.2,
        warmup=0,
        clip=float("inf"),
        weight_decay=0.0,
        seed=seed,
    )


def curves_of(warm: WarmRanks, seed: int) -> Curves:
    """Train with ``SEEDS`` seeds from this one on; each seed has other weights and tokens."""

    def runs(**settings) -> list:
        layout = Layout(dp=RANKS, sync="bucketed", **settings)
        return [warm.train(config_of(seed + number), layout, digests=False) for number in range(SEEDS)]

    def losses(found: list) -> np.ndarray:
        return np.array([run.losses for run in found])  # (seeds, steps)

    def gradient_bytes(found: list) -> int:
        return sum(row["bytes_sent"] for row in found[0].ranks[0].collectives)

    full = runs()
    right = {name: runs(compress=method) for name, method in METHODS.items()}
    return Curves(
        losses(full),
        {name: losses(found) for name, found in right.items()},
        {name: losses(runs(compress=method, error_feedback=0)) for name, method in METHODS.items()},
        {name: gradient_bytes(found) / gradient_bytes(full) for name, found in right.items()},
    )


def windows(losses: np.ndarray) -> np.ndarray:
    """Return means over ``WINDOW`` steps: (..., steps) -> (..., steps / WINDOW)."""
    return losses.reshape(*losses.shape[:-1], -1, WINDOW).mean(axis=-1)
