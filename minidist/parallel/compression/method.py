"""What every method of compression says of itself, and the sum of those whose messages cannot be added."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from minidist.backend import xp
from minidist.comm.collectives import all_gather_into_tensor
from minidist.comm.group import ProcessGroup
from minidist.comm.tables import ALL_GATHER
from minidist.nn.random import generator
from minidist.parallel.compression.feedback import Residuals

Shape = tuple[int, ...]


class Method(ABC):
    """How gradients are compressed.

    Attributes:
        name: as a layout writes it.
        feeds_back: whether it leaves something out that error feedback can send later.
        on_grid: whether it sends numbers that are no elements, so that feedback.py rounds to a grid.
    """

    feeds_back, on_grid = True, False

    def __init__(self, name: str) -> None:
        self.name = name

    def check(self, full_rank: int) -> None:  # noqa: B027  most fit any model
        """Raises ValueError where the method makes no sense for a model; argument as of ``why_it_differs``."""

    @abstractmethod
    def why_it_differs(self, full_rank: int) -> str:
        """Why a run does not have the bits of one process, in one sentence; "" if it has them.

        Args:
            full_rank: the least rank with which PowerSGD leaves every gradient of the model as it is.
        """

    @abstractmethod
    def bytes_sent(self, shapes: Sequence[Shape], ranks: int, itemsize: int) -> float:
        """Bytes of payload that one rank sends in a step for a bucket, in the mean over the ranks.

        Args:
            shapes: of the bucket's parameters, as this rank holds them.
            ranks: that sum their gradients.
            itemsize: bytes of an element of the bucket: 8 for float64.
        """

    @abstractmethod
    def sum_gradients(
        self, gradients: dict, residuals: Residuals | None, names: Sequence, group: ProcessGroup, algorithm: str
    ) -> None:
        """Overwrite this rank's gradients with what stands for their sum over the ranks.

        Args:
            gradients: by parameter name, of any shape, all of one dtype.
            residuals: what this rank has left out so far; None without error feedback.
            names: the seed and the step, which with the parameter and the rank name the random numbers.
            group: the ranks, all of which call it alike.
            algorithm: the all-reduce's; an all-gather takes it if it knows it.
        """


class Gathered(Method):
    """Messages that cannot be added: each rank sends its own to all, decodes all, and adds in rank order in float64.

    So a rank sends and receives (N-1) messages, while an all-reduce of any N sends less than two: with many ranks a
    small message is no longer a small sum. (Vogels et al., 2019, choose low rank because factors can be added.)
    """

    @abstractmethod
    def message_bytes(self, size: int, itemsize: int) -> int:
        """Bytes of the message for a parameter of ``size`` elements, in a bucket of ``itemsize`` bytes each."""

    @abstractmethod
    def encode(self, values, dtype, rng: np.random.Generator) -> list:
        """The message for a flat float64 array, as arrays: of the same sizes and dtypes on every rank.

        Args:
            dtype: of the bucket. rng: for what is left to chance.
        """

    @abstractmethod
    def decode(self, message, size: int, dtype):
        """What a message (uint8) stands for: float64.  (size,)"""

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
