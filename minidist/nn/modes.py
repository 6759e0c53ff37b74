"""Modes: hooks around every operation, which knows nothing of them. Precision, recomputation, measurements.

An operation passes the modes in force when it is called (``Function.apply`` in tensor.py). A node keeps them: its
backward passes the same ones, wherever it runs. (``torch.utils._python_dispatch.TorchDispatchMode``.)
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class Mode:
    """Hooks that observe an operation, and may change its values. This base class changes nothing."""

    def before(self, ctx, arguments: Sequence) -> Sequence:
        """Return the arguments of forward. An array may replace a tensor; forward gets the arrays of tensors."""
        return arguments

    def after(self, ctx, arguments: tuple, arrays: list, output, tensor) -> None:
        """Observe forward's arguments and output, and the output's tensor. May replace ``ctx.saved``."""

    def before_backward(self, ctx, gradient):
        """Return the gradient of the output that backward gets."""
        return gradient

    def after_backward(self, ctx, gradient, found: tuple) -> None:
        """Observe the gradients that backward returned."""


standing: tuple[Mode, ...] = ()  # outermost first: a mode that is entered later is closer to the operation


def stand(mode: Mode) -> None:
    """Put a mode around all operations from now on."""
    global standing
    standing = (*standing, mode)


@contextmanager
def within(*entered: Mode, instead_of: type | None = None) -> Iterator[None]:
    """Put modes around operations in the ``with`` block, and suspend outer ones of the class ``instead_of``."""
    global standing
    kept = [mode for mode in standing if instead_of is None or not isinstance(mode, instead_of)]
    before, standing = standing, (*kept, *entered)
    try:
        yield
    finally:
        standing = before
