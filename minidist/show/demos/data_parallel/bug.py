"""Data parallelism with one bug: the all-reduce of one bucket is skipped. The trace shows where it is missing."""

from unittest.mock import patch

from minidist.parallel.data import BucketedDataParallel
from minidist.show.demos.shared.lanes import DROPPED
from minidist.train.trainer import train_rank

DROPPED_BUCKET = 2  # counted from 1, in the order of sending


def drops_a_bucket(world, config, layout, options):
    """Each rank keeps its own gradients of one bucket."""
    send_next = BucketedDataParallel._send_next

    def send_all_but_one(self: BucketedDataParallel) -> None:
        if self.next != DROPPED_BUCKET - 1:
            return send_next(self)
        name = f"{DROPPED} all_reduce"  # in the trace, in place of the missing one
        self.buckets[self.next].work = self.group.run_collective(name, 0, True, lambda inside: None)
        self.next += 1

    with patch.object(BucketedDataParallel, "_send_next", send_all_but_one):
        return train_rank(world, config, layout, options)
