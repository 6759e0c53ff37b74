"""What a rank notes of its numbers, a digest of each part after each step: small enough to send to every other rank.

Beside what it holds, a rank notes the gradients that it has computed itself, before they meet another rank's. Once they
are summed, the wrong number of one rank is in the state of all.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import astuple

import numpy as np

from minidist import backend
from minidist.comm.group import ProcessGroup
from minidist.nn.layers import Parameter
from minidist.parallel.tools.messages import texts_of_all
from minidist.train.replicas.parts import GRADIENT, LOSS, Key, Parts, digest
from minidist.train.share import Share

Noted = list[list[str]]  # for each step, and before the first, the digest of every key


class OwnGradients:
    """Hashes each gradient whenever backward has completed it, ahead of whoever sends it."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self.names = [parameter.name for parameter in parameters]
        self.clear()
        for parameter in parameters:
            parameter.hooks.insert(0, self.add)

    def clear(self) -> None:
        self.hashes = {name: hashlib.sha256() for name in self.names}

    def add(self, parameter: Parameter) -> None:
        self.hashes[parameter.name].update(np.ascontiguousarray(backend.to_host(parameter.grad)))

    def take(self) -> list[str]:
        """The digests of a step, which ends."""
        found = [sha.hexdigest()[:16] for sha in self.hashes.values()]
        self.clear()
        return found


class Notes:
    """The notes of one rank on one computation of some steps.

    Args:
        share: whose numbers.
        gradients: whether to note the rank's own gradients too.

    Attributes:
        keys: what is noted, in this order.
        noted: the digests, first of the state before the first of these steps.
    """

    def __init__(self, share: Share, gradients: bool) -> None:
        self.parts = Parts(share)
        self.own = OwnGradients(share.model.local.parameters() if gradients else ())
        self.keys = [*(Key(GRADIENT, name) for name in self.own.names), *self.parts.get, Key(LOSS, "the loss")]
        self.begin()

    def begin(self) -> None:
        """Forget all steps so far: the next one is the first."""
        self.noted: Noted = []
        self.after_step(0.0)

    def after_step(self, loss: float) -> None:
        state = [digest(self.parts.on_host(key)) for key in self.parts.get]
        self.noted.append([*self.own.take(), *state, digest(np.float64([loss]))])

    def of_all(self, world: ProcessGroup) -> list[Noted]:
        """The digests of all ranks."""
        lines = "\n".join(" ".join(digests) for digests in self.noted)
        return [[line.split(" ") for line in text.split("\n")] for text in texts_of_all(lines, world)]

    def keys_of_all(self, world: ProcessGroup) -> list[list[Key]]:
        """The keys of all ranks."""
        mine = json.dumps([astuple(key) for key in self.keys])
        return [[Key.of(*key) for key in json.loads(text)] for text in texts_of_all(mine, world)]
