"""PowerSGD on one matrix, round after round: real ranks, each with its own gradient, and the sum of each all-reduce."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from minidist.comm.collectives import ReduceOp, all_reduce
from minidist.comm.group import ProcessGroup
from minidist.nn.random import generator
from minidist.parallel.compression.power_sgd import power_sgd_step
from minidist.show.demos.compress.run import Recorded
from minidist.show.demos.shared.runs import WarmRanks

MATRIX = "blocks.0.attention.out.weight"  # as many rows as columns: the model's width
RANK, ROUNDS = 2, 6


@dataclass(frozen=True)
class Round:
    """Step of the power method.

    Args:
        start: Q at the start of the round.  (n, r)
        products: sum of the ranks' M Q, the result of the first all-reduce.  (m, r)
        p: ``products`` with orthonormal columns.  (m, r)
        q: sum of the ranks' M^T P, the result of the second all-reduce.  (n, r)
    """

    start: np.ndarray
    products: np.ndarray
    p: np.ndarray
    q: np.ndarray

    @property
    def product(self) -> np.ndarray:
        """Approximation of the sum of the gradients.  (m, n)"""
        return self.p @ self.q.T

    def error(self, matrix: np.ndarray) -> float:
        """Return the distance of ``product`` from the matrix, as a share of the matrix's norm."""
        return float(np.linalg.norm(matrix - self.product) / np.linalg.norm(matrix))


@dataclass(frozen=True)
class Approximation:
    """Matrix, and the rounds that approximate it.

    Args:
        matrix: sum of the ranks' gradients, which no rank computes.  (m, n)
        ranks: number of ranks.
    """

    matrix: np.ndarray
    ranks: int
    rounds: list[Round]

    @property
    def errors(self) -> list[float]:
        return [one.error(self.matrix) for one in self.rounds]

    @property
    def later(self) -> float:
        """The mean error of the rounds after the first."""
        return sum(self.errors[1:]) / (ROUNDS - 1)

    @property
    def best(self) -> float:
        """The least error of any matrix of rank ``RANK``: the share of the other singular values."""
        values = np.linalg.svd(self.matrix, compute_uv=False)
        return float(np.linalg.norm(values[RANK:]) / np.linalg.norm(values))


def gradients_of(recorded: Recorded) -> list[np.ndarray]:
    """Return each rank's own gradient of the matrix in the last step.  (n, n)"""
    last = [rank[-1].gradient for rank in recorded.messages[MATRIX]]
    return [gradient.reshape(-1, recorded.run.config.width) for gradient in last]


def approximate(warm: WarmRanks, matrices: Sequence[np.ndarray], seed: int, refilled: bool) -> Approximation:
    """Run ``ROUNDS`` rounds on a rank for each matrix. refilled: each round begins with a random Q, without warm start.

    Raises:
        RuntimeError: if the ranks have different factors.
    """
    with warm(len(matrices)) as cluster:
        found = cluster.run(power_rounds, [matrix.astype(np.float64) for matrix in matrices], seed, refilled)
    for rounds in found[1:]:
        if any(one.q.tobytes() != other.q.tobytes() for one, other in zip(found[0], rounds, strict=True)):
            raise RuntimeError("the ranks have different factors: this is a bug in minidist")
    return Approximation(sum(matrices[1:], matrices[0]), len(matrices), found[0])


def check_harm(right: Approximation, broken: Approximation) -> None:
    """Raise RuntimeError if the rounds after the first are no worse without a warm start."""
    if broken.later <= right.later:
        raise RuntimeError("random Q finds as good factors by chance: choose another size or seed")


def power_rounds(world: ProcessGroup, matrices: list[np.ndarray], seed: int, refilled: bool) -> list[Round]:
    """Run one rank's rounds; every rank begins with the same Q."""
    matrix, rounds = matrices[world.rank], []
    for number in range(ROUNDS):
        if refilled or not rounds:
            q = generator("compress", seed, "round", number).standard_normal((matrix.shape[1], RANK))
        sums: list[np.ndarray] = []

        def total(array, sums=sums) -> None:
            all_reduce(array, ReduceOp.SUM, world)
            sums.append(array.copy())

        start = q.copy()
        p, q = power_sgd_step(matrix, q, total)
        rounds.append(Round(start, sums[0], p, q))
    return rounds
