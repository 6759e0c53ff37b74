"""The fingerprint of a run: what all layouts must share."""

import hashlib

import numpy as np

from minidist import backend
from minidist.nn.gpt import GPT
from minidist.nn.optim import AdamW


def state(model: GPT, optimizer: AdamW, *parts) -> dict:
    """Every array that a run changes, by name, in its full shape.

    Args:
        model: whose parameters' names say what there is.
        optimizer: of what lies on this rank.
        parts: what has cut the model: each makes from the arrays that a rank holds, by name, those of more, with a
            method ``whole`` that all its ranks call together. From the last cut to the first: ZeRO, pipeline, tensor.
    """
    data = {parameter.name: parameter.data for parameter in optimizer.parameters}
    found = {}
    for kind, arrays in ({"": data} | optimizer.kinds).items():
        for part in parts:
            arrays = part.whole(arrays)
        found |= {f"{kind}{name}": arrays[parameter.name] for name, parameter in model.named_parameters()}
    return found


def digest(model: GPT, optimizer: AdamW, *parts):
    """SHA-256 over the names and the bytes of every parameter and every optimizer state; ``parts`` as of ``state``."""
    sha = hashlib.sha256()
    for name, array in state(model, optimizer, *parts).items():
        sha.update(name.encode())
        sha.update(np.ascontiguousarray(backend.to_host(array)))
    return sha


def fingerprint(model: GPT, optimizer: AdamW, losses: list[float], *parts) -> str:
    """The digest of the final state, continued over the loss of every step: what all layouts must share."""
    sha = digest(model, optimizer, *parts)
    sha.update(np.array(losses, "<f8"))
    return sha.hexdigest()
