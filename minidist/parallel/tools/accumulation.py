"""Gradient accumulation: several micro-batches, one after the other, and one update. What runs without a pipeline."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from minidist import trace
from minidist.backend import xp
from minidist.nn.layers import Module


def accumulate(
    model: Module,
    micro_batches: Sequence[int | None],
    batch: Callable[[int], tuple],
    scale: float = 1.0,
    no_sync: Callable[[], AbstractContextManager] = nullcontext,
) -> float:
    """Add the gradients of these micro-batches to those that are there, and return the sum of their losses.

    Args:
        model: called with what ``batch`` returns, it returns the loss, a scalar Tensor.
        micro_batches: their numbers within the step; None for one without samples.
        batch: for such a number its tokens and targets (B, T), and the random generators of its dropout.
        scale: what the loss is multiplied by, and with it all gradients (nn/precision/loss_scaling.py).
        no_sync: entered for all backward passes but the last, in which gradients may leave once they are complete.
    """
    total = xp.zeros(())
    for place, index in enumerate(micro_batches):
        is_last = place == len(micro_batches) - 1  # by its place: several may have no samples, and so no number
        with nullcontext() if is_last else no_sync():
            total += forward_backward(model, batch(index), scale, index)
    return float(total)


def forward_backward(model: Module, batch: tuple, scale: float = 1.0, index: int | None = 0):
    """Run one micro-batch, add its gradients, times ``scale``, to those that are there, and return its loss, (), there.

    A number would make the host wait for the GPU after each micro-batch.
    """
    with trace.span(f"forward {index}"):
        loss = model(*batch)
    with trace.span(f"backward {index}"):
        loss.backward(xp.full((), scale, loss.dtype))
    return loss.data
