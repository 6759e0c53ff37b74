"""A real training step with expert parallelism: which experts each token chose, and what gradients the experts got.

The bug: an expert's gradient is averaged over the ranks that have this expert. Over these ranks it is summed, so the
mean over them looks right. But tokens of all ranks are in the sum, so the mean is ep times too large. DeepSpeed had it
(issue 5618: 4 times with ep=4), and Megatron-FSDP (Megatron-LM's pull request 5956).
"""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from unittest.mock import patch

import numpy as np

from minidist import trace
from minidist.backend import to_host
from minidist.comm.group import ProcessGroup
from minidist.nn.layers import Parameter
from minidist.nn.moe.router import Router
from minidist.nn.optim.optimizers import average_gradients
from minidist.train import step as training_step
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RankResult, Run, RunOptions
from minidist.train.trainer import train_rank

WIDTH = 96
TOP_K = 2
EXPERTS_OF_RANK = 1  # so that an expert has the number of its rank


@dataclass(slots=True)
class Routed:
    """An entry of a rank's log: the router has chosen, for one micro-batch.

    Args:
        chosen: the experts of each token, integers (N, k).
        weights: (N, k), the weights of those experts.
    """

    chosen: np.ndarray
    weights: np.ndarray


@dataclass(slots=True)
class Gradients:
    """An entry of a rank's log: the gradients have been averaged.

    Args:
        summed: the norm of the gradient of each expert here, before.
        averaged: the same, after.
        digests: CRC-32 of the averaged gradient of each expert.
    """

    summed: list[float]
    averaged: list[float]
    digests: list[int]


@dataclass(frozen=True)
class Step:
    """What the ranks of a run recorded in its step.

    Args:
        routes: routes of each micro-batch; that of rank r has number r.
        ranks: how many share the experts.
        row_bytes: bytes of one row between two ranks.
        gradients: gradients of all experts.
        loss, fingerprint: loss and fingerprint of the run.
        capacity: how many tokens of a micro-batch an expert takes at most; None for all.
    """

    routes: Sequence[Routed]
    ranks: int
    row_bytes: int
    gradients: Gradients
    loss: float
    fingerprint: str
    capacity: int | None = None

    @property
    def experts(self) -> int:
        return len(self.gradients.averaged)

    @property
    def experts_of_rank(self) -> int:
        return self.experts // self.ranks

    def rank_of(self, expert: int) -> int:
        """The rank that has an expert."""
        return expert // self.experts_of_rank

    def tokens(self, source: int, expert: int) -> list[int]:
        """Which tokens of a rank chose an expert, and were taken."""
        return np.nonzero((self.routes[source].chosen == expert).any(axis=1))[0].tolist()[: self.capacity]

    @property
    def choices(self) -> int:
        """How many experts all tokens chose together."""
        return sum(routed.chosen.size for routed in self.routes)

    @cached_property
    def rows(self) -> np.ndarray:
        """How many rows go from each rank to each rank, integers (ranks, ranks)."""
        found = np.zeros((self.ranks, self.ranks), int)
        for source in range(self.ranks):
            for expert in range(self.experts):
                found[source, self.rank_of(expert)] += len(self.tokens(source, expert))
        return found

    @property
    def loads(self) -> list[int]:
        """How many rows each rank computes."""
        return self.rows.sum(axis=0).tolist()

    def moved(self, distances: Sequence[int]) -> int:
        """Rows that ranks send to the ranks these distances after them, summed over the distances."""
        return sum(int(self.rows[rank, (rank + i) % self.ranks]) for i in distances for rank in range(self.ranks))


def config_of(ranks: int, size: int, seed: int, capacity: float | None = None) -> TrainConfig:
    """One layer and one step, with one sample of ``size`` tokens on each rank, so that each rank routes once."""
    return TrainConfig(
        layers=1,
        heads=2,
        width=WIDTH,
        context=size,
        global_batch=ranks,
        micro_batch=1,
        steps=1,
        experts=EXPERTS_OF_RANK * ranks,
        top_k=TOP_K,
        expert_hidden=WIDTH // 2,
        capacity=capacity,
        seed=seed,
    )


def layout_of(ranks: int) -> Layout:
    return Layout(dp=ranks, ep=ranks)


def train_watched(
    world: ProcessGroup, config: TrainConfig, layout: Layout, options: RunOptions, average: Callable = average_gradients
) -> RankResult:
    """``train_rank``, whose log has what the router chose and the experts' gradients; ``average`` averages these."""

    def forward(router: Router, x):
        weights, chosen = right_forward(router, x)
        trace.record(Routed(to_host(chosen).copy(), to_host(weights.data).copy()))
        return weights, chosen

    def averaged(parameters: Sequence[Parameter], count: int) -> None:
        summed = _norms(parameters)
        average(parameters, count)
        digests = [zlib.crc32(b"".join(part.tobytes() for part in parts)) for parts in _by_expert(parameters)]
        trace.record(Gradients(summed, _norms(parameters), digests))

    right_forward = Router.forward
    with patch.object(Router, "forward", forward), patch.object(training_step, "average_gradients", averaged):
        return train_rank(world, config, layout, options)


def _by_expert(parameters: Sequence[Parameter]) -> list[list[np.ndarray]]:
    """The parts of the gradients that belong to each expert of this rank."""
    moved = [np.moveaxis(to_host(one.grad), one.expert_axis, 0) for one in parameters if one.expert_axis is not None]
    return [list(parts) for parts in zip(*moved, strict=True)]


def _norms(parameters: Sequence[Parameter]) -> list[float]:
    squares = [
        sum(float(np.square(part, dtype=np.float64).sum()) for part in parts) for parts in _by_expert(parameters)
    ]
    return np.sqrt(squares).tolist()


def step_of(run: Run) -> Step:
    """What was recorded in a run on one rank or with expert parallelism.

    Raises:
        RuntimeError: if a rank sent more or fewer bytes between experts than the routes say.
    """
    entries = [entry for rank in run.ranks for entry in rank.log]
    averaged = [entry for entry in entries if isinstance(entry, Gradients)]
    gradients = Gradients(
        summed=[norm for entry in averaged for norm in entry.summed],
        averaged=[norm for entry in averaged for norm in entry.averaged],
        digests=[digest for entry in averaged for digest in entry.digests],
    )
    routes = [entry for entry in entries if isinstance(entry, Routed)]
    row_bytes = run.config.width * np.dtype(np.float32).itemsize
    capacity = run.config.moe and run.config.moe.rows_at_most(run.config.micro_batch * run.config.context)
    found = Step(routes, run.layout.ep, row_bytes, gradients, run.losses[-1], run.fingerprint, capacity)
    if found.ranks > 1:
        _check_bytes(found, run)
    return found


def _check_bytes(step: Step, run: Run) -> None:
    """A rank sends its rows, and returns those of others; in backward it does so with their gradients."""
    for rank, result in enumerate(run.ranks):
        kept = step.rows[rank, rank]
        expected = 2 * (step.rows[rank].sum() + step.rows[:, rank].sum() - 2 * kept) * step.row_bytes
        calls = [row for row in result.collectives if (row["axis"], row["dtype"]) == ("ep", "float32")]
        sent = sum(row["bytes_sent"] for row in calls)
        if sent != expected:
            raise RuntimeError(f"rank {rank} sends {sent} bytes of rows, not {expected}: this is a bug in minidist")


BUG = "an expert's gradient is averaged over its own GPU's micro-batches, not over all"


def average_over_own_group(parameters: Sequence[Parameter], count: int, ep: int) -> None:
    """``average_gradients``, whose count for experts is that of the ranks with the same experts."""
    average_gradients([parameter for parameter in parameters if parameter.expert_axis is None], count)
    average_gradients([parameter for parameter in parameters if parameter.expert_axis is not None], count // ep)


def train_too_large(world, config, layout, options):
    """``train_watched`` with this bug."""
    return train_watched(world, config, layout, options, partial(average_over_own_group, ep=layout.ep))
