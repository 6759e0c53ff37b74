"""One rank's share of a run: the objects that a step changes, and a checkpoint holds."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import prod

from minidist.comm.group import ProcessGroup
from minidist.comm.mesh import init_device_mesh
from minidist.nn.gpt import GPT
from minidist.nn.optim.lamb import LAMB
from minidist.nn.optim.optimizers import SGD, AdamW, Optimizer
from minidist.nn.precision.policy import POLICIES
from minidist.nn.precision.underflow import GradScaler, grad_scaler
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.parallelize import ParallelModel, parallelize


@dataclass
class Share:
    """What one rank trains.

    Attributes:
        model: this rank's share of the model, and of the work of a step.
        optimizer: of ``model.trained``.
        scaler: of the loss.
        max_norm: the largest global gradient norm.
        losses: of each step so far, the mean over the global batch.
    """

    model: ParallelModel
    optimizer: Optimizer
    scaler: GradScaler
    max_norm: float
    losses: list[float] = field(default_factory=list)

    def learning_rates(self, lr: float) -> Iterable[float]:
        """Learning rates of the updates in one step of the run: one, as a rule."""
        return (lr,)

    @classmethod
    def of(cls, world: ProcessGroup, config: TrainConfig, layout: Layout) -> "Share":
        """This rank's share of a run that begins. All ranks call it together.

        Args:
            world: all ranks of the run; a rank's place in it says what its share is.
        """
        gpt = GPT(config.model, seed=config.seed)
        sizes = (layout.pp, layout.dp, layout.cp, layout.tp)
        mesh = init_device_mesh(sizes, mesh_dim_names=("pp", "dp", "cp", "tp"), group=world)
        model = parallelize(gpt, mesh, layout, config)
        optimizer = optimizer_of(model, config)
        model.attach(optimizer)
        return cls(model, optimizer, loss_scaler(config), config.clip)

    @property
    def gpt(self) -> GPT:
        """The model, of which this rank may hold a part only."""
        return self.model.model


def optimizer_of(model: ParallelModel, config: TrainConfig) -> Optimizer:
    """The optimizer of what this rank trains, with no state yet."""
    if config.optimizer == "adamw":
        return AdamW(model.trained, config.lr, weight_decay=config.weight_decay)
    if config.optimizer == "sgd":
        return SGD(model.trained, config.lr, weight_decay=config.weight_decay)
    sizes = {name: prod(shape) for name, shape in model.shapes.items()}
    joins = (model.global_maxima, model.global_sums, model.owns)
    return LAMB(model.trained, config.lr, sizes, *joins, weight_decay=config.weight_decay)


def loss_scaler(config: TrainConfig) -> GradScaler:
    """What scales the loss: one that does nothing where no gradient is too small for the precision."""
    if not POLICIES[config.precision].scales_loss:
        return GradScaler(enabled=False)
    if config.loss_scale:
        return grad_scaler(init_scale=config.loss_scale, growth_interval=0)
    return grad_scaler()
