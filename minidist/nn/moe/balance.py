"""Balance: keeping the experts evenly loaded, so that none is idle and no rank waits for the one that all tokens chose.

A router that sends a few more tokens to one expert trains that expert more, which then attracts more tokens still.
Two remedies, and a loss that keeps the router itself stable:

- The balance loss, E sum_i f_i P_i, with f_i the share of the choices that went to expert i and P_i the mean of its
  score (Switch Transformers, 2021, equation 4). It is 1 where all is even. Counts have no gradient: the loss pushes the
  scores of experts down in proportion to their counts. The objective depends on whose tokens are counted: those of
  one micro-batch (and, with sequence chunks, of one chunk: the groups of GShard, 2020), or of the global batch (Qiu et
  al., "Demons in the Detail", 2025).
- A bias for each expert in the choice alone, not in the weights, moved by a fixed step after each step: down where the
  expert got more than the mean, up where it got less. No loss, so no gradient that pulls against the model's own
  (Wang et al., "Auxiliary-Loss-Free Load Balancing", 2024; DeepSeek-V3).
- The z-loss, the mean square of logsumexp(logits), keeps the logits small. It does not balance (Zoph et al., "ST-MoE",
  2022).

Neither loss is part of the loss that is reported. Each is a node in the graph that passes its input on, and in backward
adds the gradient of its loss, times the scale of the main loss (Megatron-LM's ``MoEAuxLossAutoScaler``). So it works in
every stage of a pipeline, although only the last one has the main loss.

**Counting once.** Tokens are counted in backward, which runs once for each micro-batch. Forward may run twice
(recomputation) or alone (evaluation). Counts are integers, the same in all layouts.

Simplified: with ``global_batch``, f comes from the step before, since a step's own counts are known only when its last
micro-batch has been routed, and by then the first one's backward is over. So the first step has no balance loss.
Megatron-LM sums the counts of all ranks over the micro-batches so far; how many these are depends on dp.
"""

import numpy as np

from minidist.backend import from_host, to_host, xp
from minidist.nn.config import MoEConfig
from minidist.nn.kernels import counts_of
from minidist.nn.precision.policy import current
from minidist.nn.tensor import Context, Function
from minidist.overrides import overridable


class Balance:
    """State that the routers of a model share: counts and biases of L routers with E experts each.

    Args:
        config: settings of the mixtures.
        layers: L.
        chunks: number of sequence chunks in a micro-batch.

    Attributes:
        tally: integers (L, E + 2), counts of this step so far on this rank. Each row: the number of tokens that chose
            each expert, the number of these choices that were dropped for lack of capacity, and the number of
            different nodes that a token chose, summed over tokens.
        last: the tally of the step before, over all ranks.
        bias: (L, E) float32, added to the scores when experts are chosen.
        loss_scale: factor by which the main loss is multiplied (nn/precision/underflow.py).
    """

    def __init__(self, config: MoEConfig, layers: int, chunks: int = 1) -> None:
        self.config = config
        self.share = 1 / chunks  # of a micro-batch's losses: each sequence chunk adds its own
        self.tally = xp.zeros((layers, config.experts + 2), xp.int64)
        self.last = xp.zeros_like(self.tally)
        self.bias = xp.zeros((layers, config.experts), xp.float32)
        self.loss_scale = 1.0

    def begin(self) -> None:
        """Begin a step: set the counts to 0."""
        self.tally[:] = 0

    def end(self) -> None:
        """End a step, once ``tally`` has the sums over all ranks: move the biases.

        Call it also after a step that the optimizer skipped because float16 overflowed: its tokens were routed, too.
        """
        self.last = self.tally.copy()
        if self.config.bias_rate:
            self.bias = moved_bias(self.bias, self.last[:, : self.config.experts], self.config.bias_rate)

    def state(self) -> dict:
        """Return every array that the next steps depend on, by name."""
        return {"router_bias": self.bias, "router_counts": self.last.astype(xp.float64)}  # exact below 2^53

    def load_state(self, arrays: dict) -> None:
        """Load the arrays that ``state`` returned, as NumPy arrays."""
        self.bias = from_host(arrays["router_bias"])
        self.last = from_host(arrays["router_counts"].astype(np.int64))

    def report(self):
        """Return ``last`` in host memory."""
        return to_host(self.last)


@overridable
def moved_bias(bias, counts, rate: float):
    """Return the next step's biases: ``rate`` lower if an expert had more tokens than the mean, higher if fewer.

    Args:
        bias: (L, E)
        counts: integers (L, E), tokens that chose each expert.
    """
    experts = counts.shape[1]
    excess = experts * counts - counts.sum(axis=1, keepdims=True)  # exact: in 16 bits it may get the wrong sign
    return bias - xp.float32(rate) * xp.sign(excess).astype(bias.dtype)


@overridable
def balance_loss_gradient(scores, shares, coefficient: float, normalized: bool):
    """Return the gradient of ``coefficient`` E sum_i f_i P_i with respect to the scores, f taken as constant.

    Args:
        scores: (N, E)
        shares: f, (E,): the share of all choices that went to each expert.
        coefficient: coefficient of the loss.
        normalized: whether a token's scores add up to 1. If not, P is the mean of scores divided by their sum.

    Returns:
        (N, E)
    """
    count, experts = scores.shape
    slope = (coefficient * experts / max(1, count) * shares).astype(scores.dtype)  # (E,) of the loss, by probability
    if normalized:
        return xp.broadcast_to(slope, scores.shape)
    row_sums = current().kernels.row_sums
    total = row_sums(scores)[:, None] + 1e-20  # (N, 1)
    return (slope - row_sums(scores / total * slope)[:, None]) / total


class AddBalanceLoss(Function):
    """Identity on scores (N, E). Backward adds the gradient of the balance loss, and counts the choices."""

    @staticmethod
    def forward(ctx: Context, scores, chosen, layer: int, balance: Balance):
        ctx.rounds, ctx.layer, ctx.balance = False, layer, balance
        ctx.save_for_backward(chosen, exact=(scores,))
        return scores

    @staticmethod
    def backward(ctx: Context, gradient):
        chosen, scores = ctx.saved_arrays
        config, tally, layer = ctx.balance.config, ctx.balance.tally, ctx.layer
        found = tally_of(chosen, config, len(scores))
        tally[layer] += found
        if config.aux_loss:
            counts = (found if config.aux_scope == "micro_batch" else ctx.balance.last[layer])[: config.experts]
            shares = counts / xp.maximum(counts.sum(), 1)  # (E,) float64
            coefficient = config.aux_loss * ctx.balance.share * ctx.balance.loss_scale
            gradient = gradient + balance_loss_gradient(scores, shares, coefficient, config.gate == "softmax")
        return gradient, None, None, None


class AddZLoss(Function):
    """Identity on logits (N, E). Backward adds the gradient of the mean square of their logsumexp."""

    @staticmethod
    def forward(ctx: Context, logits, balance: Balance):
        ctx.rounds, ctx.balance = False, balance
        ctx.save_for_backward(exact=(logits,))
        return logits

    @staticmethod
    def backward(ctx: Context, gradient):
        (logits,) = ctx.saved_arrays
        largest = logits.max(axis=1, keepdims=True)
        exps = ctx.policy.functions.exp(logits - largest)
        total = ctx.policy.kernels.row_sums(exps)[:, None]  # (N, 1)
        balance = ctx.balance
        coefficient = 2 * balance.config.z_loss * balance.share * balance.loss_scale / max(1, len(logits))
        return gradient + exps / total * (coefficient * (ctx.policy.functions.log(total) + largest)), None


def tally_of(chosen, config: MoEConfig, tokens: int):
    """Return a row of ``Balance.tally`` for the choices (N, k) of one micro-batch: integers (E + 2,)."""
    counts = counts_of(chosen.reshape(-1), config.experts)  # (E,)
    most = config.rows_at_most(tokens)
    dropped = xp.zeros_like(counts) if most is None else xp.maximum(counts - most, 0)
    node = xp.sort(chosen // (config.experts // config.expert_nodes), axis=1)  # (N, k)
    visits = tokens + (node[:, 1:] != node[:, :-1]).sum()
    return xp.concatenate([counts, xp.stack([dropped.sum(), visits])])
