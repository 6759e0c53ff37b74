"""The router chooses the experts that a token uses, and the weight of each.

    logits = x W                            in float32, whatever the precision of the rest
    scores = softmax(logits)                or sigmoid(logits), each expert by itself (DeepSeek-V3)
    chosen = the k highest of score + bias  ties go to the lower index
    weight = score of the chosen            without the bias; for k > 1 divided by their sum

The choice has no gradient: the router learns through the weights alone. So for k = 1 a weight must not be divided by
"the sum", which is itself: it would be 1 whatever the router says, and nothing of the main loss would reach the router.

Shazeer et al., "Outrageously Large Neural Networks" (2017); Fedus et al., "Switch Transformers" (2021), for k = 1;
DeepSeek-AI, "DeepSeek-V3 Technical Report" (2024), section 2.1.2, for sigmoid, bias and node limits.

**Bits.** Choices are discontinuous: one different bit in a logit sends a token elsewhere. The product is taken over the
whole micro-batch (or sequence chunk) at once, even if its tokens are split later.
"""

from minidist.backend import xp
from minidist.nn.config import MoEConfig
from minidist.nn.layers import Module, Parameter
from minidist.nn.llama_operations import sigmoid
from minidist.nn.moe.balance import AddBalanceLoss, AddZLoss, Balance
from minidist.nn.precision.policy import current
from minidist.nn.tensor import Context, Function, Tensor
from minidist.overrides import overridable


class RouterLogits(Function):
    """Product x W, (N, C) by (C, E): its output is not rounded to 16 bits, nor its factors to 8."""

    gradient_flops = 1, 1

    @staticmethod
    def flops(output, x, *rest) -> int:
        return 2 * output.size * x.shape[-1]

    @staticmethod
    def forward(ctx: Context, x, weight):
        ctx.rounds = False
        ctx.save_for_backward(x, weight)
        return ctx.policy.kernels.matmul_each(x[None], weight[None])[0]  # (N, E)

    @staticmethod
    def backward(ctx: Context, gradient):
        x, weight = ctx.saved_arrays
        one, rows, matmul_each = gradient[None], x.T[None], ctx.policy.kernels.matmul_each
        return matmul_each(one, weight.T[None])[0], matmul_each(rows, one)[0]


class Scores(Function):
    """Softmax over the experts, or a sigmoid for each of them: (N, E) -> (N, E)."""

    @staticmethod
    def forward(ctx: Context, logits, gate: str):
        ctx.gate, ctx.rounds = gate, False
        if gate == "sigmoid":
            scores = sigmoid(logits)
        else:
            scores = ctx.policy.functions.exp(logits - logits.max(axis=1, keepdims=True))
            scores /= ctx.policy.kernels.row_sums(scores)[:, None]
        ctx.save_for_backward(exact=(scores,))
        return scores

    @staticmethod
    def backward(ctx: Context, gradient):
        (scores,) = ctx.saved_arrays
        if ctx.gate == "sigmoid":
            return gradient * scores * (1 - scores), None
        return scores * (gradient - ctx.policy.kernels.row_sums(gradient * scores)[:, None]), None


class GateWeights(Function):
    """Scores of the chosen experts, (N, E) -> (N, k); with ``normalize`` divided by their sum."""

    @staticmethod
    def forward(ctx: Context, scores, chosen, normalize: bool):
        ctx.rounds, ctx.experts, ctx.normalize = False, scores.shape[1], normalize
        weights = xp.take_along_axis(scores, chosen, axis=1)  # (N, k)
        total = ctx.policy.kernels.row_sums(weights)[:, None] + 1e-20  # (N, 1): sigmoids may all be 0
        if normalize:
            weights = weights / total
        ctx.save_for_backward(chosen, exact=(weights, total))
        return weights

    @staticmethod
    def backward(ctx: Context, gradient):
        chosen, weights, total = ctx.saved_arrays
        if ctx.normalize:
            gradient = (gradient - ctx.policy.kernels.row_sums(gradient * weights)[:, None]) / total
        grad_scores = xp.zeros((len(chosen), ctx.experts), gradient.dtype)
        grad_scores[xp.arange(len(chosen))[:, None], chosen] = gradient  # a token chooses k different experts
        return grad_scores, None, None


@overridable
def top_k_experts(scores, k: int):
    """Return the k experts with the highest scores of each token, highest first; if equal, the lower index first.

    Args:
        scores: (N, E)

    Returns:
        integers (N, k)
    """
    return xp.argsort(-scores, axis=1, kind="stable")[:, :k]


def within_nodes(scores, nodes: int, most: int, k: int):
    """Return scores (N, E) with -inf for the experts outside of each token's ``most`` best nodes.

    A node is worth the sum of its k / ``most`` highest scores (DeepSeek-V3, section 2.1.2).
    """
    count, experts = scores.shape
    by_node = scores.reshape(count, nodes, experts // nodes)  # (N, nodes, E / nodes)
    counted = min(-(-k // most), by_node.shape[2])
    worth = current().kernels.row_sums(xp.sort(by_node, axis=2)[:, :, -counted:])  # (N, nodes)
    allowed = xp.zeros((count, nodes), bool)
    allowed[xp.arange(count)[:, None], top_k_experts(worth, most)] = True
    return xp.where(allowed[:, :, None], by_node, -xp.inf).reshape(scores.shape)


class Router(Module):
    """Router of a mixture: chooses the experts of each token, and their weights.

    Args:
        config: settings of the mixture.
        width: C.
        std: standard deviation of the initial weights.
        layer: number of this mixture in the model, counted from 0.
        balance: loads and biases of all mixtures of the model.
    """

    def __init__(self, config: MoEConfig, width: int, std: float, layer: int, balance: Balance) -> None:
        self.weight = Parameter((width, config.experts), std=std, decay=True)
        self.config, self.layer, self.balance = config, layer, balance

    def forward(self, x: Tensor) -> tuple[Tensor, object]:
        """Return the weights (N, k) and the numbers (N, k) of the experts chosen for tokens (N, C)."""
        config = self.config
        logits = RouterLogits.apply(x, self.weight)  # (N, E)
        logits = AddZLoss.apply(logits, self.balance) if config.z_loss else logits
        scores = Scores.apply(logits, config.gate)  # (N, E)
        chosen = self.choose(scores.data)
        scores = AddBalanceLoss.apply(scores, chosen, self.layer, self.balance)
        return GateWeights.apply(scores, chosen, config.top_k > 1), chosen

    def choose(self, scores):
        """Choose the experts of each token, integers (N, k), by its scores (N, E)."""
        config = self.config
        ranking = scores + self.balance.bias[self.layer]
        if config.route_nodes:
            ranking = within_nodes(ranking, config.expert_nodes, config.route_nodes, config.top_k)
        return top_k_experts(ranking, config.top_k)
