"""The protocol of an axis of parallelism: the methods by which all axes fit together.

An axis splits one thing (the batch, the parameters, the heads, the tokens, the layers) over the ranks of one group.
``train/parallelize.py`` composes axes, and the training step talks to the result. A new axis is one class that answers
five questions, its entry there, and its key in the layout:

    the model         apply                       which part of the model does this rank compute?
    the parameters    trained, sync_params        what does the optimizer update here, and who needs it?
                      regions                     where in the full arrays is this rank's part?
                      shard_group                 which ranks hold different parameters, or shards?
    the gradients     zero_grad, no_sync          when are they zeroed, when may they be sent,
                      sync_gradients              and when are they complete?
    the loss          splits_loss, splits_batch   does each rank know only part of it, or of the batch?
    the step          steps_apart                 do ranks take it without waiting for each other,
                      pads_micro_batches          or meet within each micro-batch?

The gradient norm, the overflow check, the full arrays, the fingerprint, the vote and the checkpoint follow from these
answers alone. The methods here are those of an axis that splits nothing; a real axis overrides some of them.
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

# Dotted name of a module that an axis replaces -> function that makes the replacement
Plan = dict[str, Callable[[Any, ProcessGroup], Module]]
Holds = Callable[[Parameter], bool]  # whether a parameter belongs to a data axis: with experts there are two


def everything(_: Parameter) -> bool:
    """Return True: where there is one data axis, every parameter belongs to it."""
    return True


def zero_gradients(parameters: Iterable[Parameter]) -> None:
    """Give every parameter a gradient of zeros, in the dtype in which gradients are accumulated."""
    for parameter in parameters:
        parameter.grad = ledger.enter("gradients", xp.zeros(parameter.shape, parameter.grad_dtype))


def use_grad_views(parameters: Sequence[Parameter], flat) -> None:
    """Make the parameters' gradients, one after another, views of a flat array."""
    for parameter, view in zip(parameters, views_of(flat, [one.shape for one in parameters]), strict=True):
        parameter.grad = view


class Axis:
    """One axis of parallelism on one rank.

    Args:
        group: the ranks that the axis splits over.

    Attributes:
        shard_group: the ranks that hold different parameters, or different shards of them: sums over all parameters
            have to cross it. None if all ranks of the group hold replicas.
        splits_loss: whether the ranks of ``group`` know different terms of the loss, which have to be added up.
        splits_batch: whether the ranks of ``group`` have different targets, whose counts have to be added up.
        steps_apart: whether each rank of ``group`` takes its own steps, with gradients of its own micro-batches.
        pads_micro_batches: whether ranks with different micro-batches meet within each of them. A rank that has fewer
            must then run empty ones, without samples, for the others.
        most_micro_batches: number of micro-batches in a step on the rank with the most. Set before ``apply``, and
            between two steps if micro-batches are dealt out anew (resilience/rebalance.py).
    """

    splits_loss = splits_batch = steps_apart = pads_micro_batches = False
    most_micro_batches = 0

    def __init__(self, group: ProcessGroup, shard_group: ProcessGroup | None = None) -> None:
        self.group, self.shard_group = group, shard_group

    def apply(self, model: Module) -> Module:
        """Turn the model, in place, into the part that this rank computes, and return the part that it holds.

        Called once, before the first step, with the model that the previous axes returned.
        """
        return model

    def trained(self, parameters: list[Parameter]) -> list[Parameter]:
        """Return the parameters that this rank's optimizer updates instead of these. Called after ``apply``."""
        return parameters

    def regions(self, regions: dict[str, Region], trained: bool = True) -> dict[str, Region]:
        """Return where in the full arrays this rank's part lies once this axis has split it. Called after ``apply``.

        Args:
            regions: the regions that the previous axes left to this rank, by parameter name.
            trained: return the regions of the parameters that the optimizer updates; if False, of those that the model
                computes with, as far as this rank holds them between steps. ZeRO shards the former, gathers the latter.

        Returns:
            Parameter name -> region, of the parameter's shape here (ZeRO's are flat), for all that this rank holds.
        """
        return regions

    def zero_grad(self) -> None:
        """Begin a step: set every gradient to zero."""

    def no_sync(self) -> AbstractContextManager:
        """Return a context manager in which backward need not send gradients.

        All micro-batches but the last run inside it; in a pipeline, all. ZeRO's stages 2 and 3 send even so, as they
        have no room to accumulate gradients in.
        """
        return nullcontext()

    def sync_gradients(self) -> None:
        """Wait, after backward, until the gradients that this rank's optimizer needs are complete."""

    def sync_params(self) -> None:
        """Wait, after the optimizer's step, until every rank has, or can get, the parameters that it computes with."""


def parallelize_module(module: Module, group: ProcessGroup, plan: Plan) -> Module:
    """Replace, in place, each module that the plan names, and return ``module``.

    (``torch.distributed.tensor.parallel.parallelize_module``, whose plans have styles such as ``ColwiseParallel()``.)

    Args:
        module: the model, or a part of it.
        group: the axis' ranks, passed to each function of the plan.
        plan: dotted name of a module (* stands for all entries of a list) -> function of the module and the group that
            returns its replacement. The functions are called in the plan's order.

    Raises:
        ValueError: if the plan names a module that does not exist. Errors of the plan's functions pass through.
    """
    for path, style in plan.items():
        name = path.split(".")[-1]
        for owner in _owners(module, path):
            setattr(owner, name, style(getattr(owner, name), group))
    return module


def _owners(module: Module, path: str) -> list[Module]:
    """Return the modules that own the attribute at the end of a path."""
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
