"""A run with parameter servers: what a worker and a server have of it, and which of them a rank is."""

from collections.abc import Iterable
from functools import partial
from math import inf

import numpy as np

from minidist.comm.group import ProcessGroup
from minidist.nn.gpt import GPT
from minidist.parallel.axis import Axis
from minidist.parallel.data import share_of
from minidist.parallel.loosened.arrivals import read_arrivals, seeded_order
from minidist.parallel.loosened.server import AsynchronousServer, SynchronousServer, Worker
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
    deal = no_micro_batches if serves else partial(dealt, world.rank, layout)
    model = (ServedModel if serves else ParallelModel)(gpt, [axis], deal, config.micro_batches)
    optimizer, scaler = optimizer_of(model, config), loss_scaler(config)
    if isinstance(axis, AsynchronousServer):
        return AsynchronousShare(model, optimizer, scaler, inf)  # workers have clipped what they push
    return Share(model, optimizer, scaler, config.clip)


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


def no_micro_batches(_: int) -> tuple[range, int]:
    """Those of a server."""
    return range(0), 0


class ServedModel(ParallelModel):
    """What a server has in place of a share of the model."""

    @property
    def averaged_micro_batches(self) -> int:
        """An asynchronous worker has averaged what it pushes."""
        return 1 if isinstance(self.axes[0], AsynchronousServer) else self.global_micro_batches


class AsynchronousShare(Share):
    """The share of a server that updates with each gradient as it comes."""

    def learning_rates(self, lr: float) -> Iterable[float]:
        """Learning rates of one update for each worker: N updates go as far as one with their mean."""
        workers = len(self.model.axes[0].workers)
        return (lr / workers for _ in range(workers))
