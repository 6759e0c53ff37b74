"""Randomness has a name: every random number comes from a generator keyed by what the number is for.

    weights    ("weight", seed, parameter name)                               drawn whole, before anything is split
    data       ("data", seed, step, sample)                                   where the sample starts in the text
    dropout    ("dropout", seed, step, micro-batch, layer, place[, block])    what is dropped there

Nothing depends on which process draws, or on what it drew before. So a run may be split in any way, stopped, resumed or
recomputed in part, and it sees the same numbers. JAX's keys (``jax.random.fold_in``) serve the same end; Megatron-LM
instead keeps a generator state for each rank (``tensor_parallel.random``), and its numbers change with the layout.
"""

import hashlib
import json
from dataclasses import dataclass
from operator import index

import numpy as np


def generator(*names: str | int) -> np.random.Generator:
    """The random generator of this name, always in the same state when asked for.

    The names are written as a JSON list, so that ("a", 11) and ("a1", 1) differ; its SHA-256 seeds a PCG64. NumPy keeps
    the numbers of one bit generator stable, and may change how ``Generator`` turns them into, say, normal ones between
    versions; runs to be compared to the bit use one version of NumPy.

    Args:
        names: strings and integers, NumPy's integers included.

    Raises:
        TypeError: for a name of another type.
    """
    key = json.dumps([name if isinstance(name, str) else index(name) for name in names])
    return np.random.Generator(np.random.PCG64(int.from_bytes(hashlib.sha256(key.encode()).digest())))


@dataclass(frozen=True)
class DropoutRNG:
    """Which dropout a forward pass gets. ``micro_batch`` is counted over the whole step, not over one rank's share."""

    seed: int
    step: int
    micro_batch: int

    def generator(self, layer: int, place: str, *block: int) -> np.random.Generator:
        """The generator for one place in one layer, and for one head block where the place is inside one."""
        return generator("dropout", self.seed, self.step, self.micro_batch, layer, place, *block)
