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
    # >>> 14.1
    keys = model.width // model.heads * model.kv_heads
    matrices = 2 * model.width**2 + 2 * model.width * keys + 3 * model.width * model.hidden
    return matrices + 2 * model.width
    # <<<


def model_parameters(model: Model) -> int:
    """All parameters. Llama 3 405B has 405,853,388,800."""
    # >>> 14.1
    return model.layers * layer_parameters(model) + 2 * model.vocab * model.width + model.width
    # <<<


def stage_parameters(model: Model, tp: int, pp: int, stage: int) -> float:
    """The parameters that one GPU of a pipeline stage has, before ZeRO.

    Every stage has L / pp layers, the first one the embedding too, the last one the last norm and the head (with pp = 1
    one stage has everything). Tensor parallelism splits every matrix evenly, the embedding and the head among them.
    Each of its ranks has all of the norms.
    """
    # >>> 14.1
    norms = 2 * model.width
    layer = (layer_parameters(model) - norms) / tp + norms
    found = model.layers // pp * layer
    if stage == 0:
        found += model.vocab * model.width / tp
    if stage == pp - 1:
        found += model.vocab * model.width / tp + model.width
    return found
    # <<<


def state_bytes(parameters: float, replicas: int, zero: int, gradient: int) -> float:
    """The bytes of a GPU that has this many parameters before ZeRO shards them over ``replicas`` GPUs.

    2 for each parameter, 12 for its optimizer state, and ``gradient`` (2 or 4) for its gradient. ZeRO 1 shards the
    optimizer state, 2 the gradients too, 3 the parameters too. Count nothing that is gathered.
    """
    # >>> 14.1
    shard = parameters / replicas
    held = [parameters if zero < stage else shard for stage in (3, 2, 1)]
    return 2 * held[0] + gradient * held[1] + 12 * held[2]
    # <<<


def fullest_state_bytes(model: Model, layout: Layout, gradient: int) -> float:
    """The bytes of model states on the GPU that has the most."""
    # >>> 14.1
    most = max(stage_parameters(model, layout.tp, layout.pp, stage) for stage in range(layout.pp))
    return state_bytes(most, layout.dp, layout.zero, gradient)
    # <<<


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
    # >>> 14.2
    tokens = layout.micro_batch * model.context / layout.tp  # every line is split
    keys = model.width // model.heads * model.kv_heads
    if layout.recompute == "full":
        return 2 * tokens * model.width
    kept = 2 * tokens * (6 * model.width + 2 * keys) + 4 * tokens * model.heads
    return kept if layout.recompute == "mlp" else kept + 2 * tokens * 3 * model.hidden
    # <<<


def chunks_in_flight(layout: Layout, stage: int, micro_batches: int) -> int:
    """The most pairs (micro-batch, chunk of layers) whose activations a pipeline rank holds at the same time.

    1F1B (virtual = 1): rank 0 holds pp micro-batches, each further rank one fewer. Interleaved: rank r runs
    2 (pp - r - 1) + (virtual - 1) pp forward passes before its first pair of a forward and a backward, and that forward
    adds one more. A rank never holds more than there are.
    """
    # >>> 14.2
    if layout.virtual == 1:
        return min(micro_batches, layout.pp - stage)
    warm_up = 2 * (layout.pp - stage - 1) + (layout.virtual - 1) * layout.pp
    return min(micro_batches * layout.virtual, warm_up + 1)
    # <<<


def stage_activations(model: Model, layout: Layout, stage: int, batch: int) -> float:
    """The bytes of activations on one GPU of a pipeline rank, in a step of ``batch`` sequences.

    Each of its ``virtual`` chunks has L / (pp virtual) layers. The last rank also holds the logits of one micro-batch:
    n V numbers of 4 bytes, split over the tensor-parallel ranks. What recomputation brings back temporarily is not
    counted.
    """
    # >>> 14.2
    micro_batches = batch // (layout.dp * layout.micro_batch)
    layers = model.layers // (layout.pp * layout.virtual)
    found = chunks_in_flight(layout, stage, micro_batches) * layers * layer_activations(model, layout)
    if stage == layout.pp - 1:
        found += 4 * layout.micro_batch * model.context * model.vocab / layout.tp
    return found
    # <<<


# 14.3  Worksheet: FLOPs, and the shares that authors publish
#
# A product with a matrix of p elements is 2 p FLOPs for each token. The embedding is looked up: no FLOPs. Norms and
# other elementwise work do not count. In attention each token has a product with the keys and one with the values of
# ``T`` tokens: 2 h T FLOPs each in every layer. With a causal mask half of these pairs are wasted; some authors count
# them (PaLM, Megatron-LM), others do not (Llama 3). Backward takes twice as many FLOPs as forward.


def forward_flops(model: Model, causal: bool) -> float:
    """The FLOPs of forward for one token. ``causal``: count half of the pairs of tokens."""
    # >>> 14.3
    matrices = model.layers * (layer_parameters(model) - 2 * model.width) + model.width * model.vocab
    pairs = 4 * model.layers * model.width * model.context
    return 2 * matrices + (pairs / 2 if causal else pairs)
    # <<<


def recomputed_flops(model: Model, causal: bool, recompute: str) -> float:
    """The FLOPs that backward computes once more for one token.

    "none": nothing. "mlp": gate and up, from the MLP's input (what comes after them is not needed again). "full": the
    forward of all layers, without the head.
    """
    # >>> 14.3
    if recompute == "full":
        return forward_flops(model, causal) - 2 * model.width * model.vocab
    return 2 * 2 * model.width * model.hidden * model.layers if recompute == "mlp" else 0.0
    # <<<


def utilization(model: Model, tokens_per_second: float, cluster: Cluster, causal: bool, recompute: str) -> float:
    """The share of the cluster's FLOP/s that a run uses.

    ``recompute``: "none" for MFU, where what is computed again does not count; the run's mode for HFU.
    """
    # >>> 14.3
    flops = 3 * forward_flops(model, causal) + recomputed_flops(model, causal, recompute)
    return tokens_per_second * flops / (cluster.gpus * cluster.flops)
    # <<<


def other_count(model: Model, mfu: float, causal: bool) -> float:
    """The MFU that authors who count the other way would publish. ``causal``: how ``mfu`` was counted."""
    # >>> 14.3
    return mfu * forward_flops(model, not causal) / forward_flops(model, causal)
    # <<<


def training_days(model: Model, tokens: float, cluster: Cluster, mfu: float, causal: bool) -> float:
    """Days to train on these tokens at this MFU, counted in this way, if nothing fails."""
    # >>> 14.3
    return 3 * forward_flops(model, causal) * tokens / (mfu * cluster.gpus * cluster.flops) / 86400
    # <<<


# 14.4  Worksheet: what a step waits for
#
# A group of N ranks that are ``stride`` apart all-gathers, or reduce-scatters, an array of M bytes (the whole one) in
# (N-1)/N M / B seconds, and all-reduces it in twice that. B is ``fast`` if all of them are on one node. If not, a ring
# enters and leaves each node over as many network cards as the group has ranks there: B = that many times ``slow``, but
# not more than ``fast`` where a node has several of them. N is a power of two, and so are strides and nodes.


def ranks_in_a_node(size: int, stride: int, node: int) -> int:
    """The number of ranks of such a group that share a node."""
    # >>> 14.4
    return max(1, min(size, node // stride))
    # <<<


def ring_bandwidth(size: int, stride: int, cluster: Cluster) -> float:
    """B."""
    # >>> 14.4
    near = ranks_in_a_node(size, stride, cluster.node)
    if near == size:
        return cluster.fast
    return cluster.slow if near == 1 else min(cluster.fast, near * cluster.slow)
    # <<<


def tp_seconds(model: Model, layout: Layout, cluster: Cluster) -> float:
    """Seconds that a GPU waits for tensor parallelism in one micro-batch, in forward and backward of all its layers.

    In each layer forward gathers twice and scatters twice, arrays of n h elements of 2 bytes. Backward does the same.
    With recompute="full" forward's four come once more; with "mlp" one gather does, for the MLP's input is kept split.
    """
    # >>> 14.4
    array = 2 * layout.micro_batch * model.context * model.width
    once = (layout.tp - 1) / layout.tp * array / ring_bandwidth(layout.tp, 1, cluster)
    count = {"none": 8, "mlp": 9, "full": 12}[layout.recompute]
    return model.layers // layout.pp * count * once
    # <<<


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
    # >>> 14.4
    seconds = (layout.dp - 1) / layout.dp * parameters / ring_bandwidth(layout.dp, layout.tp, cluster)  # for each byte
    scatter, gather = 4 * seconds, 2 * seconds
    if layout.zero == 0:
        return max(0.0, 2 * scatter - backward)
    if layout.zero == 1:
        return max(0.0, scatter - backward) + max(0.0, gather - forward)
    return micro_batches * (max(0.0, gather - forward) + max(0.0, gather + scatter - backward))
    # <<<


def step_seconds(slot: float, layout: Layout, micro_batches: int, exposed: float) -> float:
    """Seconds of a step; each micro-batch takes a rank ``slot`` seconds, data parallelism adds ``exposed`` seconds.

    In the bubble a rank waits for pp - 1 others, 1/virtual of a slot for each.
    """
    # >>> 14.4
    return (micro_batches + (layout.pp - 1) / layout.virtual) * slot + exposed
    # <<<


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
    # >>> 14.5
    found = []
    for tp in range(1, min(cluster.node, model.kv_heads) + 1):
        if model.kv_heads % tp or cluster.gpus % tp:
            continue
        for pp in range(1, model.layers + 1):
            if model.layers % pp or cluster.gpus % (tp * pp):
                continue
            dp = cluster.gpus // (tp * pp)
            if batch % dp:
                continue
            stages = [0] if dp == 1 else [0, 1] if pp > 1 else [0, 1, 3]
            for micro_batch in (n for n in range(1, batch // dp + 1) if batch // dp % n == 0):
                whole_rounds = pp > 1 and batch // (dp * micro_batch) % pp == 0
                chunks = [v for v in range(1, model.layers // pp + 1) if model.layers % (pp * v) == 0]
                for virtual in chunks if whole_rounds else [1]:
                    for zero in stages:
                        for recompute in ("none", "mlp", "full"):
                            found.append(Layout(dp, tp, pp, virtual, zero, recompute, micro_batch))
    return found
    # <<<


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
    # >>> 14.5
    known: list[tuple[float, Layout]] = []  # the best so far
    for least, layout in sorted(((bound(one), one) for one in layouts if memory(one) <= limit), key=lambda p: p[0]):
        if len(known) == top and least > known[-1][0]:
            break
        known = sorted([*known, (seconds(layout), layout)], key=lambda pair: pair[0])[:top]
    return [layout for _, layout in known]
    # <<<


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
    # >>> 14.6
    sequences = layout.micro_batch * accumulation * layout.dp
    mine = model_parameters(model) / (layout.tp * layout.pp)
    gradients = 4 * mine
    # === given to the learner
    # sequences = layout.micro_batch * accumulation * layout.dp * layout.pp
    # mine = model_parameters(model) / layout.tp
    # gradients = 4 * mine / accumulation
    # <<<
    optimizer = 12 * mine / (layout.dp if layout.zero else 1)
    states = 2 * mine + gradients + optimizer
    layers = model.layers // layout.pp
    # >>> 14.6
    in_flight = layout.pp
    # === given to the learner
    # in_flight = accumulation
    # <<<
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
    # >>> 14.7
    mtbf = gpu_mtbf / gpus
    interval = sqrt(2 * save * mtbf)
    return interval / mtbf * exp(-restart / mtbf) / expm1((interval + save) / mtbf)
    # <<<


def run_seconds(tokens: float, tokens_per_second: float, share: float) -> float:
    """Seconds that a run takes in all, if it processes ``tokens_per_second`` in its useful time."""
    # >>> 14.7
    return tokens / (tokens_per_second * share)
    # <<<


def failures_of(seconds: float, gpu_mtbf: float, gpus: int) -> float:
    """The expected number of failures in a run of this length."""
    # >>> 14.7
    return seconds * gpus / gpu_mtbf
    # <<<


def run_cost(seconds: float, gpus: int, price: float) -> float:
    """The cost of a run; ``price``: of one GPU for an hour. All GPUs are paid for from its first second to its last."""
    # >>> 14.7
    return seconds / 3600 * gpus * price
    # <<<


def fewest_gpus(
    tokens: float, speed: float, days: float, node: int, most: int, gpu_mtbf: float, save: float, restart: float
) -> int:
    """The fewest GPUs, in whole nodes, that process all tokens within ``days``.

    Args:
        speed: tokens/s of one GPU; n GPUs are n times as fast. node: GPUs in one. most: the GPUs that are available.

    Raises:
        ValueError: if no number of up to ``most`` is enough. (With more GPUs more of the time is lost.)
    """
    # >>> 14.7
    for gpus in range(node, most + 1, node):
        share = useful_share(gpu_mtbf, gpus, save, restart)
        if run_seconds(tokens, gpus * speed, share) <= days * 86400:
            return gpus
    raise ValueError(f"no number of up to {most} GPUs ends within {days:g} days")
    # <<<


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
    # >>> 14.8
    product = flops / 6
    balance = (law.alpha * law.A / (law.beta * law.B)) ** (1 / (law.alpha + law.beta))
    parameters = balance * product ** (law.beta / (law.alpha + law.beta))
    return parameters, product / parameters
    # <<<


def tokens_to_reach(law: Law, loss: float, parameters: float) -> float:
    """14.8  The tokens after which a model of this size has this loss; ``inf`` if it never reaches it."""
    # >>> 14.8
    rest = loss - law.E - law.A / parameters**law.alpha
    return (law.B / rest) ** (1 / law.beta) if rest > 0 else inf
    # <<<


def cheapest(law: Law, loss: float, served: float = 0.0) -> tuple[float, float]:
    """14.8  N and D of the model with this loss that costs the fewest FLOPs, in training and in use.

    Training takes 6 N D FLOPs, and each of the ``served`` tokens that the model will write or read takes 2 N. The loss
    is above E. To five digits; there is one minimum.
    """

    def flops(log_size: float) -> float:
        """FLOPs of a model of exp(log_size) parameters."""
        # >>> 14.8
        size = exp(log_size)
        return size * (6 * tokens_to_reach(law, loss, size) + 2 * served)
        # <<<

    # >>> 14.8
    smallest = log(law.A / (loss - law.E)) / law.alpha  # it never reaches the loss
    low, high = smallest, smallest + 40
    while high - low > 1e-9:
        third = (high - low) / 3
        if flops(low + third) < flops(high - third):
            high -= third
        else:
            low += third
    size = exp(high)  # the upper end: at the lower one it might never reach the loss
    return size, tokens_to_reach(law, loss, size)
    # <<<


def overtraining(law: Law, parameters: float, tokens: float) -> float:
    """14.8  The training FLOPs of a run, divided by those of the cheapest one with the same loss: 1 or more."""
    # >>> 14.8
    size, enough = cheapest(law, law.loss(parameters, tokens))
    return parameters * tokens / (size * enough)
    # <<<


# 14.9  Worksheet: how large a batch may be (McCandlish et al., 2018, arXiv 1812.06162)
#
# A batch of B samples has the gradient G plus noise: the expected square of its norm is |G|^2 + S / B, where S is the
# sum of the variances of all elements for one sample. S / |G|^2 is the *noise scale*: about the batch up to which more
# samples help. A batch of B needs S_min (1 + B_crit / B) steps and E_min (1 + B / B_crit) samples to reach a loss.


def noise_scale(small: int, large: int, small_square: float, large_square: float) -> float:
    """S / |G|^2 from the mean squared norms of gradients of batches of ``small`` and of ``large`` samples."""
    # >>> 14.9
    signal = (large * large_square - small * small_square) / (large - small)
    noise = (small_square - large_square) / (1 / small - 1 / large)
    return noise / signal
    # <<<


def critical_batch(small: tuple[float, float], large: tuple[float, float]) -> tuple[float, float, float]:
    """S_min, E_min and B_crit from two runs to the same loss, each as (batch, steps).

    B_crit is E_min / S_min. (Samples are batch times steps.)
    """
    # >>> 14.9
    (a, steps), (b, fewer) = small, large
    least = (b * fewer - a * steps) / (b - a)
    examples = (steps - least) * a
    return least, examples, examples / least
    # <<<


def batch_after(samples: int, start: int, increment: int, ramp: int, final: int) -> int:
    """The batch of the step that begins after this many samples (Megatron-LM's ``--rampup-batch-size``).

    It grows from ``start`` to ``final`` by ``increment`` each time, in stages of equally many samples, and reaches
    ``final`` after ``ramp`` samples. ``increment`` divides ``final - start``, which is above 0. Sample counts are
    integers; the lengths of the stages need not be.
    """
    # >>> 14.9
    steps = (final - start) // increment
    return min(final, start + samples * steps // ramp * increment)
    # <<<


def steps_with_ramp(samples: int, start: int, increment: int, ramp: int, final: int) -> int:
    """The optimizer steps that it takes to process this many samples, or a few more, from the first one on."""
    # >>> 14.9
    seen = steps = 0
    while seen < samples and seen < ramp:
        seen += batch_after(seen, start, increment, ramp, final)
        steps += 1
    return steps + -(-(samples - seen) // final)
    # <<<


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
    # >>> 14.10
    held = [(arrays.get(name), count) for arrays in (weights, updates) for name, count in sizes.items()]
    held = [(array if array is not None and array.size else None, count) for array, count in held]
    tops = [0.0 if array is None else largest_magnitude(array) for array, _ in held]
    largest = all_max(np.array(tops, np.float64))
    scales = [grid_scale(float(top), count) if top else 1.0 for top, (_, count) in zip(largest, held, strict=True)]
    squares = [
        0 if array is None else int(squares_on_grid(array, scale))
        for (array, _), scale in zip(held, scales, strict=True)
    ]
    totals = all_sum(np.array(squares, np.int64))
    norms = [sqrt(int(total)) / scale for total, scale in zip(totals, scales, strict=True)]
    pairs = zip(sizes, norms[: len(sizes)], norms[len(sizes) :], strict=True)
    return {name: weight / update if weight and update else 1.0 for name, weight, update in pairs}
    # <<<
