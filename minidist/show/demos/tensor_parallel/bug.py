"""Tensor and sequence parallelism with one bug each: a sum over the ranks is skipped. The trace shows where."""

from contextlib import contextmanager
from unittest.mock import patch

from minidist.backend import xp
from minidist.comm.group import ProcessGroup
from minidist.nn import functional
from minidist.parallel import tensor
from minidist.parallel.sequence import SequenceParallelNorm
from minidist.parallel.tools import mappings
from minidist.show.demos.tensor_parallel.halves import DROPPED_G, DROPPED_GAIN
from minidist.train.trainer import train_rank

WITHOUT_G = "blocks.0.mlp.proj"


@contextmanager
def without_g():
    """Skip g's sum inside a ``with`` block: each rank continues with its own partial sum."""
    with patch.object(mappings, "sum_over", lambda array, group, dtype: _skip(DROPPED_G, group) or array):
        yield


def drops_g(world, config, layout, options):
    """Train with the bug: after one layer, each rank continues with its own partial sum."""

    def skipped(x, group: ProcessGroup, reduce_dtype, dtype):
        with without_g():
            return mappings.reduce_from_group(x, group, reduce_dtype, dtype)

    class WithoutG(tensor.RowParallelLinear):
        def forward(self, x):
            with patch.object(tensor, "reduce_from_group", skipped):
                return super().forward(x)

    def row_parallel_linear(linear, group, **options):
        broken = linear.weight.name == f"{WITHOUT_G}.weight"
        return (WithoutG if broken else tensor.RowParallelLinear)(linear, group, **options)

    with patch.object(tensor, "row_parallel_linear", row_parallel_linear):
        return train_rank(world, config, layout, options)


def drops_gains(world, config, layout, options):
    """Train with the bug: each rank has the gradient of LayerNorm's gains from its own tokens alone."""

    def forward(self: SequenceParallelNorm, x):
        def unsummed(gradient):
            return _skip(DROPPED_GAIN, self.group) or gradient

        gain = mappings.Mapping.apply(self.gain, there=xp.copy, back=unsummed)
        bias = mappings.copy_parameter_to_group(self.bias, self.group, self.reduce_dtype)
        return functional.layer_norm(x, gain, bias)

    with patch.object(SequenceParallelNorm, "forward", forward):
        return train_rank(world, config, layout, options)


def _skip(name: str, group: ProcessGroup) -> None:
    """Leave an empty entry in the trace, in place of a collective."""
    group.run_collective(name, lambda inside: None)
