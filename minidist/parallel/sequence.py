"""Sequence parallelism: between the tensor-parallel regions every rank has some of the tokens.

Tensor parallelism splits the heads, and leaves LayerNorm, dropout and the residual stream to every rank in full: the
same work N times, and N times the activations. Sequence parallelism splits the tokens there, over the same ranks:

    tokens split (B, T/N, C)     f     heads split (H/N, B, T, C)     g     tokens split (B, T/N, C)
    LayerNorm                   --->   columns, attention, rows      --->   dropout, residual

f all-gathers the tokens and g reduce-scatters the sum, each the other's backward (tools/mappings.py; the paper calls
this pair g and g-bar, and keeps f for the pair without sequence parallelism). Together they send as much as tensor
parallelism's two all-reduces, and less is saved for backward.

Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models" (2022). Simplified: the gathered
tokens are kept for backward, where Megatron-LM gathers them again; LayerNorm's gradients are summed in each
micro-batch, not once a step; and the token embedding is all-reduced and then split, where one reduce-scatter would do.
"""

from functools import partial

from minidist.backend import xp
from minidist.comm.group import ProcessGroup
from minidist.nn.layers import Dropout, LayerNorm
from minidist.nn.random import DropoutRNG
from minidist.nn.tensor import Tensor
from minidist.parallel.axis import Plan
from minidist.parallel.tools.mappings import SEQUENCE, copy_parameter_to_group, scatter_to_group


class SequenceParallelNorm(LayerNorm):
    """LayerNorm of this rank's tokens, (B, T/N, C); the gradients of gain and bias are summed over the ranks.

    Args:
        norm: the single-process layer, whose gain and bias (C,) are used here.
        group: the tensor-parallel ranks, N of them.
        reduce_dtype: dtype in which the ranks' gradients of gain and bias are summed.
    """

    def __init__(self, norm: LayerNorm, group: ProcessGroup, reduce_dtype=xp.float64) -> None:
        vars(self).update(vars(norm))
        self.normalize, self.group, self.reduce_dtype = norm.normalize, group, reduce_dtype

    def forward(self, x: Tensor) -> Tensor:
        copies = (copy_parameter_to_group(one, self.group, self.reduce_dtype) for one in self.parameters())
        return self.normalize(x, *copies)  # gain and bias, or gain alone


class SequenceParallelDropout(Dropout):
    """Dropout that draws the single-process mask, and keeps this rank's slice of it: (B, T/N, C).

    Args:
        dropout: the single-process layer.
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
    """Dropout that first splits the tokens over the ranks: (B, T, C) -> (B, T/N, C).

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


def sequence_plan(reduce_dtype=xp.float64) -> Plan:
    """Return the plan for a GPT's modules that run on split tokens; it goes with ``tensor_plan(sequence=True)``."""
    norm = partial(SequenceParallelNorm, reduce_dtype=reduce_dtype)
    return {
        "embeddings.dropout": ScatterAndDropout,
        "blocks.*.norm1": norm,
        "blocks.*.dropout1": SequenceParallelDropout,
        "blocks.*.norm2": norm,
        "blocks.*.dropout2": SequenceParallelDropout,
        "head.norm": norm,
    }
