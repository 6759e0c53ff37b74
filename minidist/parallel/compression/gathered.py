"""Compressed messages that cannot be added: every rank sends its own to all, and adds up what it decodes.

    one bit        the signs, and one magnitude for a parameter
    bf16, int8     fewer bits for each element, rounded stochastically, so that the mean is right
    top-k          a share of the elements, the largest ones, as they are

Signs: Seide et al., "1-Bit Stochastic Gradient Descent and its Application to Data-Parallel Distributed Training of
Speech DNNs" (Interspeech 2014), which found that it works with error feedback only; Karimireddy et al., "Error Feedback
Fixes SignSGD" (arXiv 1901.09847, 2019), with this scale and the proof.

Rounding to nearest loses an element below half a unit in every step. Rounded stochastically, it counts as a whole unit
now and then, just as often as its size demands: the gradient stays unbiased and only gets noisier (Alistarh et al.,
"QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding", arXiv 1610.02132, 2017). So nothing needs
feeding back. Ranks round with random numbers of their own; if all rounded alike, their errors would add up, not average
out.

Largest elements: Aji and Heafield, "Sparse Communication for Distributed Gradient Descent" (arXiv 1704.05021, 2017);
Lin et al., "Deep Gradient Compression" (arXiv 1712.01887, 2018), which sends one element in a thousand. Such a small
share needs momentum correction, local clipping and a warm-up of the share, which are not here.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from fractions import Fraction
from math import ceil, prod

import numpy as np

from minidist.backend import from_host, xp
from minidist.comm.collectives import ALL_GATHER, all_gather_into_tensor
from minidist.comm.group import ProcessGroup
from minidist.nn.precision.formats import BFLOAT16
from minidist.nn.random import generator
from minidist.overrides import overridable
from minidist.parallel.compression.feedback import Residuals, grid_unit, largest, to_grid
from minidist.parallel.compression.method import Method, Shape

STEPS = 127  # of an int8 on either side of 0


class Gathered(Method):
    """Method whose messages cannot be added: each rank sends its own to all, decodes all, and adds in rank order.

    Sums are in float64. A rank sends and receives (N-1) messages, where an all-reduce sends less than two for any N: a
    small message saves nothing with many ranks. (Vogels et al., 2019, choose low rank because factors can be added.)
    """

    @abstractmethod
    def message_bytes(self, size: int, itemsize: int) -> int:
        """Bytes of the message for a parameter of ``size`` elements, in a bucket with ``itemsize`` bytes an element."""

    @abstractmethod
    def encode(self, values, dtype, rng: np.random.Generator) -> list:
        """Encode a flat float64 array as a list of arrays, whose sizes and dtypes are the same on every rank.

        Args:
            dtype: dtype of the bucket.
            rng: random numbers for stochastic methods.
        """

    @abstractmethod
    def decode(self, message, size: int, dtype) -> np.ndarray:
        """Decode a message (uint8) to float64.  (size,)"""

    def bytes_sent(self, shapes: Sequence[Shape], ranks: int, itemsize: int) -> float:
        return (ranks - 1) * sum(self.message_bytes(prod(shape), itemsize) for shape in shapes)

    def sum_gradients(
        self, gradients: dict, residuals: Residuals | None, names: Sequence, group: ProcessGroup, algorithm: str
    ) -> None:
        messages = {}
        for name, gradient in gradients.items():
            send = self._sender(name, gradient, messages, generator("compress", *names, name, group.rank))
            flat = gradient.reshape(-1).astype(xp.float64)
            if residuals is None:
                send(flat)
            else:
                residuals.send(name, flat, send)
        mine = xp.concatenate(list(messages.values()))
        gathered = xp.empty((group.size, mine.size), xp.uint8)
        all_gather_into_tensor(gathered, mine, group, algorithm=algorithm if algorithm in ALL_GATHER else "auto")
        start = 0
        for name, gradient in gradients.items():
            end = start + messages[name].size
            parts = [self.decode(message[start:end].copy(), gradient.size, gradient.dtype) for message in gathered]
            gradient[...] = sum(parts[1:], parts[0]).reshape(gradient.shape)
            start = end

    def _sender(self, name: str, gradient, messages: dict, rng: np.random.Generator) -> Callable:
        def send(values):
            arrays = self.encode(values, gradient.dtype, rng)
            messages[name] = xp.concatenate([array.reshape(-1).view(xp.uint8) for array in arrays])
            return self.decode(messages[name], values.size, gradient.dtype)

        return send


@overridable
def one_bit(corrected) -> tuple:
    """Return the signs and the mean magnitude of a flat float64 array.

    Returns:
        Whether each element is below 0 (bool, same shape), and the mean of all magnitudes (float; 0 of no elements).
    """
    scale = float(xp.abs(corrected).mean()) if corrected.size else 0.0
    return corrected < 0, scale


class OneBit(Gathered):
    """One-bit method. A message is the scale as a float64, then the signs, eight to a byte."""

    on_grid = True

    def why_it_differs(self, full_rank: int) -> str:
        return f"compress={self.name} sends the signs of gradients and one mean magnitude"

    def message_bytes(self, size: int, itemsize: int) -> int:
        return 8 + -(-size // 8)

    def encode(self, values, dtype, rng: np.random.Generator) -> list:
        negative, scale = one_bit(values)
        scale = to_grid(xp.asarray([scale]), grid_unit(largest(values), values.size))  # exact residuals: feedback.py
        return [scale, xp.packbits(negative)]

    def decode(self, message, size: int, dtype):
        scale = message[:8].view(xp.float64)  # (1,)
        negative = xp.unpackbits(message[8:])[:size].astype(bool)
        return xp.where(negative, -scale, scale)


@overridable
def stochastic_round(values, unit, rng: np.random.Generator):
    """Round to the multiple of a unit below or above, at random, so that the mean is the value.

    Args:
        values: float64 array.
        unit: float, or one for each value; above 0.
        rng: generator, which draws one uniform number for each value, in C order.
    """
    multiples = values / unit
    below = xp.floor(multiples)
    up = from_host(rng.random(values.shape)) < multiples - below
    return (below + up) * unit


class StochasticBFloat16(Gathered):
    """bfloat16 method: the unit of each element is the spacing of bfloat16 there, 2^-7 of its power of two."""

    feeds_back = False

    def why_it_differs(self, full_rank: int) -> str:
        return f"compress={self.name} rounds gradients to 8 significant bits, up or down by chance"

    def message_bytes(self, size: int, itemsize: int) -> int:
        return 2 * size

    def encode(self, values, dtype, rng: np.random.Generator) -> list:
        _, exponent = xp.frexp(values)  # each magnitude is from 2^(exponent - 1) to below 2^exponent
        unit = xp.ldexp(1.0, xp.maximum(exponent - 8, -133))  # 2^-133 is the smallest bfloat16 above 0
        return [BFLOAT16.encode(stochastic_round(values, unit, rng).astype(xp.float32))]

    def decode(self, message, size: int, dtype):
        return BFLOAT16.decode(message.view(xp.uint16)).astype(xp.float64)


class Int8(Gathered):
    """int8 method. A message is the unit as a float32, then multiples of it from -127 to 127.

    QSGD takes the norm of all elements for the largest multiple, which suits its code for many zeros. With the largest
    element instead (as in Wen et al., "TernGrad", arXiv 1705.07878, 2017) the unit is smaller, and so is the noise.
    """

    feeds_back = False

    def why_it_differs(self, full_rank: int) -> str:
        return f"compress={self.name} rounds gradients to multiples of a 127th of the largest, up or down by chance"

    def message_bytes(self, size: int, itemsize: int) -> int:
        return 4 + size

    def encode(self, values, dtype, rng: np.random.Generator) -> list:
        unit = int8_unit(largest(values))
        multiples = stochastic_round(values / float(unit), 1.0, rng)
        return [xp.asarray([unit], xp.float32), multiples.astype(xp.int8)]

    def decode(self, message, size: int, dtype):
        unit = message[:4].view(xp.float32).astype(xp.float64)  # (1,)
        return message[4:].view(xp.int8) * unit


def int8_unit(largest: float) -> np.float32:
    """Return the smallest float32 that reaches the largest value in 127 steps, so that nothing rounds up to 128."""
    if largest == 0:
        return np.float32(1)
    unit = np.float32(largest / STEPS)
    return np.nextafter(unit, np.float32(np.inf)) if float(unit) * STEPS < largest else unit  # exact: 24 + 7 bits


@overridable
def top_k(corrected, k: int) -> tuple:
    """Return the k elements of the largest magnitude; of equal ones, the first. NaN counts as infinite.

    Args:
        corrected: flat float64.
        k: number of elements to keep, 0 to all.

    Returns:
        Their indices, int32, ascending, and their values, both (k,).
    """
    if k == 0:
        return xp.zeros(0, xp.int32), corrected[:0]
    magnitudes = xp.where(xp.isnan(corrected), xp.inf, xp.abs(corrected))
    place = corrected.size - k
    threshold = xp.partition(magnitudes, place)[place]  # the k-th largest, in linear time: nothing is sorted
    above = xp.flatnonzero(magnitudes > threshold)
    equal = xp.flatnonzero(magnitudes == threshold)[: k - above.size]
    indices = xp.sort(xp.concatenate([above, equal])).astype(xp.int32)
    return indices, corrected[indices]


class TopK(Gathered):
    """Top-k method. A message is k indices, int32, and k values in the bucket's dtype; k is the share, rounded up."""

    def __init__(self, name: str, share: Fraction) -> None:
        super().__init__(name)
        self.share = share

    def why_it_differs(self, full_rank: int) -> str:
        if self.share == 1:
            return ""
        return f"compress={self.name} sends the largest elements of gradients only; topk:1 has the bits of one process"

    def count(self, size: int) -> int:
        """Number of elements sent for an array of ``size`` elements."""
        return ceil(self.share * size)

    def message_bytes(self, size: int, itemsize: int) -> int:
        return (4 + itemsize) * self.count(size)

    def encode(self, values, dtype, rng: np.random.Generator) -> list:
        indices, kept = top_k(values, self.count(values.size))
        return [indices, kept.astype(dtype)]

    def decode(self, message, size: int, dtype):
        end = 4 * self.count(size)
        values = xp.zeros(size)
        values[message[:end].view(xp.int32)] = message[end:].copy().view(dtype)  # copied, so that it is aligned
        return values
