"""The mean of a batch with one bug: each rank divides by its own number of targets, and the ranks average.

torchtitan (issue 2206) and transformers (gradient accumulation, until October 2024) had it. No error, no odd curve.
"""

from unittest.mock import patch

from minidist.nn.loss import IGNORED
from minidist.show.demos.documents.run import train_counting
from minidist.train.parallelize import ParallelModel

BUG = "each GPU divides by its own count of targets"


def train_locally(world, config, layout, options):
    """``train_counting`` with this bug."""
    forward_backward = ParallelModel.forward_backward

    def count_no_others(self: ParallelModel, batch) -> None:
        self.divisor = layout.dp

    def divide_by_own(self: ParallelModel, batch, scale: float) -> float:
        own = sum(int((one.targets != IGNORED).sum()) for one in batch) / self.places
        return forward_backward(self, batch, scale / own) / own

    with (
        patch.object(ParallelModel, "count_targets", count_no_others),
        patch.object(ParallelModel, "forward_backward", divide_by_own),
    ):
        return train_counting(world, config, layout, options)
