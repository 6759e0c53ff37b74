"""A plan says which modules of a model are replaced, and by what; ``parallelize_module`` carries it out."""

from collections.abc import Callable

from minidist.comm.group import ProcessGroup
from minidist.nn.layers import Module

Plan = dict[str, Callable[[Module, ProcessGroup], Module]]


def parallelize_module(module: Module, group: ProcessGroup, plan: Plan) -> Module:
    """Replace each module that the plan names by what the plan makes of it, in place, and return the whole.

    (``torch.distributed.tensor.parallel.parallelize_module``, whose plans have styles such as ``ColwiseParallel()``.)

    Args:
        module: its parameters are all full.
        group: the tensor-parallel ranks.
        plan: for a module's dotted name, with * for all entries of a list on the way to it, a function of the module
            and the group. They are called in the plan's order.

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
