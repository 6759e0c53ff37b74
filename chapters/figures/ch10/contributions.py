"""A stand-in for the gradients that travel round the ring: it remembers which ranks have added to them."""

import numpy as np


class Contributions:
    """Gradients as ``ring_backward`` expects them: ``merge`` adds, ``arrays`` travel, ``of`` wraps those that arrive.

    Args:
        array: (ranks,) integers, how often each rank has added.
    """

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def merge(self, other: "Contributions") -> None:
        self.array += other.array

    def arrays(self) -> np.ndarray:
        return self.array

    def of(self, array: np.ndarray) -> "Contributions":
        return Contributions(array)
