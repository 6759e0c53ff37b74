"""A new axis is one class that implements the protocol: a toy one, in less than 60 lines, lands on the hash."""

from functools import partial
from unittest import mock

from minidist.comm.collectives import broadcast
from minidist.comm.mesh import init_device_mesh
from minidist.parallel.axis import Axis
from minidist.parallel.data import DataParallel, share_of
from minidist.train import share, trainer
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.parallelize import ParallelModel

CONFIG = TrainConfig(layers=1, heads=2, width=16, context=8, global_batch=14, steps=3, clip=0.05, dropout=0.1)


class OptimizerByTurns(Axis):
    """Every rank computes everything, but updates only every N-th parameter: ZeRO stage 1 without flat units."""

    def apply(self, model):
        self.parameters = model.parameters()
        self.turn = {parameter.name: place % self.group.size for place, parameter in enumerate(self.parameters)}
        return model

    def trained(self, parameters):
        return [parameter for parameter in parameters if self.turn[parameter.name] == self.group.rank]

    def regions(self, regions, trained=True):
        mine = {name: region for name, region in regions.items() if self.turn[name] == self.group.rank}
        return mine if trained else regions

    def sync_params(self):
        for parameter in self.parameters:
            broadcast(parameter.data, self.turn[parameter.name], self.group)


def deal(dp, count):
    return share_of(dp.rank, dp.size, count), len(share_of(0, dp.size, count))


def train_with_the_toy(world, config, layout, options):
    """``train_rank`` on a mesh of its own: 3 ranks that take turns, twice, for 2 halves of the batch."""
    mesh = init_device_mesh((3, 2), mesh_dim_names=("turns", "dp"), group=world)

    def parallelize(model, *_):
        turns, dp = mesh.get_group("turns"), mesh.get_group("dp")
        axes = [OptimizerByTurns(turns, turns), DataParallel(dp)]
        return ParallelModel(model, world, axes, partial(deal, dp), config.micro_batches)

    with mock.patch.object(share, "parallelize", parallelize):
        return trainer.train_rank(world, config, layout, options)


def test_a_toy_axis_lands_on_the_hash(ranks):
    reference = trainer.run(ranks(1), CONFIG, Layout())
    result = trainer.run(ranks(6), CONFIG, Layout(dp=6), rank_function=train_with_the_toy)
    assert {rank.fingerprint for rank in result.ranks} == {reference.fingerprint}
    rows = [row for row in result.ranks[0].collectives if row["axis"] == "turns" and row["name"] == "all_reduce"]
    assert sum(row["calls"] for row in rows) == 3  # the norm's largest, count and total cross the axis; losses do not
