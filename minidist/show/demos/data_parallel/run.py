"""Runs for the demonstration of data parallelism, and measures of a run.

A step of rank 0: its phases, its all-reduces, and the share that backward hides. A longer run: how far each rank's
weights are from those of the single-process run, step by step. The bug: the gradients of one bucket are not summed. The
trace shows where the sum is missing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from unittest.mock import patch

import numpy as np

from minidist.analysis.steps import hidden_share, kind_of, step_length, traced_step
from minidist.comm.collectives import ReduceOp, all_reduce
from minidist.comm.group import ProcessGroup
from minidist.parallel.data import BucketedDataParallel, NaiveDataParallel, fill_buckets
from minidist.show.demos.shared.on_gpus import DROPPED, communications
from minidist.show.demos.shared.runs import check_width, heads_of
from minidist.trace import Event
from minidist.train.config import TrainConfig
from minidist.train.hooks import StepHook
from minidist.train.layout import Layout
from minidist.train.result import RankResult, Run, RunOptions
from minidist.train.share import Share
from minidist.train.trainer import train_rank

BUCKETS = 6  # approximately
DROPPED_BUCKET = 2  # counted from 1, in the order of sending
PHASES = ("forward", "backward", "optimizer")
STEPS = 12  # of the run whose weights are compared
SAMPLE = 2**16  # at most this many weights of each step are compared, evenly spaced


def config_of(ranks: int, size: int, seed: int) -> TrainConfig:
    check_width(size, 8, 512)
    return TrainConfig(
        layers=4,
        heads=heads_of(size),
        width=size,
        context=32,
        global_batch=4 * ranks,  # one micro-batch per rank, so that all of backward can hide communication
        micro_batch=4,
        steps=3,
        seed=seed,
        clip=100.0,  # so high that a wrong gradient changes no other parameter
    )


def layouts_of(ranks: int, elements: int) -> dict[str, Layout]:
    """Return way to sum -> layout, for a model with ``elements`` elements."""
    ring = Layout(dp=ranks, algorithm="ring")
    bucketed = replace(ring, sync="bucketed", bucket_mb=8 * elements / BUCKETS / 2**20)  # of float64 gradients
    return {
        "overlapped": replace(bucketed, sync="overlapped"),
        "bucketed": bucketed,
        "naive": replace(ring, sync="naive"),
    }


@dataclass(frozen=True)
class Step:
    """Step on any clock: rank 0's phases and collectives, and the end of the last rank, in ns."""

    log: Sequence[Event]
    end: int

    @classmethod
    def of(cls, logs: Sequence[list]) -> "Step":
        """Return the last step of a run, from the ranks' logs."""
        step = traced_step(logs)
        return cls([event for event in step[0] if kind_of(event)], step_length(step))

    @cached_property
    def sums(self) -> list[Event]:
        """All-reduces of gradients, skipped ones included: all but the last, which is for the loss."""
        return communications(self.log)[:-1]

    @property
    def hidden(self) -> float:
        """Share of the time of all-reduces that backward hides."""
        return hidden_share(self.log)


def train_keeping_weights(world: ProcessGroup, config: TrainConfig, layout: Layout, options: RunOptions) -> RankResult:
    """Run ``train_rank``, and return a sample of the weights after each step as ``arrays["weights"]``."""
    kept = Weights()
    result = train_rank(world, config, layout, options, [kept])
    result.arrays["weights"] = np.stack(kept.found)  # (steps, sample)
    return result


class Weights(StepHook):
    """Hook that keeps a sample of the weights after each step."""

    def begin_run(self, share: Share) -> None:
        self.trained, self.found = share.model.trained, []

    def end_step(self, step: int, loss: float, last: bool) -> None:
        weights = np.concatenate([parameter.data.ravel() for parameter in self.trained])
        self.found.append(weights[:: -(-weights.size // SAMPLE)].copy())


def distances(run: Run, reference: Run) -> np.ndarray:
    """Return each rank's RMS distance from the reference's weights, over their RMS: (ranks, steps + 1), 0 at first."""
    right = reference.ranks[0].arrays["weights"].astype(np.float64)
    apart = [np.sqrt(np.mean((rank.arrays["weights"] - right) ** 2, axis=1)) for rank in run.ranks]
    return np.hstack([np.zeros((len(apart), 1)), np.stack(apart) / np.sqrt(np.mean(right**2))])


def without_sums(rank_function: Callable, *arguments) -> RankResult:
    """Call a rank's function without summing the gradients of one bucket; without buckets, of the same parameters."""
    send_next = BucketedDataParallel._send_next

    def send_all_but_one(self: BucketedDataParallel) -> None:
        if self.next != DROPPED_BUCKET - 1:
            return send_next(self)
        self.buckets[self.next].work = _skip(self.group, True)
        self.next += 1

    def sum_all_but_one(self: NaiveDataParallel) -> None:
        elements = sum(parameter.size for parameter in self.parameters)
        skipped = fill_buckets(self.parameters[::-1], elements / BUCKETS)[DROPPED_BUCKET - 1]
        for parameter in self.parameters:
            if parameter in skipped:
                _skip(self.group, False)
            else:
                all_reduce(parameter.grad, ReduceOp.SUM, self.group, algorithm=self.algorithm)

    with (
        patch.object(BucketedDataParallel, "_send_next", send_all_but_one),
        patch.object(NaiveDataParallel, "wait_for_gradients", sum_all_but_one),
    ):
        return rank_function(*arguments)


def drops_a_bucket(*arguments) -> RankResult:
    return without_sums(train_rank, *arguments)


def train_broken_keeping_weights(*arguments) -> RankResult:
    return without_sums(train_keeping_weights, *arguments)


def _skip(group: ProcessGroup, async_op: bool):
    """Record an empty entry in the trace in place of an all-reduce."""
    return group.run_collective(f"{DROPPED} all_reduce", lambda inside: None, async_op)
