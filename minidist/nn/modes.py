"""Modes: what stands around every operation, without the operation's knowing. Precision, recomputation, measurements.

An operation goes through those that stand when it is called (``Function.apply`` in tensor.py). A node keeps them: its
backward pass goes through the same ones, wherever it runs. (``torch.utils._python_dispatch.TorchDispatchMode``.)
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class Mode:
    """What may see an operation, and change what passes. This one changes nothing."""

    def before(self, ctx, arguments: Sequence) -> Sequence:
        """Return the arguments of forward: tensors, for which their arrays will stand, or arrays in their place."""
        return arguments

    def after(self, ctx, arguments: tuple, arrays: list, output, tensor) -> None:
        """See what forward got and returned, the tensor that holds it, and what ``ctx.saved`` keeps for backward."""

    def before_backward(self, ctx, gradient):
        """Return the gradient of the output, as backward gets it."""
        return gradient

    def after_backward(self, ctx, gradient, found: tuple) -> None:
        """See what backward returned."""


standing: tuple[Mode, ...] = ()  # the outermost first: a mode that is entered later stands closer to the operation


def stand(mode: Mode) -> None:
    """Have operations pass a mode from now on."""
    global standing
    standing = (*standing, mode)


@contextmanager
def within(*entered: Mode, instead_of: type | None = None) -> Iterator[None]:
    """Have operations pass these modes within it, and none of the class ``instead_of`` that stood before."""
    global standing
    kept = [mode for mode in standing if instead_of is None or not isinstance(mode, instead_of)]
    before, standing = standing, (*kept, *entered)
    try:
        yield
    finally:
        standing = before
