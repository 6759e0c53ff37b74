"""One bit for each element: its sign. All magnitudes of a parameter are taken for their mean.

Seide et al., "1-Bit Stochastic Gradient Descent and its Application to Data-Parallel Distributed Training of Speech
DNNs" (Interspeech 2014), which found that it works with error feedback only; Karimireddy et al., "Error Feedback Fixes
SignSGD" (arXiv 1901.09847, 2019), with this scale and the proof.
"""

import numpy as np

from minidist.backend import xp
from minidist.overrides import overridable
from minidist.parallel.compression.feedback import grid_unit, largest, to_grid
from minidist.parallel.compression.method import Gathered


@overridable
def one_bit(corrected) -> tuple:
    """Sign and mean magnitude of a flat float64 array.

    Returns:
        Which elements are below 0 (bool, same shape), and the mean of all magnitudes (float; 0 of no elements).
    """
    scale = float(xp.abs(corrected).mean()) if corrected.size else 0.0
    return corrected < 0, scale


class OneBit(Gathered):
    """The scale as a float64, then the signs, eight to a byte."""

    on_grid = True

    def why_it_differs(self, full_rank: int) -> str:
        return f"compress={self.name} sends the signs of gradients and one mean magnitude"

    def message_bytes(self, size: int, itemsize: int) -> int:
        return 8 + -(-size // 8)

    def encode(self, values, dtype, rng: np.random.Generator) -> list:
        negative, scale = one_bit(values)
        scale = to_grid(xp.asarray([scale]), grid_unit(largest(values), values.size))  # for exact books: feedback.py
        return [scale, xp.packbits(negative)]

    def decode(self, message, size: int, dtype):
        scale = message[:8].view(xp.float64)  # (1,)
        negative = xp.unpackbits(message[8:])[:size].astype(bool)
        return xp.where(negative, -scale, scale)
