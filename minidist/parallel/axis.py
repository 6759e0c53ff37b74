"""The protocol of an axis of parallelism: what every axis says of itself, so that all of them fit together.

An axis splits one thing (the batch, the parameters, the heads, the tokens, the layers) over the ranks of one group.
``train/parallelize.py`` composes axes, and the training step talks to the result. A new axis is one class that answers
five questions, its entry there, and its key in the layout:

    the model         apply                       what of the model does this rank compute?
    the parameters    trained, sync_params        what does the optimizer update here, and who needs it?
                      regions                     where in the full arrays is what this rank holds?
                      shard_group                 which ranks hold different parameters, or shards?
    the gradients     zero_grad, no_sync          when do they begin and may they leave,
                      sync_gradients              and when are they complete?
    the loss          splits_loss, splits_batch   does each rank know a part of it only, and of the batch?
    the step          steps_apart                 do ranks take it without waiting for each other,
                      pads_micro_batches          or meet within?

The gradient norm, the overflow check, the full arrays, the fingerprint, the vote and the checkpoint follow from these
answers alone. The methods here are those of an axis that splits nothing; an axis overrides what it does differently.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from minidist import ledger
from minidist.backend import xp
from minidist.comm.group import ProcessGroup
from minidist.nn.layers import Module, Parameter
from minidist.parallel.tools.messages import views_of
from minidist.parallel.tools.regions import Region

# Which modules of a model an axis replaces, by dotted name, and by what
Plan = dict[str, Callable[[Any, ProcessGroup], Module]]
Holds = Callable[[Parameter], bool]  # whether a parameter belongs to a data axis: with experts there are two


def everything(_: Parameter) -> bool:
    """Whether a parameter belongs to the only data axis."""
    return True


def zero_gradients(parameters: Iterable[Parameter]) -> None:
    """Begin a step: give every parameter a gradient of zeros, in the dtype in which gradients are accumulated."""
    for parameter in parameters:
        parameter.grad = ledger.enter("gradients", xp.zeros(parameter.shape, parameter.grad_dtype))


def use_grad_views(parameters: Sequence[Parameter], flat) -> None:
    """Make the parameters' gradients, one after another, views of a flat array."""
    for parameter, view in zip(parameters, views_of(flat, [one.shape for one in parameters]), strict=True):
        parameter.grad = view


class Axis:
    """One axis on one rank.

    Args:
        group: the ranks that the axis splits over.

    Attributes:
        shard_group: the ranks that hold different parameters, or different shards of them, so that sums over all
            parameters have to cross it. None if no such sum does: all ranks of the group hold replicas.
        splits_loss: whether the ranks of ``group`` know different terms of the loss, which have to be added up.
        splits_batch: whether the ranks of ``group`` have different targets, whose numbers have to be added up.
        steps_apart: whether the ranks of ``group`` take steps of their own, with gradients of their own micro-batches.
        pads_micro_batches: whether ranks that work on different micro-batches meet within each, so that a rank that
            has fewer must run empty ones, without samples, for the others.
        most_micro_batches: number of micro-batches in a step, on the rank with the most. Set before ``apply``, and
            between two steps where micro-batches are dealt out anew (resilience/rebalance.py).
    """

    splits_loss = splits_batch = steps_apart = pads_micro_batches = False
    most_micro_batches = 0

    def __init__(self, group: ProcessGroup, shard_group: ProcessGroup | None = None) -> None:
        self.group, self.shard_group = group, shard_group

    def apply(self, model: Module) -> Module:
        """Change the model in place into what this rank computes, and return what this rank holds of it.

        Called once, before the first step, with what the axes applied before have left.
        """
        return model

    def trained(self, parameters: list[Parameter]) -> list[Parameter]:
        """What the optimizer updates on this rank in place of these parameters. Asked after ``apply``."""
        return parameters

    def regions(self, regions: dict[str, Region], trained: bool = True) -> dict[str, Region]:
        """Where what this rank holds after this axis is in the full arrays. Asked after ``apply``.

        Args:
            regions: the same of what the axes before this one have left, by parameter name.
            trained: ask for what the optimizer updates; otherwise for what the model computes with, as far as it is
                here between two steps. They differ where an axis shards the one and gathers the other.

        Returns:
            A region for each parameter that is here, of its shape (ZeRO's are flat).
        """
        return regions

    def zero_grad(self) -> None:
        """Begin a step: every gradient is zero."""

    def no_sync(self) -> AbstractContextManager:
        """Context manager: backward need not send. All micro-batches but the last run inside; in a pipeline, all.

        ZeRO's stages 2 and 3 send all the same: they have no room to accumulate in.
        """
        return nullcontext()

    def sync_gradients(self) -> None:
        """After backward: return when the gradients that this rank's optimizer needs are complete."""

    def sync_params(self) -> None:
        """After the optimizer: return when every rank has, or can get, the parameters that it computes with."""


def parallelize_module(module: Module, group: ProcessGroup, plan: Plan) -> Module:
    """Replace each module that the plan names by what the plan makes of it, in place, and return the whole.

    (``torch.distributed.tensor.parallel.parallelize_module``, whose plans have styles such as ``ColwiseParallel()``.)

    Args:
        module: the model, or a part of it.
        group: the axis' ranks, passed to each function of the plan.
        plan: dotted name of a module (* stands for all entries of a list) -> function of the module and the group that
            returns its replacement. The functions are called in the plan's order.

    Raises:
        ValueError: if the plan names a module that does not exist; and what its functions raise.
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
