"""Low rank: two thin factors in place of each matrix. They can be added, so an all-reduce carries them.

Vogels et al., "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization" (arXiv 1905.13727,
2019). One step of the power method on the sum M of all ranks' matrices: P = M Q, made orthonormal, spans directions in
which M is large, and P Q^T with a new Q = M^T P is the part of M in those directions. Nobody needs M itself: the sums
of the ranks' own products are enough. Each step starts from the last one's Q (warm start), so that many steps are one
long power iteration, and the directions follow the gradient. (torch's hook once filled it with new random numbers in
each step. That raises no error; it only costs accuracy: pytorch pull request 50283.)

A parameter with two axes or more is taken for the matrix (-1, last axis). Where factors would be no smaller, and for
vectors, the gradient itself is summed.

Simplified: each matrix has two all-reduces of its own; torch's hook joins those of a bucket in one message each.
"""

from collections.abc import Callable, Sequence
from math import frexp, prod

from minidist import ledger
from minidist.backend import from_host, xp
from minidist.comm.collectives import ReduceOp, all_reduce
from minidist.comm.group import ProcessGroup
from minidist.nn.kernels import rounded
from minidist.nn.random import generator
from minidist.overrides import overridable
from minidist.parallel.compression.feedback import Residuals, grid_unit, largest, to_grid
from minidist.parallel.compression.method import Method, Shape
from minidist.parallel.tools.messages import flattened, unflatten

DEPENDENT = 2.0**-40  # share of a column's length: a shorter remainder is rounding error
TINY = 2.0**-1000  # smallest divisor, to avoid a division by 0


@overridable
def power_sgd_step(matrix, q, all_reduce: Callable) -> tuple:
    """Do one step of the power method on the sum of all ranks' matrices.

    Args:
        matrix: this rank's matrix, float64.  (m, n)
        q: starting matrix, the same on every rank, float64.  (n, r)
        all_reduce: function that overwrites an array with its sum over the ranks.

    Returns:
        p (m, r), with orthonormal columns, and q (n, r), the same on every rank: p q^T approximates the sum.
    """
    p = matrix @ q  # (m, r)
    all_reduce(p)
    p = orthonormal(p)
    q = matrix.T @ p  # (n, r)
    all_reduce(q)
    return p, q


def orthonormal(columns):
    """Return an orthonormal basis of the columns' span, by Gram-Schmidt; a column that depends on others becomes 0.

    One projection leaves a remainder of a nearly dependent column that is not orthogonal up to rounding error. A second
    one makes it so ("twice is enough": Giraud, Langou, Rozloznik, van den Eshof, 2005).
    """
    rows = xp.ascontiguousarray(columns.T)  # (r, m)
    for i, row in enumerate(rows):
        length = xp.sqrt(row @ row)
        for _ in range(2):
            row -= (rows[:i] @ row) @ rows[:i]
        left = xp.sqrt(row @ row)
        row *= xp.where(left > DEPENDENT * length, 1 / xp.maximum(left, TINY), 0)
    return xp.ascontiguousarray(rows.T)


class PowerSGD(Method):
    """Method that sends matrices of rank ``rank``. It keeps Q of each parameter for the next step.

    Args:
        name: the method as a layout writes it.
        rank: r, at least 1.
    """

    on_grid = True

    def __init__(self, name: str, rank: int) -> None:
        super().__init__(name)
        self.rank = rank
        self.q: dict = {}  # by parameter name: (n, r)

    def check(self, full_rank: int) -> None:
        if self.rank > full_rank:
            raise ValueError(
                f"compress={self.name}: powersgd:{full_rank} already sends every gradient of this model unchanged: "
                f"choose a rank from 1 to {full_rank}"
            )

    def why_it_differs(self, full_rank: int) -> str:
        if self.rank >= full_rank:
            return ""
        return (
            f"compress={self.name} sends gradients of rank {self.rank}; powersgd:{full_rank}, of full rank, has the "
            "bits of one process"
        )

    def factors(self, shape: Shape) -> tuple[int, int] | None:
        """Return rows and columns of the matrix that a parameter is taken for; None if it is sent as it is."""
        if len(shape) < 2 or not shape[-1]:
            return None
        m, n = prod(shape[:-1]), shape[-1]
        return (m, n) if self.rank * (m + n) < m * n else None

    def numbers(self, shape: Shape) -> int:
        """Return how many numbers are summed for a parameter of this shape."""
        factors = self.factors(shape)
        return prod(shape) if factors is None else self.rank * sum(factors)

    def bytes_sent(self, shapes: Sequence[Shape], ranks: int, itemsize: int) -> float:
        numbers = sum(self.numbers(shape) for shape in shapes)
        return itemsize * numbers * 2 * (ranks - 1) / ranks  # an all-reduce, on average over the ranks

    def sum_gradients(
        self, gradients: dict, residuals: Residuals | None, names: Sequence, group: ProcessGroup, algorithm: str
    ) -> None:
        matrices = {name: gradient for name, gradient in gradients.items() if self.factors(gradient.shape)}
        sum_as_they_are([gradients[name] for name in gradients if name not in matrices], group, algorithm)
        seed, *_ = names
        for name, gradient in matrices.items():
            send = self._sender(name, gradient, seed, group, algorithm)
            flat = gradient.reshape(-1).astype(xp.float64)
            if residuals is None:
                send(flat)
            else:
                residuals.send(name, flat, send)

    def _sender(self, name: str, gradient, seed: int, group: ProcessGroup, algorithm: str) -> Callable:
        """Return a function that sends one matrix, and overwrites the gradient with the approximate sum."""

        def total(array) -> None:
            """Sum over the ranks; terms and sum are rounded to float32, so that the order of adding does not show."""
            message = array.astype(xp.float32).astype(gradient.dtype, order="C")
            all_reduce(message, ReduceOp.SUM, group, algorithm=algorithm)
            array[...] = rounded(message, xp.float32)

        def send(corrected):
            matrix = corrected.reshape(self.factors(gradient.shape))
            p, q = power_sgd_step(matrix, self.start(name, matrix.shape[1], seed), total)
            self.keep(name, q)
            gradient[...] = (p @ q.T).reshape(gradient.shape)
            own = (matrix.T @ p).astype(xp.float32)  # this rank's term of q
            sent = p @ own.astype(xp.float64).T
            return to_grid(sent.reshape(-1), grid_unit(largest(corrected), corrected.size))  # exact residuals

        return send

    def start(self, name: str, columns: int, seed: int):
        """Return Q of the last step, to start from. A column of zeros, which would remain zero, starts anew."""
        if name not in self.q:
            self.q[name] = ledger.enter("optimizer", xp.zeros((columns, self.rank)))
        q = self.q[name]
        if (empty := (q == 0).all(axis=0)).any():
            first = from_host(generator("compress", seed, name).standard_normal(q.shape))  # (n, r)
            q[:] = xp.where(empty, first, q)
        return q

    def keep(self, name: str, q) -> None:
        """Keep Q for the next step, scaled by a power of two to about 1: its length is free, and P must fit float32."""
        _, exponent = frexp(largest(q))
        self.q[name][:] = xp.ldexp(q, -exponent)


def sum_as_they_are(gradients: list, group: ProcessGroup, algorithm: str) -> None:
    """Sum gradients over the ranks by one all-reduce, in place; do nothing if there are none."""
    if not gradients:
        return
    message = flattened(gradients, gradients[0].dtype)
    all_reduce(message, ReduceOp.SUM, group, algorithm=algorithm)
    unflatten(message, gradients)
