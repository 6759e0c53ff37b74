"""Memory of the fullest GPU of a planned run, by kinds. Arithmetic alone.

For n tokens of a micro-batch on a rank, width h, a heads, context s, t tensor-parallel ranks, elements of e bytes and
masks of one, a GPT's layer saves for backward (Korthikanti et al., 2022, arXiv 2205.05198, section 4)

    norm inputs, inputs of attention and MLP     4 e n h       over t with sequence parallelism
    dropout masks                                2 n h         over t with sequence parallelism
    queries, keys, values; attention's output        4 e n h / t
    the MLP's hidden units, before and after GELU    8 e n h / t
    scores after softmax, mask, after dropout    (2 e + 1) a n s / t

which are s b h (34 + 5 a s / h) bytes for e = 2. Instead of the last line, flash attention saves a float32 for each
row; selective recomputation computes it again; full recomputation keeps only the layer's input. A pipeline holds this
for every micro-batch in flight.

tests/plan/test_planned_runs.py compares all of this with the memory of real runs of this library, byte for byte.
"""

from dataclasses import dataclass
from functools import lru_cache

from minidist.plan.layout import PlannedLayout, stages_of
from minidist.plan.models import ModelShape

RESERVED = 2e9  # bytes: CUDA's context, cuBLAS's workspaces, NCCL's buffers; an assumption
FRAGMENTATION = 0.05  # share of what comes and goes in a step that the allocator cannot use again; an assumption
STATISTIC = 4  # bytes of a float32 for each row of a norm or a softmax
LOGIT = 4  # bytes of a logit in the loss


@dataclass(frozen=True)
class Numerics:
    """Bytes of each number that training holds.

    Attributes:
        parameter, activation: 2 with 16 bits. gradient: while micro-batches add to it. optimizer: the moments, and the
            master weight if the run has one.
        statistics: bytes for each row of a norm; 0 if they are not counted.
        keeps_dropped: whether attention weights after dropout are kept, besides those before it and the mask.
        keeps_scaled: whether scaled queries are kept, besides the queries.
        keeps_gathered: whether the input that sequence parallelism gathers for a product is kept, not gathered again.
        shard_apart: whether ZeRO sums gradients into a separate shard, besides the full gradients.
        term: bytes of an element that tensor-parallel ranks sum; 0 for those of an activation.
    """

    parameter: int
    gradient: int
    optimizer: int
    activation: int
    statistics: int = 0
    keeps_dropped: bool = True
    keeps_scaled: bool = False
    keeps_gathered: bool = False
    shard_apart: bool = False
    term: int = 0


MIXED = Numerics(parameter=2, gradient=4, optimizer=12, activation=2)  # 16-bit training with float32 sums and masters
HALF_GRADIENTS = Numerics(parameter=2, gradient=2, optimizer=12, activation=2)  # ZeRO's 16 bytes a parameter
FLOAT32 = Numerics(parameter=4, gradient=4, optimizer=8, activation=4)
HERE = Numerics(  # this library: float32, gradients summed in float64
    parameter=4, gradient=8, optimizer=8, activation=4, statistics=STATISTIC, keeps_dropped=False, keeps_scaled=True,
    keeps_gathered=True, shard_apart=True, term=8,
)  # fmt: skip
NUMERICS = {"mixed": MIXED, "half-gradients": HALF_GRADIENTS, "float32": FLOAT32}


@dataclass(frozen=True)
class Memory:
    """Bytes that one GPU holds, by kind.

    Attributes:
        gathered: parameters and gradients of the layers that ZeRO has gathered, besides the shards.
        recomputed: activations of the one layer that is recomputed.
        fragmentation, reserved: assumptions.
    """

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    gathered: float = 0.0
    recomputed: float = 0.0
    fragmentation: float = 0.0
    reserved: float = 0.0

    @property
    def total(self) -> float:
        return sum(vars(self).values())

    @property
    def counted(self) -> float:
        """The total without the two assumptions."""
        return self.total - self.fragmentation - self.reserved


@dataclass(frozen=True)
class Held:
    """Number of parameters of one rank before ZeRO: those that all tokens use, and those of its experts."""

    dense: float
    experts: float

    def sharded(self, layout: PlannedLayout) -> float:
        """Return how many are left on one rank after ZeRO has sharded them."""
        return self.dense / layout.shards + self.experts / max(1, layout.shards // layout.ep)

    @property
    def full(self) -> float:
        return self.dense + self.experts


def parameters_of_layers(model: ModelShape, layout: PlannedLayout, dense: float, sparse: float) -> Held:
    """Count the parameters on one rank of ``dense`` layers without experts and ``sparse`` layers with experts."""
    shared = model.key_width_on(layout.tp) - model.key_width / layout.tp  # keys that another rank holds too
    everywhere = model.replicated + 2 * (model.width + model.biases) * shared
    held = dense * ((model.dense_block - model.replicated) / layout.tp + everywhere)
    if not sparse:
        return Held(held, 0.0)
    split = model.block(0) - model.router - model.replicated
    held += sparse * (split / layout.tp + everywhere + model.router)
    return Held(held, sparse * model.routed / (layout.tp * layout.ep))


@lru_cache(maxsize=1 << 12)
def layers_by_rank(model: ModelShape, pp: int, virtual: int) -> tuple[tuple[int, int], ...]:
    """Return how many layers each rank of the pipeline has: without experts, and with them."""
    first_sparse = model.layers - model.sparse_layers
    found, start = [[0, 0] for _ in range(pp)], 0
    for stage, count in enumerate(stages_of(model.layers, pp * virtual)):
        of_dense = max(0, min(start + count, first_sparse) - start)
        found[stage % pp][0] += of_dense
        found[stage % pp][1] += count - of_dense
        start += count
    return tuple((dense, sparse) for dense, sparse in found)


def parameters_of_rank(model: ModelShape, layout: PlannedLayout, rank: int) -> Held:
    """Count the parameters on each tensor-parallel rank of one rank of the pipeline."""
    layers = parameters_of_layers(model, layout, *layers_by_rank(model, layout.pp, layout.virtual)[rank])
    ends = 0.0
    if rank == 0:
        ends += model.width * model.vocab / layout.tp + model.width * model.context * model.learned_positions
    if rank == layout.pp - 1:
        ends += model.norm_vectors * model.width
        if not (model.tied and layout.pp == 1):  # a tied weight is needed at both ends of a pipeline
            ends += model.width * model.vocab / layout.tp
    return Held(layers.dense + ends, layers.experts)


def in_flight(layout: PlannedLayout, rank: int, micro_batches: int) -> int:
    """Number of micro-batches whose activations a pipeline rank holds, summed over its stages.

    Interleaved: Narayanan et al. (2021, arXiv 2104.04473) start 2 (p - r - 1) + (v - 1) p forward passes before the
    first backward. ZB-H1: micro-batches that wait for W are held too, so every rank holds as many as 1F1B's first one.
    """
    if layout.schedule == "naive":
        return 1
    if layout.schedule == "gpipe":
        return micro_batches
    if layout.schedule == "zb-h1":
        return min(micro_batches, layout.pp)
    if layout.schedule == "1f1b":
        return min(micro_batches, layout.pp - rank)
    warmup = 2 * (layout.pp - rank - 1) + (layout.virtual - 1) * layout.pp + 1
    return min(micro_batches * layout.virtual, warmup)


def saved_scores(model: ModelShape, layout: PlannedLayout, numerics: Numerics) -> float:
    """Bytes that attention keeps for backward in one layer: of scores or their statistics, and scaled queries."""
    tokens, heads = _tokens(model, layout), model.heads / layout.tp
    scaled = numerics.keeps_scaled * numerics.activation * tokens * model.score_widths[0] / layout.tp
    if layout.attention == "flash":
        return STATISTIC * heads * tokens + scaled
    each = numerics.activation + model.dropout * (1 + numerics.activation * numerics.keeps_dropped)
    return heads * tokens * (model.context * each + numerics.statistics) + scaled


def saved_by_block(model: ModelShape, layout: PlannedLayout, numerics: Numerics, sparse: bool) -> float:
    """Bytes that one layer keeps for backward, without recomputation and without those of ``saved_scores``."""
    e, n, t = numerics.activation, _tokens(model, layout), layout.tp
    kept = _entering(model, layout, numerics)
    scored, valued = model.score_widths
    keys = 2 * model.key_width_on(t) if model.latent is None else (scored + valued) / t
    kept += e * n * (keys + (scored + valued) / t)
    if model.latent:
        kept += e * n * (model.latent.queries + model.latent.keys_values + model.latent.rope)
    return kept + saved_behind_attention(model, layout, numerics, sparse)


def saved_behind_attention(model: ModelShape, layout: PlannedLayout, numerics: Numerics, sparse: bool) -> float:
    """Bytes of a layer that backward frees before it reaches the scores: both dropouts' masks, and the MLP's."""
    e, n, t = numerics.activation, _tokens(model, layout), layout.tp
    stream = n * model.width / (t if layout.sp else 1)
    kept = _entering(model, layout, numerics) + 2 * model.dropout * stream
    arrays = 3 if model.gated else 2  # arrays of hidden units
    moe = model.moe
    if not sparse or moe is None:
        return kept + arrays * e * n * model.mlp_hidden / t
    kept += arrays * e * n * (moe.top_k + moe.shared) * moe.hidden / t
    return kept + 2 * e * moe.top_k * n * model.width / (t if layout.sp else 1)  # rows to experts, and from them


def saved_by_head(model: ModelShape, layout: PlannedLayout, numerics: Numerics) -> float:
    """Bytes that the last norm, the logits and the loss keep for backward."""
    logits = LOGIT * _tokens(model, layout) * model.vocab / layout.tp
    return _entering(model, layout, numerics) + logits


def _entering(model: ModelShape, layout: PlannedLayout, numerics: Numerics) -> float:
    """Bytes that a norm keeps, and of the input of the products in the tensor-parallel region after it."""
    tokens, parts = _tokens(model, layout), layout.tp if layout.sp else 1
    kept = tokens / parts * (numerics.activation * model.width + numerics.statistics)
    return kept + numerics.activation * tokens * model.width / (1 if numerics.keeps_gathered else parts)


def memory_of(
    model: ModelShape, layout: PlannedLayout, batch: int, numerics: Numerics = MIXED, rank: int | None = None
) -> Memory:
    """Return the memory of the fullest rank, or of one rank of the pipeline.

    Args:
        layout: layout that names its attention kernel.
        batch: sequences in a step.
        rank: rank of the pipeline; None for the fullest.
    """
    if rank is not None:
        return _of_rank(model, layout, batch, numerics, rank)
    layers = layers_by_rank(model, layout.pp, layout.virtual)
    ranks = {0, *map(layers.index, set(layers)), layout.pp - 1}  # the first of ranks with equal layers holds the most
    memories = (_of_rank(model, layout, batch, numerics, rank) for rank in sorted(ranks))
    return max(memories, key=lambda memory: memory.total)


def _of_rank(model: ModelShape, layout: PlannedLayout, batch: int, numerics: Numerics, rank: int) -> Memory:
    held = parameters_of_rank(model, layout, rank)
    sharded = held.sharded(layout)
    unsharded = _gathered(model, layout, held, rank)
    gathered = 0.0
    parameters = numerics.parameter * held.full
    if layout.zero == 3:
        parameters = numerics.parameter * sharded
        gathered += numerics.parameter * (unsharded if layout.reshard_after_forward else held.full)
    gradients = numerics.gradient * (held.full + sharded * (numerics.shard_apart and layout.zero > 0))
    if layout.zero >= 2 and layout.grad_sync == "micro_batch":
        gradients = numerics.gradient * sharded
        gathered += numerics.gradient * unsharded
    activations, recomputed = _activations(model, layout, batch, numerics, rank)
    return Memory(
        parameters,
        gradients,
        numerics.optimizer * (sharded if layout.zero else held.full),
        activations,
        gathered,
        recomputed,
        FRAGMENTATION * (activations + gathered + recomputed),
        RESERVED,
    )


def _gathered(model: ModelShape, layout: PlannedLayout, held: Held, rank: int) -> float:
    """Number of parameters that are gathered at once: a layer's, and those of the next layer, which is in flight.

    A tied embedding stays from its use at one end to that at the other. Ends that are not tied come and go like layers.
    """
    layer = parameters_of_layers(model, layout, not model.moe, bool(model.moe)).full
    layers = parameters_of_layers(model, layout, *layers_by_rank(model, layout.pp, layout.virtual)[rank]).full
    ends = held.full - layers
    if model.tied:
        return min(ends + 2 * layer, held.full)
    return min(layer + max(layer, ends / (2 if layout.pp == 1 else 1)), held.full)


def _activations(
    model: ModelShape, layout: PlannedLayout, batch: int, numerics: Numerics, rank: int
) -> tuple[float, float]:
    """Return the bytes held for all micro-batches in flight, and the additional ones while one layer is recomputed.

    The latter do not count memory that is free by then: the head's, and if only scores are recomputed, that of the part
    of the layer after attention.
    """
    e, n = numerics.activation, _tokens(model, layout)
    stream = n * model.width / (layout.tp if layout.sp else 1)
    scores = saved_scores(model, layout, numerics)
    kinds = (False, True)[: 1 + bool(model.moe)]  # without experts, and with them
    blocks = [saved_by_block(model, layout, numerics, sparse) for sparse in kinds]
    again = 0.0
    if layout.recompute == "full":
        again = max(blocks) + scores - e * stream
        blocks = [e * stream] * len(blocks)
    elif layout.recompute == "selective" and layout.attention == "standard":
        again = max(0.0, scores - min(saved_behind_attention(model, layout, numerics, sparse) for sparse in kinds))
    else:
        blocks = [block + scores for block in blocks]
    layers = layers_by_rank(model, layout.pp, layout.virtual)[rank]
    count = in_flight(layout, rank, layout.micro_batches(batch)) / layout.virtual
    held = count * sum(number * block for number, block in zip(layers, blocks, strict=False))
    if rank == 0:
        held += count * model.dropout * stream  # the mask of the embedding's dropout
    if rank == layout.pp - 1:
        head = saved_by_head(model, layout, numerics)
        held += head * (count if layout.schedule in ("gpipe", "zb-h1") else 1)  # others run its backward at once
        again = max(0.0, again - head)
    return held, again


def _tokens(model: ModelShape, layout: PlannedLayout) -> float:
    """Tokens of one micro-batch on one rank."""
    return layout.micro_batch * model.context / layout.cp
