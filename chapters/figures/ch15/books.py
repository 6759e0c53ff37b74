"""Books of error feedback: what it keeps account of, step by step, as exact fractions."""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from minidist.parallel.compression.feedback import Residuals
from minidist.parallel.compression.hook import read_method


@dataclass(frozen=True)
class Entry:
    """One element in one step, in real numbers; ``to_send`` is gradient + old residual as the floats have it."""

    gradient: Fraction
    old_residual: Fraction
    to_send: Fraction
    sent: Fraction
    residual: Fraction


def entries(method_text: str, steps: int, elements: int) -> Iterator[Entry]:
    """Yield every element of every step of a worker that compresses random gradients with error feedback.

    Args:
        method_text: such as "topk:0.01", of a method whose messages are gathered.
    """
    method, rng, old = read_method(method_text), np.random.default_rng(15), np.zeros(elements)
    residuals = Residuals(method.on_grid)
    for _ in range(steps):
        seen: list[np.ndarray] = []

        def send(values, seen=seen):
            """Encode a message; return what its receiver reads."""
            parts = method.encode(values, values.dtype, None)
            message = np.concatenate([part.reshape(-1).view(np.uint8) for part in parts])
            seen[:] = values, method.decode(message, values.size, values.dtype)
            return seen[1]

        gradient = rng.standard_normal(elements) * 10.0 ** rng.uniform(-6, 0, elements)
        residuals.send("a parameter", gradient, send)
        left = residuals.of["a parameter"].copy()
        for numbers in zip(gradient, old, *seen, left, strict=True):
            yield Entry(*map(Fraction, numbers))
        old = left
