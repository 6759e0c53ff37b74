"""Data parallelism with one bug: the gradients of one bucket are not summed. The trace shows where that is missing."""

from unittest.mock import patch

from minidist.comm.collectives import ReduceOp, all_reduce
from minidist.comm.group import ProcessGroup
from minidist.parallel.data import BucketedDataParallel, NaiveDataParallel, fill_buckets
from minidist.show.demos.data_parallel.run import BUCKETS
from minidist.show.demos.shared.on_gpus import DROPPED
from minidist.train.trainer import train_rank

DROPPED_BUCKET = 2  # counted from 1, in the order of sending


def drops_a_bucket(world, config, layout, options):
    """Each rank keeps its own gradients of one bucket; without buckets, of the same parameters."""
    return without_sums(train_rank, world, config, layout, options)


def without_sums(rank_function, *arguments):
    """Call a rank's function with the bug."""
    send_next = BucketedDataParallel._send_next

    def send_all_but_one(self: BucketedDataParallel) -> None:
        if self.next != DROPPED_BUCKET - 1:
            return send_next(self)
        self.buckets[self.next].work = _skip(self.group, True)
        self.next += 1

    def sum_all_but_one(self: NaiveDataParallel) -> None:
        elements = sum(parameter.size for parameter in self.parameters)
        skipped = fill_buckets(self.parameters[::-1], elements / BUCKETS)[DROPPED_BUCKET - 1]
        for parameter in self.parameters:
            if parameter in skipped:
                _skip(self.group, False)
            else:
                all_reduce(parameter.grad, ReduceOp.SUM, self.group, algorithm=self.algorithm)

    with (
        patch.object(BucketedDataParallel, "_send_next", send_all_but_one),
        patch.object(NaiveDataParallel, "wait_for_gradients", sum_all_but_one),
    ):
        return rank_function(*arguments)


def _skip(group: ProcessGroup, async_op: bool):
    """An empty entry in the trace, in place of an all-reduce."""
    return group.run_collective(f"{DROPPED} all_reduce", 0, async_op, lambda inside: None)
