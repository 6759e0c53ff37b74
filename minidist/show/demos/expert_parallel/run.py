"""A real training step with expert parallelism: the experts that each token chose, and the experts' gradients.

The bug: an expert's gradient is averaged over the ranks that have this expert. It is summed over these ranks, so the
mean over them looks right. But the sum has the tokens of all ranks, so the mean is ep times too large. DeepSpeed had it
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
    """Entry of a rank's log: the router's choice for one micro-batch.

    Args:
        chosen: experts of each token, integers (N, k).
        weights: weights of those experts, (N, k).
    """

    chosen: np.ndarray
    weights: np.ndarray


@dataclass(slots=True)
class Gradients:
    """Entry of a rank's log: its experts' gradients, before and after they are averaged.

    Args:
        summed: norm of each expert's gradient, before.
        averaged: norm of each expert's gradient, after.
        digests: CRC-32 of each expert's averaged gradient.
    """

    summed: list[float]
    averaged: list[float]
    digests: list[int]


@dataclass(frozen=True)
class Step:
    """One step of a run, as its ranks recorded it.

    Args:
        routes: the router's choices for each micro-batch; rank r has number r.
        ranks: number of ranks that share the experts.
        row_bytes: bytes of one row that a rank sends to another.
        gradients: gradients of all experts.
        loss, fingerprint: loss and fingerprint of the run.
        capacity: most tokens of a micro-batch that an expert takes; None for no limit.
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
        """Return the rank that has an expert."""
        return expert // self.experts_of_rank

    def tokens(self, source: int, expert: int) -> list[int]:
        """Return the tokens of rank ``source`` that chose an expert and fit its capacity."""
        return np.nonzero((self.routes[source].chosen == expert).any(axis=1))[0].tolist()[: self.capacity]

    @property
    def choices(self) -> int:
        """Number of choices of all tokens: each chooses k experts."""
        return sum(routed.chosen.size for routed in self.routes)

    @cached_property
    def rows(self) -> np.ndarray:
        """Number of rows that go from each rank to each rank, integers (ranks, ranks)."""
        found = np.zeros((self.ranks, self.ranks), int)
        for source in range(self.ranks):
            for expert in range(self.experts):
                found[source, self.rank_of(expert)] += len(self.tokens(source, expert))
        return found

    @property
    def loads(self) -> list[int]:
        """Number of rows that each rank computes."""
        return self.rows.sum(axis=0).tolist()

    def moved(self, distances: Sequence[int]) -> int:
        """Return the number of rows that all ranks send to the ranks at these distances after them."""
        return sum(int(self.rows[rank, (rank + i) % self.ranks]) for i in distances for rank in range(self.ranks))


def config_of(ranks: int, size: int, seed: int, capacity: float | None = None) -> TrainConfig:
    """Return a config of one layer and one step, with one sample of ``size`` tokens per rank: each rank routes once."""
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
    """Run ``train_rank`` and log the router's choices and the experts' gradients; ``average`` averages gradients."""

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
    """Return the parts of the gradients that belong to each of this rank's experts."""
    moved = [np.moveaxis(to_host(one.grad), one.expert_axis, 0) for one in parameters if one.expert_axis is not None]
    return [list(parts) for parts in zip(*moved, strict=True)]


def _norms(parameters: Sequence[Parameter]) -> list[float]:
    squares = [
        sum(float(np.square(part, dtype=np.float64).sum()) for part in parts) for parts in _by_expert(parameters)
    ]
    return np.sqrt(squares).tolist()


def step_of(run: Run) -> Step:
    """Collect what the ranks of a run recorded, on one rank or with expert parallelism.

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
    """Check that a rank sends its rows and returns those of others, and in backward does so with their gradients."""
    for rank, result in enumerate(run.ranks):
        kept = step.rows[rank, rank]
        expected = 2 * (step.rows[rank].sum() + step.rows[:, rank].sum() - 2 * kept) * step.row_bytes
        calls = [row for row in result.collectives if (row["axis"], row["dtype"]) == ("ep", "float32")]
        sent = sum(row["bytes_sent"] for row in calls)
        if sent != expected:
            raise RuntimeError(f"rank {rank} sends {sent} bytes of rows, not {expected}: this is a bug in minidist")


BUG = "an expert's gradient is averaged over its own GPU's micro-batches, not over all"


def average_over_own_group(parameters: Sequence[Parameter], count: int, ep: int) -> None:
    """Average gradients over ``count`` micro-batches, but those of experts over ``count // ep``, their own ranks'."""
    average_gradients([parameter for parameter in parameters if parameter.expert_axis is None], count)
    average_gradients([parameter for parameter in parameters if parameter.expert_axis is not None], count // ep)


def train_too_large(world, config, layout, options):
    """Run ``train_watched`` with the bug: experts' gradients are ep times too large."""
    return train_watched(world, config, layout, options, partial(average_over_own_group, ep=layout.ep))
