"""A stand-in for the gradients that travel round the ring: it remembers which ranks have added to them."""

import numpy as np


class Contributions:
    """What ``ring_backward`` expects of gradients: ``merge`` adds, ``arrays`` is what travels, ``of`` what arrives.

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
