"""The collectives of comm/algorithms.py, each with one injected bug that neither hangs nor crashes.

Each bug does harm from two ranks on. A chunk sent in place of one of another length is cut off or repeated.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from minidist import overrides
from minidist.comm.algorithms import all_gather_ring as right_all_gather_ring
from minidist.comm.group import ProcessGroup
from minidist.comm.point_to_point import recv, send, sendrecv
from minidist.show.demos.shared.runs import WarmRanks, diverges
from minidist.train.config import TrainConfig
from minidist.train.trainer import train_rank

MODEL = TrainConfig(layers=2, heads=4, width=32, context=16, global_batch=16, micro_batch=1, steps=2)


def broadcast_tree(flat: np.ndarray, src: int, group: ProcessGroup) -> None:
    """One rank sends zeros: the first one to pass the array on, or the source if none does."""
    zeros = np.zeros_like(flat)
    place, distance = (group.rank - src) % group.size, 1
    bad = place == (1 if group.size > 3 else 0)
    while distance < group.size:
        if place < distance and place + distance < group.size:
            send(zeros if bad else flat, (group.rank + distance) % group.size, group)
        elif distance <= place < 2 * distance:
            recv(flat, (group.rank - distance) % group.size, group)
        distance *= 2


def all_reduce_ring(flat: np.ndarray, combine: np.ufunc, group: ProcessGroup) -> None:
    """Rank 1 sends the chunks of its first two steps in the wrong order."""
    chunks, size, rank = np.array_split(flat, group.size), group.size, group.rank
    right, left = (rank + 1) % size, (rank - 1) % size
    for step in range(size - 1):
        wrong = 1 - step if rank == 1 and step < 2 else step
        expected = chunks[(rank - 1 - step) % size]
        outgoing = np.resize(chunks[(rank - 1 - wrong) % size], len(expected))
        sendrecv(outgoing, right, chunks[(rank - 2 - step) % size], left, group, combine)
    right_all_gather_ring(chunks, group)


def reduce_scatter_ring(chunks: list[np.ndarray], combine: np.ufunc, group: ProcessGroup) -> None:
    """Rank 1 forgets to add in the last step."""
    size, rank = group.size, group.rank
    right, left = (rank + 1) % size, (rank - 1) % size
    for step in range(size - 1):
        forgets = rank == 1 and step == size - 2
        outgoing, incoming = chunks[(rank - 1 - step) % size], chunks[(rank - 2 - step) % size]
        sendrecv(outgoing, right, incoming, left, group, None if forgets else combine)


def all_gather_ring(chunks: list[np.ndarray], group: ProcessGroup) -> None:
    """In the last step, rank 1 sends the previous step's chunk again (with two ranks: zeros)."""
    size, rank = group.size, group.rank
    right, left = (rank + 1) % size, (rank - 1) % size
    for step in range(size - 1):
        outgoing, incoming = chunks[(rank - step) % size], chunks[(rank - 1 - step) % size]
        if rank == 1 and step == size - 2:
            again = chunks[(rank - step + 1) % size] if step else np.zeros_like(outgoing)
            outgoing = np.resize(again, len(outgoing))
        sendrecv(outgoing, right, incoming, left, group)


def all_to_all_pairwise(outgoing: list[np.ndarray], incoming: list[np.ndarray], group: ProcessGroup) -> None:
    """Rank 0 swaps the chunks for its right neighbour and the rank after that (with two ranks: itself)."""
    size, rank = group.size, group.rank
    if rank == 0:
        outgoing = list(outgoing)
        outgoing[1], outgoing[2 % size] = outgoing[2 % size], outgoing[1]
    incoming[rank][:] = outgoing[rank]
    for step in range(1, size):
        right, left = (rank + step) % size, (rank - step) % size
        sendrecv(outgoing[right], right, incoming[left], left, group)


def consequence(trains_on: tuple[Callable, Callable] | None, warm: WarmRanks, ranks: int, seed: int) -> str:
    """Where a training run with the bug diverges, in a sentence; "" if no layout uses this collective."""
    if trains_on is None:
        return ""
    layout_of, function = trains_on
    config = replace(MODEL, seed=seed)

    def overridden(world, config, layout, options):
        overrides.override({function.__name__: function})
        try:
            return train_rank(world, config, layout, options)
        finally:
            overrides.override({})

    broken = warm.train(config, layout_of(ranks), overridden)
    return diverges(warm.first_difference(config, broken, overridden))
