"""Records of one training step on a rank: its log, the shapes of its outputs, and the arrays that it saves."""

import numpy as np

import minidist as md
from figures.ch06 import block
from minidist.nn.modes import Mode, within

KINDS = OUTSIDE, F, INSIDE, ENDS = (
    "LayerNorm, dropout: outside the pairs",
    "input of the column cut (output of f)",
    "inside the pairs",
    "embedding and loss",
)


class Shapes(Mode):
    """Records the output shape of each operation in forward."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []

    def after(self, ctx, arguments, arrays, output, tensor) -> None:
        self.shapes.append(output.shape)


class Saved(Mode):
    """Adds up the bytes that each kind of operation saves for backward, each array once."""

    def __init__(self) -> None:
        self.nbytes, self.seen = dict.fromkeys(KINDS, 0), []

    def after(self, ctx, arguments, arrays, output, tensor) -> None:
        named = {"LayerNorm": OUTSIDE, "Dropout": OUTSIDE, "Embedding": ENDS, "CrossEntropy": ENDS}
        names = " ".join(argument.name for argument in arguments if hasattr(argument, "name"))
        enters = ctx.name == "Linear" and any(part in names for part in ("qkv", "fc", "token"))
        kind = named.get(ctx.name, F if enters else INSIDE)
        for array in (array for array in ctx.saved if isinstance(array, np.ndarray)):
            while isinstance(array.base, np.ndarray):
                array = array.base
            if not any(array is other for other in self.seen):
                self.seen.append(array)
                self.nbytes[kind] += array.nbytes


def saved_bytes(world, config, layout: str) -> dict[str, int]:
    """Return by kind the bytes that forward saves on this rank."""
    mode = Saved()
    with within(mode):
        md.train_rank(world, config, md.Layout.parse(layout), md.RunOptions())
    return mode.nbytes


def _traced(world, config, layout: str):
    mode = Shapes()
    with within(mode):
        log = md.train_rank(world, config, md.Layout.parse(layout), md.RunOptions(trace=True)).log
    return log, mode.shapes


def first_block(cluster, config, layout: str):
    """Train one step on the cluster's ranks; return the first block's operations, as ``block.draw`` takes them.

    Args:
        cluster: md.Cluster with as many ranks as the layout.
        config: run of one step and one micro-batch, without dropout.
        layout: such as "tp=2".

    Returns:
        Names of the operations; for each its shares of the tokens and of the values on a rank; pass -> collectives.
    """
    log, shapes = cluster.run(_traced, config, layout)[0]
    names, forward, backward = block.block(log, smallest=4 * config.micro_batch * config.context * config.width)
    every = iter(zip(block.operations(log), shapes, strict=True))
    shares = []
    for name in names:  # the block's own operations, among all
        wanted = "Add" if name == "Residual" else name
        shape = next(shape for other, shape in every if other == wanted)
        by_heads = name in ("Linear", "CausalAttention", "Gelu")  # (H/N, B, T, ...)
        shares.append((shape[-2] / config.context, shape[0] / config.heads if by_heads else 1))
    return names, shares, {f"{layout}: forward": forward, "backward: the gradients": backward}
