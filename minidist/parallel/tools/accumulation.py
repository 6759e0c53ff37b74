"""Gradient accumulation: several micro-batches, one after the other, and one update. What runs without a pipeline."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from minidist import trace
from minidist.backend import xp
from minidist.nn.data import MicroBatch
from minidist.nn.layers import Module


def accumulate(
    model: Module,
    batch: Sequence[MicroBatch],
    scale: float = 1.0,
    no_sync: Callable[[], AbstractContextManager] = nullcontext,
) -> float:
    """Add the gradients of these micro-batches to those that are there, and return the sum of their losses.

    Args:
        model: called with a micro-batch's parts, it returns the loss, a scalar Tensor.
        batch: what this rank has of the step.
        scale: what the loss is multiplied by, and with it all gradients (nn/precision/loss_scaling.py).
        no_sync: entered for all backward passes but the last, in which gradients may leave once they are complete.
    """
    total = xp.zeros(())
    for place, micro_batch in enumerate(batch, 1):
        with nullcontext() if place == len(batch) else no_sync():
            total += forward_backward(model, micro_batch, scale)
    return float(total)


def forward_backward(model: Module, micro_batch: MicroBatch, scale: float = 1.0):
    """Run one micro-batch, add its gradients, times ``scale``, to those that are there, and return its loss, (), there.

    A number would make the host wait for the GPU after each micro-batch.
    """
    with trace.span(f"forward {micro_batch.number}"):
        loss = model(*micro_batch)
    with trace.span(f"backward {micro_batch.number}"):
        loss.backward(xp.full((), scale, loss.dtype))
    return loss.data
