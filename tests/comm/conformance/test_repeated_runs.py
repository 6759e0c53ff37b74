"""One run after another on the same ranks: none finds anything of an earlier one."""

import gc
import os
import sys
import warnings

import numpy as np
import pytest

import minidist as md


def open_files(world) -> int:
    return len(os.listdir("/proc/self/fd"))


def without_collector(world):
    """Cycles of objects stay: what a run has opened must be closed, not collected."""
    gc.disable()


def with_collector(world):
    gc.enable()


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_no_file_stays_open(ranks):
    cluster = ranks(3)
    cluster.run(without_collector)
    try:
        before = cluster.run(open_files)
        for _ in range(5):
            cluster.run(md.barrier)
        assert cluster.run(open_files) == before
    finally:
        cluster.run(with_collector)


def sends_too_much(world, count: int) -> None:
    """Short messages: a long one may wait for its receive, as in MPI_Send."""
    if world.rank == 0:
        for i in range(count):
            md.send(np.full(3, 100 + i), 1, world)
            md.send(np.full(1, 100 + i), 1, world)


def takes_one(world) -> list:
    x = np.zeros(3, int)
    if world.rank == 0:
        md.send(np.full(3, 7), 1, world)
    else:
        md.recv(x, 0, world)
    return x.tolist()


def test_a_message_that_nobody_received_reaches_no_later_run(ranks):
    for _ in range(3):
        with pytest.warns(RuntimeWarning) as caught:
            ranks(2).run(sends_too_much, 5)
        told = [str(warning.message) for warning in caught]
        assert len(told) == 10 and all("rank 0 sent rank 1" in text and "never received" in text for text in told)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert ranks(2).run(takes_one)[1] == [7, 7, 7]


def rank_and_size(world, factor: int) -> tuple[int, int]:
    md.barrier(world)
    return world.rank * factor, world.size


def test_runs_of_other_sizes_take_turns(ranks):
    for size in (3, 1, 2, 5, 2, 3):
        assert ranks(size).run(rank_and_size, 10) == [(10 * rank, size) for rank in range(size)]
