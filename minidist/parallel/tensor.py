"""Tensor parallelism: every rank holds some of each layer's heads.

The MLP's hidden units and the vocabulary are cut into H slices too, and slice h is part of head h, as its queries, keys
and values are. Nothing inside a head depends on another head, so the heads may be on different ranks. A column parallel
layer leads into the heads, a row parallel layer out of them, and no rank needs another one in between:

    x -> f -> columns -> attention or GELU, head by head -> rows -> g -> y

f and g are a conjugate pair (tools/mappings.py): f copies, and all-reduces in backward; g all-reduces, and copies in
backward. With sequence parallelism (sequence.py) f all-gathers tokens and g reduce-scatters them. What every rank has
in full, such as a LayerNorm, gets the same gradient on each, because f has summed the heads' gradients. So this axis
has no gradients to sync.

Shoeybi et al., "Megatron-LM" (2019). Simplified: no collective overlaps with matrix products.

**Mixtures of experts.** The experts' hidden units are divided by heads, as those of a dense MLP are. The router and the
permutation are computed on every rank alike. So f and g are around the experts, not around the whole layer: they carry
k rows for each token, k times what a dense MLP's carry. (That is why real systems give experts fewer tensor-parallel
ranks than attention, or one: Megatron-LM's ``--expert-tensor-parallel-size``.) With sequence parallelism the tokens are
gathered before the router and split again after the mixture. Between the two all ranks do the same, so each keeps its
own part of the gradient, and nothing is summed (Megatron-LM: ``tensor_parallel_output_grad=False``).

**Bits.** A BLAS may pick another kernel for a split matrix. Split by columns, 138 of 620 shapes changed their bits, all
with parts that are not a multiple of 16 columns wide, in up to 64 % of the elements. Split by rows, with the partial
products added in float32, 70 to 90 % of the elements changed nearly always: the same sum in another order.
(OpenBLAS 0.3.31, AVX-512.) So one process multiplies head by head too, and the heads' outputs are added in float64 and
rounded once, for any number of ranks. This holds for float32 models; the last bit of a float64 model shows the split.
"""

from functools import partial

from minidist.backend import xp
from minidist.comm.collectives import ReduceOp, all_gather_into_tensor, all_reduce
from minidist.comm.group import ProcessGroup
from minidist.nn import functional
from minidist.nn.attention.online_softmax import Total
from minidist.nn.gpt import Head
from minidist.nn.layers import ColumnLinear, CoreAttention, Embedding, Module, Parameter, RowLinear
from minidist.nn.llama import GroupedLinears
from minidist.nn.loss import cross_entropy
from minidist.nn.moe.experts import Experts, MoE
from minidist.nn.tensor import Tensor
from minidist.overrides import overridable
from minidist.parallel.axis import Axis, Plan, parallelize_module
from minidist.parallel.tools.mappings import (
    SEQUENCE,
    all_gather_in_group,
    copy_parameter_to_group,
    copy_to_group,
    gather_copies_in_group,
    reduce_from_group,
    reduce_scatter_in_group,
    scatter_to_group,
)
from minidist.parallel.tools.regions import Region


@overridable
def heads_of(rank: int, ranks: int, heads: int) -> range:
    """Return the heads that a rank computes: the same number on each rank, in the order of the ranks.

    Raises:
        ValueError: if the ranks do not divide the heads.
    """
    if heads % ranks:
        raise ValueError(f"{heads} heads cannot be split evenly over {ranks} ranks")
    each = heads // ranks
    return range(rank * each, (rank + 1) * each)


@overridable
def groups_of(rank: int, ranks: int, groups: int) -> range:
    """Return the key-value heads that a rank holds: as ``heads_of``, or one shared head if there are more ranks."""
    if ranks > groups and ranks % groups == 0:
        return range(rank * groups // ranks, rank * groups // ranks + 1)
    return heads_of(rank, ranks, groups)


def shard_heads(parameter: Parameter, group: ProcessGroup, of=heads_of) -> Parameter:
    """Keep this rank's heads of a parameter, in place: (H, ...) -> (H/N, ...). Return the parameter.

    Args:
        parameter: the full parameter.
        group: the N ranks to shard it over.
        of: function that says which heads a rank keeps: ``heads_of``, or ``groups_of`` for keys and values.

    Raises:
        ValueError: if the ranks do not divide the heads, or the parameter is sharded already.
    """
    if parameter.sharded:
        raise ValueError(
            f"{parameter.name or 'a parameter'} is already split: parallelize_module takes full parameters"
        )
    mine = of(group.rank, group.size, len(parameter.data))
    parameter.data = parameter.data[mine.start : mine.stop].copy()
    parameter.sharded = True
    return parameter


class ColumnParallelLinear(ColumnLinear):
    """Column-parallel linear layer: (B, T, C) -> (H/N, B, T, out), with the columns of this rank's heads.

    Args:
        linear: the single-process layer; its weight (H, C, out) and bias (H, out) are sharded, in place.
        group: the tensor-parallel ranks, N of them.
        sequence: whether the input is split along the tokens: (B, T/N, C). Megatron-LM's ``sequence_parallel``.
        reduce_dtype: dtype in which the input's gradients are summed over the ranks.
    """

    def __init__(self, linear: ColumnLinear, group: ProcessGroup, sequence: bool, reduce_dtype=xp.float64) -> None:
        self.weight = shard_heads(linear.weight, group)
        self.bias = linear.bias and shard_heads(linear.bias, group)
        self.group, self.sequence, self.reduce_dtype = group, sequence, reduce_dtype

    def forward(self, x: Tensor) -> Tensor:
        x = enter_heads(x, self.group, self.sequence, self.reduce_dtype)  # (B, T, C)
        x = functional.copy_to_heads(x, self.weight.shape[0])  # (H/N, B, T, C)
        return functional.linear(x, self.weight, self.bias)  # (H/N, B, T, out)


class RowParallelLinear(RowLinear):
    """Row-parallel linear layer: (H/N, B, T, in) -> (B, T, C), the sum over all ranks' heads, plus the bias once.

    Args:
        linear: the single-process layer; its weight (H, in, C) is sharded, (H/N, in, C); its bias (C,) stays full.
        group: the tensor-parallel ranks, N of them.
        sequence: whether the output is split along the tokens: (B, T/N, C).
        reduce_dtype: dtype in which the ranks' outputs are summed.
    """

    def __init__(self, linear: RowLinear, group: ProcessGroup, sequence: bool, reduce_dtype=xp.float64) -> None:
        self.weight, self.bias = shard_heads(linear.weight, group), linear.bias
        self.group, self.sequence, self.reduce_dtype = group, sequence, reduce_dtype

    def forward(self, x: Tensor) -> Tensor:
        y = functional.linear(x, self.weight, partial=True)  # (H/N, B, T, C)
        total = functional.reduce_from_heads(y, self.reduce_dtype)  # (B, T, C) over the heads here, not rounded yet
        if self.sequence:
            y = reduce_scatter_in_group(total, self.group, SEQUENCE, self.reduce_dtype, y.dtype)  # (B, T/N, C)
            return y if self.bias is None else y + copy_parameter_to_group(self.bias, self.group, self.reduce_dtype)
        y = reduce_from_group(total, self.group, self.reduce_dtype, y.dtype)  # (B, T, C)
        return y if self.bias is None else y + self.bias


class GroupParallelLinears(GroupedLinears):
    """The queries of this rank's heads, and their keys and values: (B, T, C) to (H/N, B, T, D) and (G/N, B, T, 2 D).

    With more ranks than key-value heads, N / G ranks hold the same one. The gradients of its keys and values are summed
    over these ranks, and only the first of them passes its key-value gradient on to the input.

    Args: see ``ColumnParallelLinear``.
    """

    def __init__(self, linears: GroupedLinears, group: ProcessGroup, sequence: bool, reduce_dtype=xp.float64) -> None:
        each = max(1, group.size // linears.kv.shape[0])  # ranks that hold one key-value head
        first = group.rank - group.rank % each
        self.replicas = group.new_group(list(range(first, first + each))) if each > 1 else None
        if self.replicas is not None:
            self.replicas.name = "kv_copies"
        self.q, self.kv = shard_heads(linears.q, group), shard_heads(linears.kv, group, groups_of)
        self.group, self.sequence, self.reduce_dtype = group, sequence, reduce_dtype

    def enter(self, x: Tensor) -> Tensor:
        return enter_heads(x, self.group, self.sequence, self.reduce_dtype)

    def once(self, x: Tensor) -> Tensor:
        return x if self.replicas is None or self.replicas.rank == 0 else Tensor(x.data)

    def all_sum(self, total: Total) -> Total:
        if self.replicas is None:
            return total
        mine = total.arrays()
        gathered = xp.empty((self.replicas.size, *mine.shape), mine.dtype)
        all_gather_into_tensor(gathered, mine, self.replicas)
        total = total.of(gathered[0])
        for other in gathered[1:]:
            total.merge(total.of(other))
        return total


column_or_override, row_or_override = map(overridable, (ColumnParallelLinear, RowParallelLinear))


def column_parallel_linear(linear, group: ProcessGroup, **options) -> Module:
    """Split a layer by columns. Overrides apply to layers with a bias, which GPT-2 has and Llama does not."""
    return (ColumnParallelLinear if linear.bias is None else column_or_override)(linear, group, **options)


def row_parallel_linear(linear, group: ProcessGroup, **options) -> Module:
    """Split a layer by rows. Overrides apply to layers with a bias only."""
    return (RowParallelLinear if linear.bias is None else row_or_override)(linear, group, **options)


def enter_heads(x: Tensor, group: ProcessGroup, sequence: bool, reduce_dtype) -> Tensor:
    """Apply f: give every rank all tokens. (B, T, C), or with ``sequence`` (B, T/N, C), to (B, T, C)."""
    if sequence:
        return all_gather_in_group(x, group, SEQUENCE, reduce_dtype)
    return copy_to_group(x, group, reduce_dtype)


class VocabParallelEmbedding(Embedding):
    """Embedding whose vocabulary is split over the ranks: integers (B, T) -> (B, T, C).

    Args:
        embedding: the single-process layer; its weight is sharded, in place.
        group: the tensor-parallel ranks.
    """

    def __init__(self, embedding: Embedding, group: ProcessGroup) -> None:
        self.weight, self.group = shard_heads(embedding.weight, group), group

    def forward(self, tokens) -> Tensor:
        heads, each, _ = self.weight.shape
        rows = functional.embedding(self.weight, tokens, first=self.group.rank * heads * each)  # (B, T, C)
        return reduce_from_group(rows, self.group, reduce_dtype=rows.dtype)  # a row and zeros: exact in any dtype


class VocabParallelHead(Head):
    """Head that computes the logits of this rank's share of the vocabulary, and the loss without gathering them.

    A tied weight is the embedding's, so it is sharded already: in a plan the head comes after the embedding.

    Args:
        head: the single-process head, whose modules are used here.
        group, sequence, reduce_dtype: as for ``ColumnParallelLinear``.

    Raises:
        ValueError: if the weight is tied and the embedding is not sharded yet.
    """

    def __init__(self, head: Head, group: ProcessGroup, sequence: bool, reduce_dtype=xp.float64) -> None:
        if not head.tied:
            shard_heads(head.token.weight, group)
        elif not head.token.weight.sharded:
            raise ValueError(
                "the head shares the embedding's weight: a plan for the head needs one for the embedding first"
            )
        self.norm, self.token, self.vocab, self.chunks = head.norm, head.token, head.vocab, head.chunks
        self.group, self.sequence, self.reduce_dtype = group, sequence, reduce_dtype

    def output(self, x: Tensor) -> Tensor:
        return super().output(enter_heads(x, self.group, self.sequence, self.reduce_dtype))  # (H/N, B, T, V/H)

    def mean_loss(self, logits: Tensor, targets) -> Tensor:
        return vocab_parallel_cross_entropy(logits, targets, self.vocab, self.group)


@overridable
def vocab_parallel_cross_entropy(logits: Tensor, targets, vocab: int, group: ProcessGroup) -> Tensor:
    """Return the mean cross-entropy of logits that are split over the ranks, with the same bits on every rank.

    Three numbers per token cross the ranks: the largest logit, the sum of the exponentials and the target's logit.
    (Megatron-LM's function of this name.)

    Args:
        logits: (H/N, B, T, V/H), of this rank's share of the vocabulary.
        targets: integers (B, T) below ``vocab``.
        vocab: number of real tokens, without padding.
        group: the ranks that hold the parts, in order.

    Returns:
        Scalar tensor.
    """

    def over_ranks(array, op: ReduceOp):  # (B * T,)
        array = array.copy()
        all_reduce(array, op, group)
        return array

    heads, *_, each = logits.shape
    first = group.rank * heads * each  # the token of this rank's first column
    all_max, all_sum = (partial(over_ranks, op=op) for op in (ReduceOp.MAX, ReduceOp.SUM))
    return cross_entropy(logits, targets, vocab, first, all_max, all_sum)


class TensorParallelExperts(Experts):
    """Experts, each with the hidden units of this rank's heads: rows (R, C) to rows (R, C), summed over the ranks.

    Args:
        experts: the single-process experts; their weights are sharded, in place.
        group: the tensor-parallel ranks.
        reduce_dtype: dtype in which the outputs, and the gradients of the rows, are summed over the ranks.
    """

    def __init__(self, experts: Experts, group: ProcessGroup, reduce_dtype=xp.float64) -> None:
        vars(self).update(vars(experts))
        for weight in (self.fc, self.proj):
            shard_heads(weight, group)
        self.group, self.reduce_dtype = group, reduce_dtype

    def enter(self, x: Tensor) -> Tensor:
        return copy_to_group(x, self.group, self.reduce_dtype)

    def leave(self, y: Tensor) -> Tensor:
        total = functional.reduce_from_heads(y, self.reduce_dtype)  # (R, C) over the heads here, not rounded yet
        return reduce_from_group(total, self.group, self.reduce_dtype, y.dtype)


class SequenceParallelMoE(MoE):
    """Mixture of experts between regions in which the tokens are split: (B, T/N, C) -> (B, T/N, C).

    Args:
        moe: the single-process mixture, whose parts are used here.
        group: the tensor-parallel ranks, N of them.
    """

    def __init__(self, moe: MoE, group: ProcessGroup) -> None:
        vars(self).update(vars(moe))
        self.group = group

    def enter(self, x: Tensor) -> Tensor:
        return gather_copies_in_group(x, self.group, SEQUENCE)  # (B, T, C)

    def leave(self, y: Tensor) -> Tensor:
        return scatter_to_group(y, self.group, SEQUENCE)  # (B, T/N, C)


def local_heads(core: CoreAttention, group: ProcessGroup) -> CoreAttention:
    """Leave this rank's heads in a core attention: dropout is keyed by their numbers."""
    mine = heads_of(group.rank, group.size, len(core.heads))
    core.heads = core.heads[mine.start : mine.stop]
    return core


def parallel_mlp(mlp: Module, group: ProcessGroup, sequence: bool, reduce_dtype) -> Module:
    """Make an MLP, or the mixture of experts in its place, tensor-parallel."""
    if isinstance(mlp, MoE):
        mlp.experts = TensorParallelExperts(mlp.experts, group, reduce_dtype)
        if mlp.shared is not None:  # the shared expert gets all tokens, as the router does
            mlp.shared = parallel_mlp(mlp.shared, group, False, reduce_dtype)
        return SequenceParallelMoE(mlp, group) if sequence else mlp
    options = {"sequence": sequence, "reduce_dtype": reduce_dtype}
    plan: Plan = {"fc": partial(column_parallel_linear, **options), "proj": partial(row_parallel_linear, **options)}
    return parallelize_module(mlp, group, plan)


def parallel_qkv(linear: Module, group: ProcessGroup, **options) -> Module:
    """Make the layer before attention column-parallel: one linear layer, or two if heads share keys and values."""
    if isinstance(linear, GroupedLinears):
        return GroupParallelLinears(linear, group, **options)
    return column_parallel_linear(linear, group, **options)


def tensor_plan(sequence: bool = False, reduce_dtype=xp.float64) -> Plan:
    """Return the plan that makes a GPT tensor-parallel; ``sequence``: the tokens are split outside the parallel layers.

    Sequence parallelism needs a second plan, for the modules outside (``sequence_plan``): apply both.
    """
    options = {"sequence": sequence, "reduce_dtype": reduce_dtype}
    return {
        "embeddings.token": VocabParallelEmbedding,
        "blocks.*.attention.core": local_heads,
        "blocks.*.attention.qkv": partial(parallel_qkv, **options),
        "blocks.*.attention.out": partial(row_parallel_linear, **options),
        "blocks.*.mlp": partial(parallel_mlp, **options),
        "head": partial(VocabParallelHead, **options),
    }


class TensorParallel(Axis):
    """Tensor parallelism as an axis: every rank holds some heads, and a copy of the parameters that no head owns.

    Args:
        group: the tensor-parallel ranks.
        plan: as for ``parallelize_module``.
    """

    def __init__(self, group: ProcessGroup, plan: Plan) -> None:
        super().__init__(group, group)
        self.plan = plan

    def apply(self, model: Module) -> Module:
        """Replace modules by their parallel versions, which keep this rank's heads of the sharded parameters."""
        parallelize_module(model, self.group, self.plan)
        self.sharded = [parameter.name for parameter in model.parameters() if parameter.sharded]
        return model

    def regions(self, regions: dict[str, Region], trained: bool = True) -> dict[str, Region]:
        return regions | {name: self._cut(regions[name]) for name in self.sharded}

    def _cut(self, region: Region) -> Region:
        of = groups_of if self.group.size > region.shape[0] else heads_of  # only key-value heads may be fewer
        mine = of(self.group.rank, self.group.size, region.shape[0])
        return region.cut(0, mine.start, mine.stop)
