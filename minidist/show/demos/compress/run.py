"""Training that records compression: the gradient of each parameter in each step, what is sent, and what stays.

The parameter that is drawn is the bias of the last norm: it has as many numbers as the model is wide, few enough to
draw every one of them. The bug: what a message leaves out is not added to the next gradient, so it is lost. torch's
PowerSGD hook loses its residuals once: when DistributedDataParallel rebuilds its buckets (pull request 49418).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from unittest.mock import patch

import numpy as np

from minidist.comm.group import ProcessGroup
from minidist.nn.gpt import GPT
from minidist.parallel.compression import feedback
from minidist.show.demos.shared.runs import WarmRanks, heads_of
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RankResult, Run, RunOptions
from minidist.train.trainer import train_rank

STEPS = 8
DRAWN = "head.norm.bias"
LEAST, MOST = 8, 24  # numbers in the drawn parameter


def config_of(ranks: int, size: int, seed: int) -> TrainConfig:
    """Configure plain SGD without weight decay, so that a number that is not sent does not move.

    Raises:
        ValueError: if the drawn parameter is too small to show anything, or too large to draw.
    """
    if not LEAST <= size <= MOST:
        raise ValueError(f"size, the numbers that are drawn, must be from {LEAST} to {MOST}, got {size}")
    return TrainConfig(
        layers=1,
        heads=heads_of(size),
        width=size,
        context=16,
        global_batch=4 * ranks,
        micro_batch=1,
        steps=STEPS,
        optimizer="sgd",
        lr=0.1,
        warmup=0,
        clip=float("inf"),
        weight_decay=0.0,
        seed=seed,
    )


@dataclass(frozen=True)
class Message:
    """Entry of a rank's log: one parameter of n numbers in one step; every array is float64 (n,).

    Args:
        gradient: gradient of this rank's micro-batches.
        before: residual from the previous steps.
        sent: numbers that the message stands for.
        after: new residual, which is lost if it is not kept.
    """

    gradient: np.ndarray
    before: np.ndarray
    sent: np.ndarray
    after: np.ndarray

    @property
    def corrected(self) -> np.ndarray:
        """Gradient + old residual, which sent + new residual must equal."""
        return self.gradient + self.before

    @property
    def balanced(self) -> np.ndarray:
        """Whether sent + new residual is gradient + old residual, to the last bit: bool (n,)."""
        return self.sent + self.after == self.corrected


def train_recording(
    world: ProcessGroup,
    config: TrainConfig,
    layout: Layout,
    options: RunOptions,
    keep: Callable[[np.ndarray], np.ndarray] = lambda residual: residual,
) -> RankResult:
    """Run ``train_rank``, and log a ``Message`` for each parameter in each step.

    keep: new residual -> residual that the next step gets; a bug changes it.
    """
    feed_back, entries = feedback.feed_back, []

    def record(gradient, residual, send):
        gradient, before = gradient.copy(), residual.copy()
        sent, after = feed_back(gradient, residual, send)
        entries.append(Message(gradient, before, sent.copy(), after.copy()))
        return sent, keep(after)

    with patch.object(feedback, "feed_back", record):
        result = train_rank(world, config, layout, options)
    return replace(result, log=[*result.log, *entries])


@dataclass(frozen=True)
class Recorded:
    """Record of one method in one run.

    Args:
        method: the method as ``--compress`` takes it.
        messages: parameter name -> [rank][step].
    """

    method: str
    run: Run
    messages: dict[str, list[list[Message]]]

    @classmethod
    def of(cls, method: str, run: Run) -> "Recorded":
        names = [parameter.name for parameter in GPT(run.config.model).parameters()][::-1]  # in the order of sending
        ranks = [[entry for entry in rank.log if isinstance(entry, Message)] for rank in run.ranks]
        if any(len(entries) != STEPS * len(names) for entries in ranks):
            raise RuntimeError(f"{method} was not asked for each parameter in each step: this is a bug in minidist")
        messages = {
            name: [entries[place :: len(names)] for entries in ranks]  # [rank][step]
            for place, name in enumerate(names)
        }
        return cls(method, run, messages)

    @property
    def drawn(self) -> list[Message]:
        """Rank 0's messages of the drawn parameter, one for each step."""
        return self.messages[DRAWN][0]

    def moved(self) -> int:
        """Return how many numbers of the drawn parameter any rank has sent: SGD moves these, and no others."""
        sent = np.array([[message.sent != 0 for message in rank] for rank in self.messages[DRAWN]])  # (ranks, steps, n)
        return int(sent.any(axis=(0, 1)).sum())

    def balances(self) -> tuple[int, int]:
        """Count the numbers where sent + new residual is gradient + old residual, to the last bit; and all numbers."""
        every = [message.balanced for ranks in self.messages.values() for rank in ranks for message in rank]
        return int(sum(one.sum() for one in every)), sum(one.size for one in every)


def record(warm: WarmRanks, config: TrainConfig, ranks: int, method: str, rank_function=train_recording) -> Recorded:
    """Train with a method, and return the record of its messages."""
    layout = Layout(dp=ranks, sync="bucketed", compress=method)
    run = warm.train(config, layout, rank_function, trace=True, digests=False)
    return Recorded.of(method, run)


BUG = "no error feedback: what a message leaves out is lost (torch lost it when buckets were rebuilt, #49418)"
train_forgetting = partial(train_recording, keep=np.zeros_like)
COLD = "each round begins with random Q: no warm start (torch's PowerSGD did so until #50283)"
