"""The experts, and the mixture that replaces the MLP of a transformer block.

The experts are E MLPs with their own weights; each computes the rows that were sent to it.

The weights of all experts are in one array. Each expert's rows take a product of their own; on GPUs one kernel computes
all of them at once, a *grouped GEMM*. There are no biases, as in Mixtral and DeepSeek.

**Bits.** The grain of a mixture is the (micro-batch, expert), its tokens in their order: the first rows of a product
may have other bits than the product of the first rows. A rank that gets rows from several micro-batches multiplies them
grain by grain, and each grain leaves its own term in the gradient of the weights.
"""

from collections.abc import Callable
from itertools import accumulate, pairwise
from math import sqrt

from minidist.backend import xp
from minidist.nn import functional
from minidist.nn.chunks import TakeTokens
from minidist.nn.config import GPTConfig
from minidist.nn.layers import Module, Parameter
from minidist.nn.llama_operations import silu_gate
from minidist.nn.moe.balance import Balance
from minidist.nn.moe.permutation import Route, combine, dispatch
from minidist.nn.moe.router import Router
from minidist.nn.tensor import Context, Function, Tensor

Counts = list[int]  # number of rows of each expert


class GroupedLinear(Function):
    """Products of each expert's rows and weight, head by head: (H, R, in) -> (H, R, out).

    With ``partial`` the output is a term of the sum over heads, not rounded yet.
    """

    gradient_flops, factors = (1, 1), 2

    @staticmethod
    def flops(output, x, *rest) -> int:
        return 2 * output.size * x.shape[-1]

    @staticmethod
    def forward(ctx: Context, x, weight, counts: Counts, partial: bool):
        ctx.rounds, ctx.counts = not partial, counts
        ctx.save_for_backward(x, weight)
        y = xp.empty((*x.shape[:2], weight.shape[3]), x.dtype)  # (H, R, out)
        for expert, rows in groups(counts):
            factors = ctx.policy.round_operand(x[:, rows]), ctx.policy.round_operand(weight[:, expert])
            y[:, rows] = ctx.policy.matmul(*factors)
        return y

    @staticmethod
    def backward(ctx: Context, gradient):
        x, weight = ctx.saved_factors
        grad_x = xp.empty(x.shape, x.dtype) if ctx.needs_input_grad[0] else None
        grad_weight = xp.zeros(weight.shape, weight.dtype) if ctx.needs_input_grad[1] else None
        for expert, rows in groups(ctx.counts):
            grad_rows = ctx.policy.round_grad_operand(gradient[:, rows])  # (H, rows, out)
            if grad_x is not None:
                matrix = ctx.policy.round_operand(weight[:, expert])  # (H, in, out)
                grad_x[:, rows] = ctx.policy.matmul(grad_rows, matrix.swapaxes(1, 2))
            if grad_weight is not None:
                inputs = ctx.policy.round_operand(x[:, rows])  # (H, rows, in)
                grad_weight[:, expert] = ctx.policy.matmul(inputs.swapaxes(1, 2), grad_rows)
        return grad_x, grad_weight, None, None


def groups(counts: Counts):
    """Yield each expert that has rows, and the slice of its rows."""
    for expert, (first, last) in enumerate(pairwise(accumulate(counts, initial=0))):
        if last > first:
            yield expert, slice(first, last)


class TakeRows(TakeTokens):
    """Slice of the rows (R, C): those of one grain."""

    @staticmethod
    def forward(ctx: Context, x, rows: slice):
        ctx.rounds, ctx.grad_dtype = False, xp.float64  # the heads' gradients are terms of a sum
        return TakeTokens.forward(ctx, x, rows)


class JoinRows(Function):
    """Rows of all grains in one array, grain after grain: (H, r, C) each to (H, R, C)."""

    @staticmethod
    def forward(ctx: Context, *parts):
        ctx.rounds = False  # terms of a sum, not rounded yet
        ctx.ends = list(accumulate(part.shape[1] for part in parts))
        return xp.concatenate(parts, 1)

    @staticmethod
    def backward(ctx: Context, gradient):
        return tuple(gradient[:, first:last] for first, last in pairwise([0, *ctx.ends]))


class Experts(Module):
    """E MLPs: rows (R, C), sorted by grain and within it by expert, to rows (R, C).

    Args:
        heads: H. Each has 1/H of every expert's hidden units.
        experts: E.
        width, hidden: C, and the hidden units of one expert.
        std, out_std: standard deviations of the initial weights, into and out of the hidden units.
        gated: whether hidden units have a gate, as in SwiGLU; otherwise they are GELUs.
    """

    def __init__(
        self, heads: int, experts: int, width: int, hidden: int, std: float, out_std: float, gated: bool = False
    ) -> None:
        self.activation = silu_gate if gated else functional.gelu
        self.fc = Parameter((heads, experts, width, (1 + gated) * hidden // heads), std=std, decay=True)
        self.proj = Parameter((heads, experts, hidden // heads, width), std=out_std, decay=True)
        for weight in (self.fc, self.proj):
            weight.expert_axis = 1

    def forward(self, x: Tensor, counts: list[Counts]) -> Tensor:
        """Apply the experts to the rows of some grains, each with its ``counts``: (R, C) -> (R, C)."""
        x = self.enter(x)  # (R, C)
        ends = accumulate(map(sum, counts), initial=0)
        grains = [x] if len(counts) == 1 else [TakeRows.apply(x, slice(*rows)) for rows in pairwise(ends)]
        parts = [self.grain(*each) for each in zip(grains, counts, strict=True)]  # (H, r, C) each
        return self.leave(parts[0] if len(parts) == 1 else JoinRows.apply(*parts))  # (R, C)

    def grain(self, x: Tensor, counts: Counts) -> Tensor:
        """Compute one grain: (r, C) to the heads' partial sums (H, r, C)."""
        x = functional.copy_to_heads(x, self.fc.shape[0])  # (H, r, C)
        hidden = self.activation(GroupedLinear.apply(x, self.fc, counts, False))  # (H, r, hidden / H)
        return GroupedLinear.apply(hidden, self.proj, counts, True)  # (H, r, C)

    def enter(self, x: Tensor) -> Tensor:
        """Enter the heads: f of Megatron-LM if they are on several ranks."""
        return x

    def leave(self, y: Tensor) -> Tensor:
        """Sum over the heads, (H, R, C) to (R, C): also g of Megatron-LM if they are on several ranks."""
        return functional.reduce_from_heads(y)


class Tokens(Function):
    """Tokens of all samples along one axis: (B, T, C) -> (N, C).

    Router, experts and the shared expert all read them; the gradients of the three are added in float64.
    """

    @staticmethod
    def forward(ctx: Context, x):
        ctx.input_shape, ctx.rounds, ctx.grad_dtype = x.shape, False, xp.float64
        return x.reshape(-1, x.shape[-1])

    @staticmethod
    def backward(ctx: Context, gradient):
        return gradient.reshape(ctx.input_shape)


class MoE(Module):
    """Mixture of experts, (B, T, C) -> (B, T, C): k of E experts for each token, and the shared expert if there is one.

    Args:
        router, experts: parts of the mixture.
        shared: the shared expert, an MLP for all tokens; or None.
    """

    def __init__(self, router: Router, experts: Experts, shared: Module | None) -> None:
        self.router, self.experts, self.shared = router, experts, shared

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)  # (B, T, C)
        tokens = Tokens.apply(x)  # (N, C)
        weights, chosen = self.router(tokens)  # (N, k) each
        config = self.router.config
        route = Route(chosen, config.experts, config.rows_at_most(len(tokens.data)))
        rows = self.experts(dispatch(tokens, route), [route.counts])  # (R, C)
        y = combine(rows, weights, route)  # (N, C)
        if self.shared is not None:
            y = y + self.shared(tokens)
        return self.leave(y.reshape(*x.shape))  # (B, T, C)

    def enter(self, x: Tensor) -> Tensor:
        """Return the input of the router: all tokens of the micro-batch, or of the sequence chunk."""
        return x

    def leave(self, y: Tensor) -> Tensor:
        """Return the output of the mixture, as the next layer takes it: all tokens."""
        return y


def mixture(config: GPTConfig, layer: int, balance: Balance | None, mlp: Callable[..., Module], std: float) -> MoE:
    """Return the mixture that replaces a layer's ``mlp``. std: standard deviation of the initial weights."""
    moe, out_std = config.moe, std / sqrt(2 * config.layers)
    assert moe and balance
    router = Router(moe, config.width, std, config.sparse_layers.index(layer), balance)
    hidden = moe.expert_hidden or config.hidden_units
    experts = Experts(config.heads, moe.experts, config.width, hidden, std, out_std, gated=config.arch == "llama")
    return MoE(router, experts, mlp(config, moe.shared_expert) if moe.shared_expert else None)
