"""One training step, the same for every layout.

``model`` is the ``ParallelModel`` that ``parallelize`` returns (parallelize.py): its methods do what each axis of
parallelism adds to the step of one process. Hooks that measure or check a run are called around these lines (hooks.py),
and at one point in between (``on_local_gradients``). docs/one_step.md follows a step from here to the bytes between the
ranks.
"""

from collections.abc import Callable, Sequence

from minidist import trace
from minidist.nn.data import MicroBatch
from minidist.nn.optim.clip import clip_grad_norm
from minidist.nn.optim.optimizers import Optimizer, average_gradients
from minidist.nn.precision.underflow import GradScaler
from minidist.train.parallelize import ParallelModel
from minidist.train.share import Share


def take_step(share: Share, step: int) -> float:
    """Take step number ``step`` of a run on this rank's share of it, and return the loss."""
    model, config = share.model, share.config
    model.set_micro_batches(config.batch_at(step) // config.micro_batch)
    batch = share.batch(step, model.micro_batches)
    for lr in share.learning_rates(config.lr_at(step)):
        loss = train_step(model, share.optimizer, share.scaler, batch, lr, share.max_norm, share.on_local_gradients)
    return loss


def train_step(
    model: ParallelModel,
    optimizer: Optimizer,
    scaler: GradScaler,
    batch: Sequence[MicroBatch],
    lr: float,
    max_norm: float,
    on_local_gradients: Callable[[], None],
) -> float:
    """Take one step on this rank, and return the loss: the mean over the global batch, the same on every rank.

    (Where ranks step apart, it covers only this rank's samples; ``ParallelModel.join_losses`` joins them at the end.)

    Args:
        model: this rank's share of the model and of the batch.
        optimizer: optimizer of ``model.trained``.
        scaler: loss scaler; no-op except for fp16.
        batch: this rank's micro-batches.
        lr: the learning rate.
        max_norm: the largest global gradient norm.
        on_local_gradients: called when this rank's backward passes are done. Sums over ranks that overlap with backward
            may be in flight, or complete.
    """
    model.zero_grad()
    model.count_targets(batch)
    total = model.forward_backward(batch, scaler.scale)  # sum of losses; with a pipeline, through its stages
    on_local_gradients()
    model.sync_gradients()
    update(model, optimizer, scaler, lr, max_norm)
    model.sync_params()
    return model.average_loss(total)


@trace.traced("optimizer")
def update(model: ParallelModel, optimizer: Optimizer, scaler: GradScaler, lr: float, max_norm: float) -> None:
    """Unscale, average and clip the gradients, then update. All ranks skip the update if any rank overflowed."""
    overflow = scaler.unscale(model.trained, model.global_max)
    if not overflow:
        average_gradients(model.trained, model.divisor)
        clip_grad_norm(model.trained, max_norm, model.global_max, model.global_sum, model.owns)
        optimizer.lr = lr
        optimizer.step()
    scaler.update(overflow)
