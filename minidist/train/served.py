"""A run with parameter servers: what a worker and a server have of it, and which of them a rank is."""

from dataclasses import dataclass
from functools import partial
from math import inf

import numpy as np

from minidist.comm.group import ProcessGroup
from minidist.nn.gpt import GPT
from minidist.parallel.axis import Axis
from minidist.parallel.data import share_of
from minidist.parallel.loosened.arrivals import read_arrivals, seeded_order
from minidist.parallel.loosened.server import AsynchronousServer, SynchronousServer
from minidist.parallel.loosened.worker import Worker
from minidist.parallel.tools.accumulation import accumulate
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.parallelize import ParallelModel, dealt
from minidist.train.share import Share, loss_scaler, optimizer_of


def served_share(world: ProcessGroup, config: TrainConfig, layout: Layout) -> Share:
    """This rank's share of a run with parameter servers: the first ranks are workers, the last ones servers."""
    group = world.duplicate()
    group.axis = "server"
    serves = world.rank >= layout.dp
    axis = server_of(group, config, layout) if serves else worker_of(group, config, layout)
    gpt = GPT(config.model, seed=config.seed)
    if serves:
        model = ServedModel(gpt, [axis], nothing, no_micro_batches, config.micro_batches)
    else:
        deal = partial(dealt, world.rank, layout)
        model = ParallelModel(gpt, [axis], partial(accumulate, gpt), deal, config.micro_batches)
    optimizer, scaler = optimizer_of(model, config), loss_scaler(config)
    return ServersShare(model, optimizer, scaler, layout.dp) if serves else Share(model, optimizer, scaler)


def worker_of(group: ProcessGroup, config: TrainConfig, layout: Layout) -> Axis:
    """A worker's end."""
    count = len(share_of(group.rank, layout.dp, config.micro_batches))
    clip = config.clip if layout.slack else None
    return Worker(group, layout.dp, config.steps, count, clip, np.dtype(config.reduce_dtype))


def server_of(group: ProcessGroup, config: TrainConfig, layout: Layout) -> Axis:
    """A server's."""
    if not layout.slack:
        others = group.new_group(list(range(layout.dp, group.size)))
        return SynchronousServer(group, layout.dp, config.steps, others, np.dtype(config.reduce_dtype))
    seconds = read_arrivals(layout.arrivals, layout.dp)
    order = seconds and seeded_order(seconds, config.steps, layout.slack, config.seed)
    return AsynchronousServer(group, layout.dp, config.steps, layout.slack, order)


def nothing(*_) -> float:
    """A server's forward and backward."""
    return 0.0


def no_micro_batches(_: int) -> tuple[range, int]:
    """Those of a server."""
    return range(0), 0


class ServedModel(ParallelModel):
    """What a server has in place of a share of the model."""

    @property
    def averaged_micro_batches(self) -> int:
        """An asynchronous worker has averaged what it pushes."""
        return 1 if isinstance(self.axes[0], AsynchronousServer) else self.global_micro_batches


@dataclass
class ServersShare(Share):
    """A server's share. In one step of the run it updates once with all workers' gradients, or once with each.

    Attributes:
        workers: how many there are.
    """

    workers: int

    def take_step(self, batch, lr: float, max_norm: float) -> float:
        """One update; or one for each worker, of any of them, whose N updates go as far as one with their mean."""
        if not isinstance(self.model.axes[0], AsynchronousServer):
            return super().take_step(batch, lr, max_norm)
        for _ in range(self.workers):
            loss = super().take_step(batch, lr / self.workers, inf)  # workers have clipped what they push
        return loss
