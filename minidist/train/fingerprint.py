"""The fingerprint of a run: what all layouts must share."""

import hashlib
from collections.abc import Callable

import numpy as np

from minidist import backend
from minidist.nn.layers import Module
from minidist.nn.optim.optimizers import Optimizer

FullState = Callable[[dict], dict]


def as_it_is(arrays: dict) -> dict:
    """Return the arrays: one process has all of them in full."""
    return arrays


def state(model: Module, optimizer: Optimizer, full_state: FullState = as_it_is) -> dict:
    """Return every array that a run changes, by name, in its full shape.

    Args:
        model: the model, for the names of all parameters and its extra state.
        optimizer: optimizer of the parameters that this rank trains.
        full_state: function that gathers the full arrays, by parameter name: ``ParallelModel.full_state``. All ranks
            call it together.
    """
    data = {parameter.name: parameter.data for parameter in optimizer.parameters}
    found = {}
    for kind, arrays in ({"": data} | optimizer.kinds).items():
        full = full_state(arrays)
        found |= {f"{kind}{name}": full[parameter.name] for name, parameter in model.named_parameters()}
    return found | model.extra_state()


def digest(model: Module, optimizer: Optimizer, full_state: FullState = as_it_is):
    """Return a SHA-256 object that has hashed the names and bytes of all arrays of ``state``; arguments: see there."""
    sha = hashlib.sha256()
    for name, array in state(model, optimizer, full_state).items():
        sha.update(name.encode())
        sha.update(np.ascontiguousarray(backend.to_host(array)).data)
    return sha


def fingerprint(model: Module, optimizer: Optimizer, losses: list[float], full_state: FullState = as_it_is) -> str:
    """Return the SHA-256 of the final state and the loss of every step, in hexadecimal."""
    sha = digest(model, optimizer, full_state)
    sha.update(np.array(losses, "<f8").data)
    return sha.hexdigest()
