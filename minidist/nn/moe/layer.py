"""The mixture of experts as a layer: what stands in a transformer block in place of its MLP."""

from minidist.backend import xp
from minidist.nn.layers import Module
from minidist.nn.moe.experts import Experts
from minidist.nn.moe.permutation import Route, combine, dispatch
from minidist.nn.moe.router import Router
from minidist.nn.tensor import Context, Function, Tensor


class Tokens(Function):
    """The tokens one after the other: (B, T, C) -> (N, C).

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
    """(B, T, C) -> (B, T, C): each token through k of E experts, and through the shared expert if there is one.

    Args:
        router, experts: its parts.
        shared: an MLP for all tokens, or None.
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
        """What the router needs: all tokens of the micro-batch, or of the sequence chunk."""
        return x

    def leave(self, y: Tensor) -> Tensor:
        """What follows the mixture gets: all tokens."""
        return y
