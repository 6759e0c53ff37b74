"""Records of training for chapter 8: the operations of a backward pass, and the updates and loss scales of a run.

A run's functions are rank functions (``md.run``). In place of its log, a rank returns what was recorded.
"""

from dataclasses import replace
from unittest.mock import patch

import numpy as np

import minidist as md
from figures.ch08.bit_widths import Operation, bits_needed
from minidist import ledger
from minidist.nn.modes import Mode, within
from minidist.nn.precision.policy import Packed, autocast
from minidist.nn.precision.underflow import GradScaler, MasterWeights
from minidist.train.parallelize import forward_backward
from minidist.train.share import batch_of


def _backward(config, precision, mode, scale=1.0):
    """Run one micro-batch forward and backward in a precision, with a mode outside of it; return the model."""
    model = md.GPT(config.model)
    with within(mode), autocast(precision), np.errstate(all="ignore"):
        forward_backward(model, batch_of(md.load_corpus(None, config.context), config, 0, 0), scale)
    return model


def operations_of_a_block(config, precision: str) -> list[Operation]:
    """Return the operations of the first block: the bits of their numbers, and what they save for backward."""
    found, seen = {}, {}

    class Watch(Mode):
        def after(self, ctx, arguments, arrays, output, tensor):
            operation = found[ctx] = Operation(ctx.name, output=bits_needed(tensor.data), saved={})
            for array in ctx.saved:
                array = array.codes if isinstance(array, Packed) else array
                if isinstance(array, np.ndarray) and id(owner := ledger.owner(array)) not in seen:
                    seen[id(owner)] = owner
                    width = 8 * array.itemsize
                    operation.saved[width] = operation.saved.get(width, 0) + owner.nbytes

        def after_backward(self, ctx, gradient, found_gradients):
            found[ctx].gradient = bits_needed(gradient)

    _backward(config, precision, Watch())
    operations = list(found.values())
    start = [operation.name for operation in operations].index("LayerNorm")  # before it the embeddings
    block, names = operations[start : start + 18], iter(("qkv", "out", "fc", "proj"))
    for operation in block:
        if operation.name == "Linear":
            operation.name += f": {next(names)}"
    return block


def gradients(config, precision: str, scale: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Return the gradients of all activations in one micro-batch, and those of the parameters, unscaled.

    Of the activations' gradients one in sixteen is kept. ``scale`` multiplies the loss.
    """
    arrays = []

    class Watch(Mode):
        def after_backward(self, ctx, gradient, found):
            if gradient.dtype == np.float32 and gradient.ndim:
                arrays.append(gradient.ravel()[::16].copy())

    model = _backward(config, precision, Watch(), scale)
    return np.concatenate(arrays), np.concatenate([p.grad.ravel() for p in model.parameters()]) / scale


def _count_unchanged(world, config, layout, options, keeps_masters):
    """Train in 16 bits, and log for each step the share of 16-bit weights that it leaves unchanged."""
    own, shares = MasterWeights.sync_params, []

    def sync_params(self):
        before = [parameter.stored for parameter in self.parameters]
        own(self)
        if before[0].dtype == np.uint16:  # the very first call finds float32 parameters
            same = sum(int((old == p.stored).sum()) for old, p in zip(before, self.parameters, strict=True))
            shares.append(same / sum(p.size for p in self.parameters))
        if not keeps_masters:
            for parameter, master in zip(self.parameters, self.masters, strict=True):
                master.data[...] = parameter.data

    with patch.object(MasterWeights, "sync_params", sync_params):
        return replace(md.train_rank(world, config, layout, options), log=shares)


def with_masters(*arguments):
    """Train with master weights; log the share of 16-bit weights that each step leaves unchanged."""
    return _count_unchanged(*arguments, keeps_masters=True)


def without_masters(*arguments):
    """Train without them: after each step the optimizer gets the rounded weights back. The log is the same."""
    return _count_unchanged(*arguments, keeps_masters=False)


def fast_loss_scaling(world, config, layout, options):
    """Train from a scale of 2^28 that doubles after 8 good steps; log (scale, overflow) for each step."""
    history, own = [], GradScaler.update

    def update(self, overflow):
        history.append((self.scale, overflow))
        own(self, overflow)

    scaler = GradScaler(init_scale=2.0**28, growth_interval=8)
    with patch("minidist.train.share.loss_scaler", lambda config: scaler), patch.object(GradScaler, "update", update):
        return replace(md.train_rank(world, config, layout, options), log=history)
