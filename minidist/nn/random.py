"""Randomness has a name: every random number comes from a generator keyed by the number's purpose.

    weights    ("weight", seed, parameter name)                              the full parameter, before any split
    data       ("data", seed, step, sample)                                  where the sample starts in the text
    order      ("order", seed, epoch)                                        the order of packed documents' samples
    dropout    ("dropout", seed, step, micro-batch, layer, place[, head])    the mask at that place; in tiled attention
                                                                             the tiles' numbers follow the head; each of
                                                                             several sequence chunks has its own mask
    rounding   ("compress", seed, step, parameter name, rank)                up or down, in messages of compressed
                                                                             gradients: ranks err independently
    directions ("compress", seed, parameter name)                            PowerSGD's initial directions

Except for a message's rounding, no number depends on the process that generates it, and none on earlier numbers. So a
run may be split in any way, stopped, resumed or recomputed in part, and it uses the same numbers. JAX's keys
(``jax.random.fold_in``) serve the same purpose. Megatron-LM keeps a generator state for each rank
(``tensor_parallel.random``), so its numbers change with the layout.
"""

import hashlib
import json
from dataclasses import dataclass, replace
from operator import index

import numpy as np


def generator(*names: str | int) -> np.random.Generator:
    """Return a new random generator with this name, always in the same initial state.

    The names are written as a JSON list, so that ("a", 11) and ("a1", 1) differ; its SHA-256 seeds a PCG64. NumPy keeps
    the bits of PCG64 stable but may change between versions how ``Generator`` turns them into, say, normal numbers. So
    runs that are compared bit for bit must use the same version of NumPy.

    Args:
        names: strings and integers, including NumPy's integers.

    Raises:
        TypeError: for a name of another type.
    """
    key = json.dumps([name if isinstance(name, str) else index(name) for name in names])
    return np.random.Generator(np.random.PCG64(int.from_bytes(hashlib.sha256(key.encode()).digest())))


@dataclass(frozen=True)
class DropoutRNG:
    """Name of one forward pass's dropout. ``micro_batch`` counts over the whole step, not over a rank's share."""

    seed: int
    step: int
    micro_batch: int
    chunk: int | None = None  # number of the chunk, for a sequence in several chunks

    def generator(self, layer: int, place: str, *part: int) -> np.random.Generator:
        """Return the generator for a place in a layer; inside attention, for one head or tile (``part``)."""
        chunk = () if self.chunk is None else ("chunk", self.chunk)
        return generator("dropout", self.seed, self.step, self.micro_batch, layer, place, *part, *chunk)

    def of_chunk(self, chunk: int) -> "DropoutRNG":
        """Return the name of the dropout in one of several sequence chunks."""
        return replace(self, chunk=chunk)
