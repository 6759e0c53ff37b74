"""Dispatch and combine: from tokens to the rows that experts compute, and back.

A token is copied once for each expert that it chose. The copies are sorted by expert, and within one expert by token:
then an expert's rows are next to each other, and their order does not depend on who sends them.

    tokens (N, C)   --dispatch-->   rows (R, C), by expert   --experts-->   rows (R, C)   --combine-->   (N, C)

R is k N, less what is dropped for lack of capacity. A dropped copy counts as 0: the token keeps its residual and the
outputs of its other experts. (Megatron-LM: permute and unpermute.)

**Bits.** In both directions a token's k terms are read from their rows and added in the order of its choices, or in
float64. A scatter-add would add them in the order in which rows arrive, on a GPU in no fixed order (torchtitan's pull
request 1974).
"""

from minidist.backend import to_host, xp
from minidist.nn.kernels import counts_of
from minidist.nn.precision.policy import current
from minidist.nn.tensor import Context, Function
from minidist.overrides import overridable


class Route:
    """Assignment of the tokens of one micro-batch, or sequence chunk, to rows of the experts.

    Args:
        chosen: the experts of each token, integers (N, k).
        experts: E, the number of experts.
        capacity: most tokens that an expert takes; None for no limit.

    Attributes:
        order: integers (R,), each row's number among the k N choices, counted token by token.
        token: integers (R,), each row's token.
        rows: integers (N, k), each choice's row; -1 for a dropped choice.
        counts: number of rows of each expert: E Python integers. (On a GPU the host waits for them, and with a capacity
            also for the number of all rows.)
    """

    def __init__(self, chosen, experts: int, capacity: int | None) -> None:
        self.order, counts = sort_by_expert(chosen, experts, capacity)
        self.token = self.order // chosen.shape[1]
        rows = xp.full(chosen.size, -1)
        rows[self.order] = xp.arange(len(self.order))
        self.rows = rows.reshape(chosen.shape)
        self.counts = to_host(counts).tolist()


@overridable
def sort_by_expert(chosen, experts: int, capacity: int | None):
    """Sort the choices by expert, each expert's in the order of the tokens, and count the choices of each expert.

    Args:
        chosen: integers (N, k).
        experts: E.
        capacity: largest number of choices that an expert takes, the first ones; None for all.

    Returns:
        Numbers of choices (a token has k consecutive numbers), integers (R,), and counts, integers (E,).
    """
    flat = chosen.reshape(-1)  # (N k,)
    order = xp.argsort(flat, kind="stable")
    counts = counts_of(flat, experts)  # (E,)
    if capacity is None:
        return order, counts
    first = xp.cumsum(counts) - counts  # (E,): the start of each expert's choices
    place = xp.arange(len(order)) - first[flat[order]]  # (N k,): place among the choices of the same expert
    return order[place < capacity], xp.minimum(counts, capacity)


class Dispatch(Function):
    """Copies of each token for its experts, sorted by expert: (N, C) to (R, C). Gradients add up."""

    @staticmethod
    def forward(ctx: Context, x, route: Route):
        ctx.save_for_backward(route.rows)
        return x[route.token]

    @staticmethod
    def backward(ctx: Context, gradient):
        (rows,) = ctx.saved_arrays
        gradient = with_zeros(gradient)
        total = xp.zeros((len(rows), gradient.shape[1]))  # float64: rounded once, on arrival
        for j in range(rows.shape[1]):
            total += gradient[rows[:, j]]
        return total, None


class Combine(Function):
    """Weighted sum of the rows of each token: (R, C) and (N, k) to (N, C)."""

    @staticmethod
    def forward(ctx: Context, rows, weights, route: Route):
        ctx.save_for_backward(rows, route.order, route.token, route.rows, exact=(weights,))
        return combine_rows(rows, weights, route.rows)

    @staticmethod
    def backward(ctx: Context, gradient):
        return *combine_rows_backward(gradient, *ctx.saved_arrays), None


@overridable
def combine_rows(rows, weights, places):
    """Return each token's weighted sum of its experts' outputs, added in the order of its choices.

    Args:
        rows: (R, C)
        weights: (N, k)
        places: the row of each choice, integers (N, k); -1 for a dropped choice, which counts as 0.

    Returns:
        (N, C)
    """
    rows = with_zeros(rows)
    total = xp.zeros((len(weights), rows.shape[1]), rows.dtype)
    for j in range(weights.shape[1]):
        total += weights[:, j, None] * rows[places[:, j]]
    return total


@overridable
def combine_rows_backward(gradient, rows, order, token, places, weights):
    """Return the gradients of ``combine_rows`` for its rows (R, C) and weights (N, k), from its output's (N, C).

    Args:
        order, token: integers (R,), the choice of each row, and its token.
    """
    per_row = gradient[token]  # (R, C)
    grad_weights = xp.zeros(weights.size, weights.dtype)
    grad_weights[order] = current().kernels.dot_each(per_row, rows)  # dropped choices have no gradient
    return per_row * weights.reshape(-1)[order][:, None], grad_weights.reshape(weights.shape)


def with_zeros(rows):
    """Append a row of zeros, number -1, to rows (R, C)."""
    return xp.concatenate([rows, xp.zeros((1, rows.shape[1]), rows.dtype)])


dispatch, combine = Dispatch.apply, Combine.apply
