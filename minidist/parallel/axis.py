"""The protocol of an axis of parallelism: what every axis says of itself, so that all of them fit together.

An axis splits one thing (the batch, the parameters, the heads, the tokens, the layers) over the ranks of one group.
``train/parallelize.py`` composes axes, and the training step talks to the result. A new axis is one class that answers
six questions, its entry there, and its key in the layout:

    the model         apply                                  what of the model does this rank compute?
    the parameters    shard_group, owner                     who holds a shard of its own, who a replica?
                      trained, sync_params                   what does the optimizer update here, and who needs it?
                      attach                                 and what of the optimizer does the axis need?
    the gradients     zero_grad, no_sync, sync_gradients     when are they complete, and on which ranks?
                      late, hold_back                        which are summed with other ranks' after the last one?
                      set_rounds                             how many micro-batches has the rank with the most?
    the loss          splits_loss                            does each rank know a part of it only?
    the step          steps_apart                            do ranks take it without waiting for each other?
    full arrays       full_state                             how do the arrays of one process come back?
                      regions                                where in them are those that this rank holds?
                      model_regions                          and those that its model computes with?

The gradient norm, the overflow check, the fingerprint, the full state and the checkpoint follow from these answers
alone. The methods here are those of an axis that splits nothing; an axis overrides what it does differently.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from minidist.comm.group import ProcessGroup
from minidist.nn.layers import Module, Parameter
from minidist.nn.optim.optimizers import Optimizer
from minidist.parallel.tools.regions import Region

# Which modules of a model an axis replaces, by dotted name, and by what
Plan = dict[str, Callable[[Module, ProcessGroup], Module]]


class Axis:
    """One axis on one rank.

    Args:
        group: the ranks that the axis splits over.

    Attributes:
        shard_group: the ranks that hold different parameters, or different shards of them. None if all ranks
            of the group hold replicas: then no reduction over the parameters is needed.
        splits_loss: whether the ranks of ``group`` know different terms of the loss, which have to be added up.
        steps_apart: whether the ranks of ``group`` take steps of their own, with gradients of their own micro-batches.
        pushes_taken: pushes that a parameter server has taken, in order (loosened/server.py).
        late: parameters whose full gradients this axis needs in ``sync_gradients``. Known after ``apply``.
    """

    splits_loss = steps_apart = False
    late: Sequence[Parameter] = ()
    pushes_taken: Sequence = ()

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

    def attach(self, optimizer: Optimizer) -> None:
        """The optimizer of what is trained here has been made. Called once, before the first step."""

    def hold_back(self, parameters: Sequence[Parameter]) -> None:
        """Keep these gradients full on this rank until ``sync_gradients``: an axis before this one needs them there."""

    def owner(self, name: str) -> int | None:
        """Which rank of ``shard_group`` counts a parameter that several of them may hold; None where it is sharded.

        In a sum over all parameters, the gradient norm say, every shard counts, and of replicas only the owner's.
        (Megatron-LM: ``param_is_not_tensor_parallel_duplicate``.)
        """
        return None

    def zero_grad(self) -> None:
        """Begin a step: every gradient is zero."""

    def no_sync(self) -> AbstractContextManager:
        """Context manager: backward only accumulates. All micro-batches but the last run inside; in a pipeline, all."""
        return nullcontext()

    def set_rounds(self, rounds: int) -> None:
        """Be told, between two steps, the largest number of micro-batches on any rank.

        Called between two steps, on all ranks alike, where micro-batches are dealt out anew (resilience/rebalance.py).
        """

    def sync_gradients(self) -> None:
        """After backward: return when the gradients that this rank's optimizer needs are complete."""

    def sync_params(self) -> None:
        """After the optimizer: return when every rank has, or can get, the parameters that it computes with."""

    def full_state(self, arrays: dict) -> dict:
        """Gather the full arrays, by parameter name, from those that the ranks hold. All ranks call it together.

        Args:
            arrays: parameter name -> its values, or one of its optimizer states, in the shape that ``trained`` has.
        """
        return arrays

    def regions(self, regions: dict[str, Region]) -> dict[str, Region]:
        """Where what this rank holds after this axis is in the full arrays. Asked after ``apply``.

        Args:
            regions: the same of what the axes before this one have left, by parameter name.

        Returns:
            A region for each parameter of ``trained``, of its shape (ZeRO's are flat). A parameter that is not on this
            rank has none.
        """
        return regions

    def model_regions(self, regions: dict[str, Region]) -> dict[str, Region]:
        """Regions of the parameters that this rank computes with, as far as it has them between two steps.

        They are others where an axis shards what the optimizer updates, and gathers it for the model.
        """
        return self.regions(regions)


def parallelize_module(module: Module, group: ProcessGroup, plan: Plan) -> Module:
    """Replace each module that the plan names by what the plan makes of it, in place, and return the whole.

    (``torch.distributed.tensor.parallel.parallelize_module``, whose plans have styles such as ``ColwiseParallel()``.)

    Args:
        module: its parameters are all full.
        group: the tensor-parallel ranks.
        plan: dotted name of a module (* stands for all entries of a list) -> function of the module and the group that
            returns its replacement. The functions are called in the plan's order.

    Raises:
        ValueError: if the plan names a module that does not exist, or one that is sharded already.
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
