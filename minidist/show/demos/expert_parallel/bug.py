"""Expert parallelism with one bug: an expert's gradient is averaged over the ranks that have this expert.

Over these ranks it is summed, so the mean over them looks right. But tokens of all ranks are in the sum, so the mean is
ep times too large. DeepSpeed had it (issue 5618: 4 times with ep=4), and Megatron-FSDP (Megatron-LM's pull request
5956).
"""

from collections.abc import Sequence
from functools import partial

from minidist.nn.layers import Parameter
from minidist.nn.optim.optimizers import average_gradients
from minidist.show.demos.expert_parallel.run import train_watched

BUG = "an expert's gradient is averaged over its own GPU's micro-batches, not over all"


def average_over_own_group(parameters: Sequence[Parameter], count: int, ep: int) -> None:
    """``average_gradients``, whose count for experts is that of the ranks with the same experts."""
    average_gradients([parameter for parameter in parameters if parameter.expert_axis is None], count)
    average_gradients([parameter for parameter in parameters if parameter.expert_axis is not None], count // ep)


def train_too_large(world, config, layout, options):
    """``train_watched`` with this bug."""
    return train_watched(world, config, layout, options, partial(average_over_own_group, ep=layout.ep))
