"""Chapter 14: planning a run: bytes, FLOPs, seconds, days and money of a layout, before it runs.

**A run** is a model, a cluster, a batch and a layout. GPUs are numbered so that tensor-parallel ranks are neighbours,
then data-parallel ones, then the stages of the pipeline: a tensor-parallel group's ranks are 1 apart, a data-parallel
group's tp, a pipeline's tp x dp. The GPUs of a node have consecutive numbers.

Count every number here as the text says; then all of it can be computed. minidist's own planner, ``minidist/plan/``,
counts more parts, and how fast real kernels are. One function has the name and the arguments of minidist's own, so the
library can train with it:

    minidist verify --impl exercises dp=2,zero=1 tp=2 --optimizer lamb

You may use the imports below, NumPy, and what you write here. ``minidist check 14`` grades this file,
``minidist check --hint 14.5`` gives a hint.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, expm1, inf, log, sqrt

import numpy as np

from minidist.nn.optim.clip import grid_scale, largest_magnitude, squares_on_grid

Join = Callable[[np.ndarray], np.ndarray]  # joins a vector with those of all ranks


@dataclass(frozen=True)
class Model:
    """Given: a transformer like Llama 3: no biases, a gated MLP, embedding and head with weights of their own."""

    layers: int  # L
    width: int  # h
    heads: int  # of queries; each has h / heads elements
    kv_heads: int  # of keys, and as many of values; each as wide
    hidden: int  # f, hidden units of the MLP
    vocab: int  # V
    context: int  # T, tokens in a sequence


@dataclass(frozen=True)
class Layout:
    """Given: how a run is split."""

    dp: int = 1
    tp: int = 1  # where it is more than 1, with sequence parallelism
    pp: int = 1
    virtual: int = 1  # v, chunks of layers on each pipeline rank: 1 is 1F1B, more is the interleaved schedule
    zero: int = 0
    recompute: str = "none"  # or "mlp" or "full"
    micro_batch: int = 1  # sequences

    @property
    def gpus(self) -> int:
        return self.dp * self.tp * self.pp


@dataclass(frozen=True)
class Cluster:
    """Given: the GPUs that a run has."""

    gpus: int
    node: int  # GPUs in one
    memory: float  # bytes of a GPU
    flops: float  # FLOP/s of a GPU
    fast: float  # bytes/s that a GPU sends within its node
    slow: float  # and between nodes, all GPUs of a node at the same time


# 14.1  Worksheet: model states
#
# A layer has four matrices in attention: h x h for queries and for the output, h x (h / heads x kv_heads) for keys and
# for values; three in the MLP: gate and up h x f, down f x h; and two norms of h elements. Around the layers are an
# embedding of V x h, one more norm, and a head of h x V.


def layer_parameters(model: Model) -> int:
    """The parameters of one layer."""
    raise NotImplementedError("task 14.1")


def model_parameters(model: Model) -> int:
    """All parameters. Llama 3 405B has 405,853,388,800."""
    raise NotImplementedError("task 14.1")


def stage_parameters(model: Model, tp: int, pp: int, stage: int) -> float:
    """The parameters that one GPU of a pipeline stage has, before ZeRO.

    Every stage has L / pp layers, the first one the embedding too, the last one the last norm and the head (with pp = 1
    one stage has everything). Tensor parallelism splits every matrix evenly, the embedding and the head among them.
    Each of its ranks has all of the norms.
    """
    raise NotImplementedError("task 14.1")


def state_bytes(parameters: float, replicas: int, zero: int, gradient: int) -> float:
    """The bytes of a GPU that has this many parameters before ZeRO shards them over ``replicas`` GPUs.

    2 for each parameter, 12 for its optimizer state, and ``gradient`` (2 or 4) for its gradient. ZeRO 1 shards the
    optimizer state, 2 the gradients too, 3 the parameters too. Count nothing that is gathered.
    """
    raise NotImplementedError("task 14.1")


def fullest_state_bytes(model: Model, layout: Layout, gradient: int) -> float:
    """The bytes of model states on the GPU that has the most."""
    raise NotImplementedError("task 14.1")


# 14.2  Worksheet: activations in a pipeline
#
# What one layer keeps of a micro-batch of n tokens, on each of t tensor-parallel ranks, with flash attention:
#
#   the inputs of both norms, of attention and of the MLP     4 arrays of n h          2 bytes each element
#   queries, and what attention returns                       2 arrays of n h          2
#   keys and values                                           2 arrays of n kv_heads (h / heads)    2
#   a statistic for each row of attention's softmax           n heads                  4
#   gate, up, and their product                               3 arrays of n f          2
#
# Sequence parallelism splits the first line over the t ranks, tensor parallelism all others. Three modes: "none" keeps
# all of it; "mlp" computes the last line again from the MLP's input; "full" keeps only the input of the first norm.


def layer_activations(model: Model, layout: Layout) -> float:
    """The bytes that one layer keeps of one micro-batch, on one rank."""
    raise NotImplementedError("task 14.2")


def chunks_in_flight(layout: Layout, stage: int, micro_batches: int) -> int:
    """The most pairs (micro-batch, chunk of layers) whose activations a pipeline rank holds at the same time.

    1F1B (virtual = 1): rank 0 holds pp micro-batches, each further rank one fewer. Interleaved: rank r runs
    2 (pp - r - 1) + (virtual - 1) pp forward passes before its first pair of a forward and a backward, and that forward
    adds one more. A rank never holds more than there are.
    """
    raise NotImplementedError("task 14.2")


def stage_activations(model: Model, layout: Layout, stage: int, batch: int) -> float:
    """The bytes of activations on one GPU of a pipeline rank, in a step of ``batch`` sequences.

    Each of its ``virtual`` chunks has L / (pp virtual) layers. The last rank also holds the logits of one micro-batch:
    n V numbers of 4 bytes, split over the tensor-parallel ranks. What recomputation brings back temporarily is not
    counted.
    """
    raise NotImplementedError("task 14.2")


# 14.3  Worksheet: FLOPs, and the shares that authors publish
#
# A product with a matrix of p elements is 2 p FLOPs for each token. The embedding is looked up: no FLOPs. Norms and
# other elementwise work do not count. In attention each token has a product with the keys and one with the values of
# ``T`` tokens: 2 h T FLOPs each in every layer. With a causal mask half of these pairs are wasted; some authors count
# them (PaLM, Megatron-LM), others do not (Llama 3). Backward takes twice as many FLOPs as forward.


def forward_flops(model: Model, causal: bool) -> float:
    """The FLOPs of forward for one token. ``causal``: count half of the pairs of tokens."""
    raise NotImplementedError("task 14.3")


def recomputed_flops(model: Model, causal: bool, recompute: str) -> float:
    """The FLOPs that backward computes once more for one token.

    "none": nothing. "mlp": gate and up, from the MLP's input (what comes after them is not needed again). "full": the
    forward of all layers, without the head.
    """
    raise NotImplementedError("task 14.3")


def utilization(model: Model, tokens_per_second: float, cluster: Cluster, causal: bool, recompute: str) -> float:
    """The share of the cluster's FLOP/s that a run uses.

    ``recompute``: "none" for MFU, where what is computed again does not count; the run's mode for HFU.
    """
    raise NotImplementedError("task 14.3")


def other_count(model: Model, mfu: float, causal: bool) -> float:
    """The MFU that authors who count the other way would publish. ``causal``: how ``mfu`` was counted."""
    raise NotImplementedError("task 14.3")


def training_days(model: Model, tokens: float, cluster: Cluster, mfu: float, causal: bool) -> float:
    """Days to train on these tokens at this MFU, counted in this way, if nothing fails."""
    raise NotImplementedError("task 14.3")


# 14.4  Worksheet: what a step waits for
#
# A group of N ranks that are ``stride`` apart all-gathers, or reduce-scatters, an array of M bytes (the whole one) in
# (N-1)/N M / B seconds, and all-reduces it in twice that. B is ``fast`` if all of them are on one node. If not, a ring
# enters and leaves each node over as many network cards as the group has ranks there: B = that many times ``slow``, but
# not more than ``fast`` where a node has several of them. N is a power of two, and so are strides and nodes.


def ranks_in_a_node(size: int, stride: int, node: int) -> int:
    """The number of ranks of such a group that share a node."""
    raise NotImplementedError("task 14.4")


def ring_bandwidth(size: int, stride: int, cluster: Cluster) -> float:
    """B."""
    raise NotImplementedError("task 14.4")


def tp_seconds(model: Model, layout: Layout, cluster: Cluster) -> float:
    """Seconds that a GPU waits for tensor parallelism in one micro-batch, in forward and backward of all its layers.

    In each layer forward gathers twice and scatters twice, arrays of n h elements of 2 bytes. Backward does the same.
    With recompute="full" forward's four come once more; with "mlp" one gather does, for the MLP's input is kept split.
    """
    raise NotImplementedError("task 14.4")


def dp_exposed(
    parameters: float, layout: Layout, cluster: Cluster, micro_batches: int, forward: float, backward: float
) -> float:
    """Seconds that a GPU waits for data parallelism in a step: what is not hidden of each collective.

    - ZeRO 0: one all-reduce of the gradients, behind the backward of the last micro-batch.
    - ZeRO 1: one reduce-scatter of the gradients behind it; one all-gather of parameters, behind the first forward.
    - ZeRO 3: in every micro-batch an all-gather of parameters behind forward, and behind backward an all-gather of
      parameters and a reduce-scatter of gradients, one after the other.

    Args:
        parameters: the parameters of this GPU, before ZeRO. Gradients have 4 bytes here, parameters 2.
        forward, backward: seconds of one micro-batch on this GPU.
    """
    raise NotImplementedError("task 14.4")


def step_seconds(slot: float, layout: Layout, micro_batches: int, exposed: float) -> float:
    """Seconds of a step; each micro-batch takes a rank ``slot`` seconds, data parallelism adds ``exposed`` seconds.

    In the bubble a rank waits for pp - 1 others, 1/virtual of a slot for each.
    """
    raise NotImplementedError("task 14.4")


# 14.5  Search


def legal_layouts(model: Model, cluster: Cluster, batch: int) -> list[Layout]:
    """14.5  All layouts of a model on a cluster, each once, in any order.

    A layout is legal if

    - it has exactly the cluster's GPUs;
    - tp divides kv_heads, and is not above the GPUs of a node;
    - pp x virtual divides the layers; virtual is 1 if pp is;
    - dp x micro_batch divides the batch (sequences in a step). Let m be the micro-batches of a rank in a step. Where
      virtual is more than 1, pp divides m;
    - zero is 0; with dp above 1 it may also be 1; with dp above 1 and pp = 1 it may also be 3;
    - recompute is "none", "mlp" or "full".

    There may be 100,000 GPUs: loops over all dp, tp and pp up to that number take too long.
    """
    raise NotImplementedError("task 14.5")


def best_layouts(
    layouts: Sequence[Layout],
    top: int,
    limit: float,
    memory: Callable[[Layout], float],
    bound: Callable[[Layout], float],
    seconds: Callable[[Layout], float],
) -> list[Layout]:
    """14.5  The ``top`` quickest layouts that fit, by branch and bound: the quickest first.

    ``seconds`` is slow, so call it for as few layouts as possible: never twice for the same, for none that does not
    fit, and, if ``top`` layouts fit, for none whose bound is above the seconds of the last one that you return.

    Args:
        layouts: not modified; they can be dict keys.
        top: 1 or more. limit: bytes; a layout fits if it needs as much or less.
        memory: the bytes of a layout. bound: a lower bound of its seconds. Both are quick: call them as you like.
        seconds: the seconds of a layout. No two have the same.

    Returns:
        ``top`` layouts, or all that fit if those are fewer.
    """
    raise NotImplementedError("task 14.5")


def summary(model: Model, layout: Layout, accumulation: int) -> tuple[int, float, float]:
    """14.6  Debugging: a page of a proposal.

    Someone wrote this for a proposal, and checked it against a run on 8 GPUs with plain data parallelism: every number
    was right. For dp=8, tp=8, pp=8 and 8 micro-batches it promises a batch of 512 sequences; the run will have 64.
    Bytes are wrong too. Find out why, and fix it: there are four errors.

    Args:
        layout: with ZeRO 0 or 1, virtual = 1, and a number of layers that pp divides.
        accumulation: micro-batches of each replica in a step; at least pp.

    Returns:
        Sequences in a step; bytes of model states on a GPU, on average over the pipeline (2 for a parameter, 4 for its
        gradient, 12 for its optimizer state; every parameter is split over all tensor-parallel ranks here); and bytes
        of activations on the pipeline's first rank, with 1F1B.
    """
    sequences = layout.micro_batch * accumulation * layout.dp * layout.pp
    mine = model_parameters(model) / layout.tp
    gradients = 4 * mine / accumulation
    optimizer = 12 * mine / (layout.dp if layout.zero else 1)
    states = 2 * mine + gradients + optimizer
    layers = model.layers // layout.pp
    in_flight = accumulation
    return sequences, states, in_flight * layers * layer_activations(model, layout)


# 14.7  Worksheet: days and money, with failures
#
# Any GPU's failure stops all of them. A GPU fails every ``gpu_mtbf`` seconds on average, so the cluster's mean time
# between failures is M = gpu_mtbf / gpus. Every tau = sqrt(2 delta M) seconds of training (Young, 1974) a save stops it
# for delta; a failure costs what was trained since the last save, and R until training goes on. Then the useful share
# of all time is (Daly, 2006)
#
#     (tau / M) exp(-R / M) / (exp((tau + delta) / M) - 1)


def useful_share(gpu_mtbf: float, gpus: int, save: float, restart: float) -> float:
    """The useful share of all time; ``save`` is delta, ``restart`` is R."""
    raise NotImplementedError("task 14.7")


def run_seconds(tokens: float, tokens_per_second: float, share: float) -> float:
    """Seconds that a run takes in all, if it processes ``tokens_per_second`` in its useful time."""
    raise NotImplementedError("task 14.7")


def failures_of(seconds: float, gpu_mtbf: float, gpus: int) -> float:
    """The expected number of failures in a run of this length."""
    raise NotImplementedError("task 14.7")


def run_cost(seconds: float, gpus: int, price: float) -> float:
    """The cost of a run; ``price``: of one GPU for an hour. All GPUs are paid for from its first second to its last."""
    raise NotImplementedError("task 14.7")


def fewest_gpus(
    tokens: float, speed: float, days: float, node: int, most: int, gpu_mtbf: float, save: float, restart: float
) -> int:
    """The fewest GPUs, in whole nodes, that process all tokens within ``days``.

    Args:
        speed: tokens/s of one GPU; n GPUs are n times as fast. node: GPUs in one. most: the GPUs that are available.

    Raises:
        ValueError: if no number of up to ``most`` is enough. (With more GPUs more of the time is lost.)
    """
    raise NotImplementedError("task 14.7")


# 14.8  Scaling laws


@dataclass(frozen=True)
class Law:
    """Given: L(N, D) = E + A / N^alpha + B / D^beta, in nats per token; training takes 6 N D FLOPs."""

    E: float
    A: float
    B: float
    alpha: float
    beta: float

    def loss(self, parameters: float, tokens: float) -> float:
        return self.E + self.A / parameters**self.alpha + self.B / tokens**self.beta


def best_size(law: Law, flops: float) -> tuple[float, float]:
    """14.8  Parameters N and tokens D of the run with the lowest loss for a budget of ``flops``.

    Along D = C / 6N, the loss is lowest where its derivative with respect to log N is zero.
    """
    raise NotImplementedError("task 14.8")


def tokens_to_reach(law: Law, loss: float, parameters: float) -> float:
    """14.8  The tokens after which a model of this size has this loss; ``inf`` if it never reaches it."""
    raise NotImplementedError("task 14.8")


def cheapest(law: Law, loss: float, served: float = 0.0) -> tuple[float, float]:
    """14.8  N and D of the model with this loss that costs the fewest FLOPs, in training and in use.

    Training takes 6 N D FLOPs, and each of the ``served`` tokens that the model will write or read takes 2 N. The loss
    is above E. To five digits; there is one minimum.
    """

    def flops(log_size: float) -> float:
        """FLOPs of a model of exp(log_size) parameters."""
        raise NotImplementedError("task 14.8")

    raise NotImplementedError("task 14.8")


def overtraining(law: Law, parameters: float, tokens: float) -> float:
    """14.8  The training FLOPs of a run, divided by those of the cheapest one with the same loss: 1 or more."""
    raise NotImplementedError("task 14.8")


# 14.9  Worksheet: how large a batch may be (McCandlish et al., 2018, arXiv 1812.06162)
#
# A batch of B samples has the gradient G plus noise: the expected square of its norm is |G|^2 + S / B, where S is the
# sum of the variances of all elements for one sample. S / |G|^2 is the *noise scale*: about the batch up to which more
# samples help. A batch of B needs S_min (1 + B_crit / B) steps and E_min (1 + B / B_crit) samples to reach a loss.


def noise_scale(small: int, large: int, small_square: float, large_square: float) -> float:
    """S / |G|^2 from the mean squared norms of gradients of batches of ``small`` and of ``large`` samples."""
    raise NotImplementedError("task 14.9")


def critical_batch(small: tuple[float, float], large: tuple[float, float]) -> tuple[float, float, float]:
    """S_min, E_min and B_crit from two runs to the same loss, each as (batch, steps).

    B_crit is E_min / S_min. (Samples are batch times steps.)
    """
    raise NotImplementedError("task 14.9")


def batch_after(samples: int, start: int, increment: int, ramp: int, final: int) -> int:
    """The batch of the step that begins after this many samples (Megatron-LM's ``--rampup-batch-size``).

    It grows from ``start`` to ``final`` by ``increment`` each time, in stages of equally many samples, and reaches
    ``final`` after ``ramp`` samples. ``increment`` divides ``final - start``, which is above 0. Sample counts are
    integers; the lengths of the stages need not be.
    """
    raise NotImplementedError("task 14.9")


def steps_with_ramp(samples: int, start: int, increment: int, ramp: int, final: int) -> int:
    """The optimizer steps that it takes to process this many samples, or a few more, from the first one on."""
    raise NotImplementedError("task 14.9")


def trust_ratios(
    weights: Mapping[str, np.ndarray],
    updates: Mapping[str, np.ndarray],
    sizes: Mapping[str, int],
    all_max: Join,
    all_sum: Join,
) -> dict[str, float]:
    """14.10  LAMB's trust ratio |w| / |u| of every matrix, from shards (You et al., 2020, arXiv 1904.00962).

    LAMB scales the update of each matrix to the norm of its weights. The norms are those of the full matrix: with a
    ratio for each shard every layout would train another model. And a float sum over shards would depend on how the
    matrix is cut, so squares are added as integers, as for the gradient norm (chapter 6). For an array x of which no
    rank has an element above ``largest``, and which has ``count`` elements in all,

        scale = grid_scale(largest, count)    a power of two; |x| is sqrt(the sum over all ranks) / scale, where each
        squares_on_grid(shard, scale)         rank's summand is an integer, a NumPy one, and the sum is below 2^62

    and ``largest_magnitude(shard)`` is the largest |element| of a shard that has any. All three are imported above.

    Args:
        weights, updates: by name, the shards that this rank counts, float32 or float64; not modified. Together the
            ranks have each element once: one may lack a name (another has all of it), or have a shard of no elements.
            Both have the same names. All numbers are finite.
        sizes: of all matrices, in one order on all ranks: the number of elements.
        all_max, all_sum: join a vector, elementwise, with those of all ranks: all_max one of float64, all_sum one of
            int64. They return a new vector. Every rank calls each of them once, whatever it has: a message for each
            matrix would take long. (Or twice: once for the weights, once for the updates.)

    Returns:
        A ratio for each name in ``sizes``, a Python float: sqrt(sum) / scale of the weights over that of the updates,
        or 1 where one of them is 0. Its bits depend on no layout.
    """
    raise NotImplementedError("task 14.10")
