"""One rank in one step of data parallelism or ZeRO: what it holds, what it sends, how long its gradient is.

Every rank of a cluster calls these functions together.
"""

import minidist as md
from minidist.nn.optim.clip import grad_norm
from minidist.parallel.data import share_of
from minidist.train.parallelize import data_axis, forward_backward, parallelize
from minidist.train.share import batch_of

from .model_states import KINDS


def held_after_backward(world, config, layout) -> dict[str, tuple[int, int]]:
    """Return which elements of block 1 exist in this rank's memory right after backward: kind -> (first, end)."""
    model, axis = md.GPT(config.model, seed=0), data_axis(world, layout, config)
    axis.apply(model)
    axis.zero_grad()
    forward_backward(model, batch_of(md.load_corpus(None, config.context), config, 0, world.rank))
    if not layout.zero:
        size = sum(parameter.grad.size for parameter in model.blocks[1].parameters())
        held = dict.fromkeys(KINDS, (0, size))
    else:
        unit = axis.zero.blocks[1]
        full, mine = (0, unit.padded_size), (unit.mine.start, unit.mine.stop)
        held = {
            "parameters": mine if unit.full is None else full,
            "gradients": mine if unit.grads is None else full,
            "optimizer": mine if sum(piece.size for piece in unit.pieces) == unit.shard_size else full,
        }
    axis.sync_gradients()
    return held


def batch(config, numbers):
    """Return these micro-batches of the first step."""
    corpus = md.load_corpus(None, config.context)
    return [batch_of(corpus, config, 0, number) for number in numbers]


def traffic(world, config, layout):
    """Return what this rank sends in a step, from ``zero_grad`` to ``sync_params``: a ``Traffic``."""
    model, axis = md.GPT(config.model, seed=0), data_axis(world, layout, config)
    axis.apply(model)
    numbers = share_of(world.rank, world.size, config.micro_batches)
    *others, last = batch(config, numbers)
    before = world.traffic
    axis.zero_grad()
    with axis.no_sync():
        for micro_batch in others:
            forward_backward(model, micro_batch)
    forward_backward(model, last)
    axis.sync_gradients()
    axis.sync_params()
    return world.traffic - before


def norms(world, config, layout) -> tuple[float, float]:
    """Return the norm of the gradients in this rank's shard, and that of all gradients, in the first step."""
    mesh = md.init_device_mesh((1, layout.dp, 1), mesh_dim_names=("pp", "dp", "tp"), group=world)
    model = parallelize(md.GPT(config.model, seed=0), mesh, layout, config)
    model.zero_grad()
    model.forward_backward(batch(config, model.micro_batches), scale=1.0)
    model.sync_gradients()
    return grad_norm(model.trained), grad_norm(model.trained, model.global_max, model.global_sum)
