"""Tensor parallelism: every rank holds some of each layer's head blocks, and sequence parallelism: some of the tokens.

A head is a block of its own: its queries, keys and values, 1/H of the MLP's hidden units, 1/H of the vocabulary. Inside
a block nothing depends on another block, so the blocks may lie on several ranks. What leads into the blocks is a column
parallel layer, what leads out of them a row parallel one, and between the two no rank has to ask another:

    x -> f -> columns -> GELU or attention, block by block -> rows -> g -> y

f and g are a conjugate pair (mappings.py). Without sequence parallelism f copies, and in backward all-reduces; g
all-reduces, and in backward copies. With it the tokens are split over the ranks outside the pair, where LayerNorm,
dropout and the residual are: f all-gathers them and in backward reduce-scatters, g the other way round. An all-reduce
is a reduce-scatter and an all-gather, so that this costs no more, and less is saved for backward.

Shoeybi et al., "Megatron-LM" (2019); Korthikanti et al., "Reducing Activation Recomputation in Large Transformer
Models" (2022). Simplified: what f has gathered stays for backward, where Megatron-LM gathers it again; no collective
overlaps with products; LayerNorm's gradients are summed in each micro-batch, and not once a step.

**Bits.** A product that is not made of blocks changes its bits when it is split. Cut by columns, it did in 138 of 620
shapes tried, all with parts that are no multiple of 16 columns wide, in up to 64 % of the elements: another shape runs
through another kernel of the BLAS. Cut by rows, with the partial products added in float32, in 70 to 90 % of the
elements nearly always: another order of the same sum. (OpenBLAS 0.3.31, AVX-512; tests/parallel/test_tensor_bits.py
shows it for other shapes.) So one process multiplies block by block too, and what the blocks put out is added in
float64 and rounded once, whoever adds it. That is for float32 models: of a float64 model the last bit depends on the
split.
"""

from collections.abc import Callable
from functools import partial

from minidist.backend import xp
from minidist.comm.collectives import ReduceOp, all_gather_into_tensor, all_reduce
from minidist.comm.group import ProcessGroup
from minidist.nn import functional
from minidist.nn.gpt import Attention, Head
from minidist.nn.layers import ColumnLinear, Dropout, Embedding, LayerNorm, Module, Parameter, RowLinear
from minidist.nn.loss import cross_entropy
from minidist.nn.random import DropoutRNG
from minidist.nn.tensor import Tensor
from minidist.overrides import overridable
from minidist.parallel.tools import scalars
from minidist.parallel.tools.mappings import (
    all_gather_in_group,
    copy_parameter_to_group,
    copy_to_group,
    reduce_from_group,
    reduce_scatter_in_group,
    scatter_to_group,
)

SEQUENCE = 1  # the axis of the tokens in activations (B, T, C)


@overridable
def heads_of(rank: int, ranks: int, blocks: int) -> range:
    """Which head blocks lie on a rank: as many on each, one behind the other.

    Raises:
        ValueError: if the ranks do not divide the blocks.
    """
    if blocks % ranks:
        raise ValueError(f"{blocks} head blocks cannot be split over {ranks} ranks, which must divide their number")
    each = blocks // ranks
    return range(rank * each, (rank + 1) * each)


def shard(parameter: Parameter, group: ProcessGroup) -> Parameter:
    """Keep this rank's head blocks of a parameter, (H, ...) -> (H/N, ...), and return it.

    Raises:
        ValueError: if the ranks do not divide the blocks, or the parameter is not whole.
    """
    if parameter.sharded:
        raise ValueError(f"{parameter.name or 'a parameter'} is split already: parallelize_module takes whole ones")
    mine = heads_of(group.rank, group.size, len(parameter.data))
    parameter.data = parameter.data[mine.start : mine.stop].copy()
    parameter.sharded = True
    return parameter


class ColumnParallelLinear(ColumnLinear):
    """Into the blocks of all ranks: (B, T, C) -> (H/N, B, T, out), with the columns of this rank's blocks.

    Args:
        linear: the layer of one process, whose weight (H, C, out) and bias (H, out) this one takes over and shards.
        group: the tensor-parallel ranks, N of them.
        sequence: whether what comes in is split along the tokens: (B, T/N, C). Megatron-LM's ``sequence_parallel``.
        reduce_dtype: in which the ranks' gradients of what comes in are summed.
    """

    def __init__(self, linear: ColumnLinear, group: ProcessGroup, sequence: bool, reduce_dtype=xp.float64) -> None:
        self.weight, self.bias = shard(linear.weight, group), shard(linear.bias, group)
        self.group, self.sequence, self.reduce_dtype = group, sequence, reduce_dtype

    def forward(self, x: Tensor) -> Tensor:
        x = enter_heads(x, self.group, self.sequence, self.reduce_dtype)  # (B, T, C)
        x = functional.copy_to_heads(x, self.weight.shape[0])  # (H/N, B, T, C)
        return functional.linear(x, self.weight, self.bias)  # (H/N, B, T, out)


class RowParallelLinear(RowLinear):
    """Out of the blocks of all ranks: (H/N, B, T, in) -> (B, T, C), the sum over all blocks, plus the bias once.

    Args:
        linear: the layer of one process: its weight (H, in, C) is sharded, (H/N, in, C); its bias (C,) stays whole.
        group: the tensor-parallel ranks, N of them.
        sequence: whether what goes out is split along the tokens: (B, T/N, C).
        reduce_dtype: in which the ranks' outputs are summed.
    """

    def __init__(self, linear: RowLinear, group: ProcessGroup, sequence: bool, reduce_dtype=xp.float64) -> None:
        self.weight, self.bias = shard(linear.weight, group), linear.bias
        self.group, self.sequence, self.reduce_dtype = group, sequence, reduce_dtype

    def forward(self, x: Tensor) -> Tensor:
        y = functional.linear(x, self.weight, partial=True)  # (H/N, B, T, C)
        total = functional.reduce_from_heads(y, self.reduce_dtype)  # (B, T, C) over the blocks here, not rounded yet
        if self.sequence:
            y = reduce_scatter_in_group(total, self.group, SEQUENCE, self.reduce_dtype, y.dtype)  # (B, T/N, C)
            return y + copy_parameter_to_group(self.bias, self.group, self.reduce_dtype)
        return reduce_from_group(total, self.group, self.reduce_dtype, y.dtype) + self.bias  # (B, T, C)


column_parallel_linear = overridable(ColumnParallelLinear)  # makes one, or a learner's own of that name
row_parallel_linear = overridable(RowParallelLinear)


def enter_heads(x: Tensor, group: ProcessGroup, sequence: bool, reduce_dtype) -> Tensor:
    """f: every rank gets all tokens, for its own blocks. Of (B, T, C), or split along the tokens, comes (B, T, C)."""
    if sequence:
        return all_gather_in_group(x, group, SEQUENCE, reduce_dtype)
    return copy_to_group(x, group, reduce_dtype)


class VocabParallelEmbedding(Embedding):
    """Looks tokens up in a vocabulary that is split over the ranks: integers (B, T) -> (B, T, C).

    Args:
        embedding, group: as for ``ColumnParallelLinear``.
    """

    def __init__(self, embedding: Embedding, group: ProcessGroup) -> None:
        self.weight, self.group = shard(embedding.weight, group), group

    def forward(self, tokens) -> Tensor:
        blocks, each, _ = self.weight.shape
        rows = functional.embedding(self.weight, tokens, first=self.group.rank * blocks * each)  # (B, T, C)
        return reduce_from_group(rows, self.group, rows.dtype)  # a row and zeros: exact in any dtype


class VocabParallelHead(Head):
    """The logits of this rank's part of the vocabulary, and the loss from all parts without joining them.

    Its weight is the embedding's, so it is sharded already. In a plan it stands behind the embedding.

    Args:
        head: of one process, whose parts this one takes over.
        group, sequence, reduce_dtype: as for ``ColumnParallelLinear``.
    """

    def __init__(self, head: Head, group: ProcessGroup, sequence: bool, reduce_dtype=xp.float64) -> None:
        if not head.token.weight.sharded:
            raise ValueError(
                "the head's weight is the embedding's: a plan for the head needs one for the embedding first"
            )
        self.norm, self.token, self.vocab = head.norm, head.token, head.vocab
        self.group, self.sequence, self.reduce_dtype = group, sequence, reduce_dtype

    def output(self, x: Tensor) -> Tensor:
        return super().output(enter_heads(x, self.group, self.sequence, self.reduce_dtype))  # (H/N, B, T, V/H)

    def loss(self, x: Tensor, targets) -> Tensor:
        return vocab_parallel_cross_entropy(self(x), targets, self.vocab, self.group)


@overridable
def vocab_parallel_cross_entropy(logits: Tensor, targets, vocab: int, group: ProcessGroup) -> Tensor:
    """The mean cross-entropy, with the same bits on every rank, of logits that no rank has all of.

    Three numbers a token cross the ranks: the largest logit, the sum of the exponentials and the target's logit.
    (Megatron-LM's function of this name.)

    Args:
        logits: (H/N, B, T, V/H), those of this rank's part of the vocabulary.
        targets: integers (B, T) below ``vocab``.
        vocab: the number of real tokens.
        group: the ranks that hold the parts, in order.

    Returns:
        A scalar.
    """

    def joined(op: ReduceOp):
        def join(array):  # (B * T,)
            array = array.copy()
            all_reduce(array, op, group)
            return array

        return join

    blocks, *_, each = logits.shape
    first = group.rank * blocks * each  # the token of this rank's first column
    return cross_entropy(logits, targets, vocab, first, joined(ReduceOp.MAX), joined(ReduceOp.SUM))


class SequenceParallelLayerNorm(LayerNorm):
    """Normalises this rank's tokens, (B, T/N, C); the gradients of gain and bias are summed over the ranks' tokens.

    Args:
        norm: the layer of one process, whose gain and bias (C,) this one takes over.
        group, reduce_dtype: as for ``ColumnParallelLinear``; it is the token sums of those gradients that are added.
    """

    def __init__(self, norm: LayerNorm, group: ProcessGroup, reduce_dtype=xp.float64) -> None:
        self.gain, self.bias = norm.gain, norm.bias
        self.group, self.reduce_dtype = group, reduce_dtype

    def forward(self, x: Tensor) -> Tensor:
        gain = copy_parameter_to_group(self.gain, self.group, self.reduce_dtype)
        bias = copy_parameter_to_group(self.bias, self.group, self.reduce_dtype)
        return functional.layer_norm(x, gain, bias)


class SequenceParallelDropout(Dropout):
    """Drops of this rank's tokens, (B, T/N, C), what one process would drop of them: drawn for all, then cut.

    Args:
        dropout: the layer of one process.
        group: the tensor-parallel ranks, N of them.
    """

    def __init__(self, dropout: Dropout, group: ProcessGroup) -> None:
        super().__init__(dropout.rate, dropout.layer, dropout.place)
        self.group = group

    def keep(self, shape: tuple[int, ...], dropout_rng: DropoutRNG):
        batch, length, width = shape
        keep = super().keep((batch, length * self.group.size, width), dropout_rng)  # (B, T, C)
        return xp.split(keep, self.group.size, SEQUENCE)[self.group.rank].copy()


class ScatterAndDropout(SequenceParallelDropout):
    """Where the tokens are split: (B, T, C) -> (B, T/N, C).

    Raises:
        ValueError: if the ranks do not divide the tokens.
    """

    def forward(self, x: Tensor, dropout_rng: DropoutRNG | None) -> Tensor:
        if x.shape[SEQUENCE] % self.group.size:
            raise ValueError(
                f"{x.shape[SEQUENCE]} tokens cannot be split over {self.group.size} sequence-parallel ranks: "
                f"pass a multiple of {self.group.size}"
            )
        return super().forward(scatter_to_group(x, self.group, SEQUENCE), dropout_rng)


def local_heads(attention: Attention, group: ProcessGroup) -> Attention:
    """Tell attention which heads are computed here: their dropout goes by their numbers."""
    mine = heads_of(group.rank, group.size, len(attention.heads))
    attention.heads = attention.heads[mine.start : mine.stop]
    return attention


Plan = dict[str, Callable[[Module, ProcessGroup], Module]]


def gpt_plan(sequence: bool = False, reduce_dtype=xp.float64) -> Plan:
    """What stands in for which module of a GPT, with sequence parallelism or without."""
    options = {"sequence": sequence, "reduce_dtype": reduce_dtype}
    plan = {
        "embeddings.token": VocabParallelEmbedding,
        "blocks.*.attention": local_heads,
        "blocks.*.attention.qkv": partial(column_parallel_linear, **options),
        "blocks.*.attention.out": partial(row_parallel_linear, **options),
        "blocks.*.mlp.fc": partial(column_parallel_linear, **options),
        "blocks.*.mlp.proj": partial(row_parallel_linear, **options),
        "head": partial(VocabParallelHead, **options),
    }
    if sequence:
        norm = partial(SequenceParallelLayerNorm, reduce_dtype=reduce_dtype)
        plan |= {
            "embeddings.dropout": ScatterAndDropout,
            "blocks.*.norm1": norm,
            "blocks.*.dropout1": SequenceParallelDropout,
            "blocks.*.norm2": norm,
            "blocks.*.dropout2": SequenceParallelDropout,
            "head.norm": norm,
        }
    return plan


def parallelize_module(module: Module, group: ProcessGroup, plan: Plan) -> Module:
    """Put in place of each module that the plan names what the plan makes of it, and return the changed module.

    (``torch.distributed.tensor.parallel.parallelize_module``, whose plans have styles such as ``ColwiseParallel()``.)

    Args:
        module: all of whose parameters are whole.
        group: the tensor-parallel ranks.
        plan: for a module's dotted name, with * for all entries of a list on the way to it, a function of the module
            and the group. They are called in the plan's order.

    Raises:
        ValueError: if the plan names a module that there is not, or one whose parameters are split already.
    """
    for path, style in plan.items():
        name = path.split(".")[-1]
        for owner in _owners(module, path):
            setattr(owner, name, style(getattr(owner, name), group))
    return module


def _owners(module: Module, path: str) -> list[Module]:
    """The modules that have the attribute that a path ends with."""
    owners: list = [module]
    *way, name = path.split(".")
    for step in way:
        if step == "*":
            owners = [part for owner in owners for part in (owner if isinstance(owner, list) else [])]
        else:
            owners = [getattr(owner, step, None) for owner in owners]
    if not owners or not all(isinstance(getattr(owner, name, None), Module) for owner in owners):
        raise ValueError(f"the plan names {path!r}, but the {type(module).__name__} has no such module")
    return owners


class TensorParallel:
    """A model made tensor parallel, as the training loop sees it: what lies where, for the norm and for checkpoints.

    Args:
        model: with whole parameters, already drawn; changed here.
        group: the tensor-parallel ranks; of one rank, the model stays as it is.
        plan: as for ``parallelize_module``.
    """

    def __init__(self, model: Module, group: ProcessGroup, plan: Plan) -> None:
        self.group = group
        if group.size > 1:
            parallelize_module(model, group, plan)
        self.sharded = {parameter.name for parameter in model.parameters() if parameter.sharded}

    def owns(self, parameter: Parameter) -> bool:
        """Whether a parameter's gradient enters the global norm on this rank.

        What is sharded does on every rank; what every rank has a copy of, on one. Otherwise a norm over all ranks has N
        times what the copies add to it. (Megatron-LM: ``param_is_not_tensor_parallel_duplicate``.)
        """
        return parameter.name in self.sharded or self.group.rank == 0

    def all_max(self, value: float) -> float:
        """The largest of the ranks' values."""
        return scalars.largest(value, self.group)

    def all_sum(self, value: int) -> int:
        """The sum of the ranks' integers."""
        return scalars.total(value, self.group)

    def whole(self, arrays: dict) -> dict:
        """From this rank's arrays, by parameter name, to those of one process. Called by all ranks."""
        return {name: self._gathered(array) if name in self.sharded else array for name, array in arrays.items()}

    def _gathered(self, array):
        whole = xp.empty((self.group.size * len(array), *array.shape[1:]), array.dtype)  # (H, ...)
        all_gather_into_tensor(whole, xp.ascontiguousarray(array), self.group)
        return whole
