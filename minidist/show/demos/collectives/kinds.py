"""The five collectives: the arrays before and after, and the algorithms, each with its program, bug and cost."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from minidist.comm import algorithms
from minidist.comm.group import ProcessGroup
from minidist.show.demos.collectives import bug
from minidist.train.layout import Layout


@dataclass(frozen=True)
class Algorithm:
    """Algorithm of a collective, with its bug and its cost.

    Args:
        program, broken: ``program(array, world)``, which works on a rank's flat array; and the same with the bug.
        says: (step, N) -> what happens in that step.
        formula, arrays: number of arrays that the busiest rank sends: as text, and as a function of N.
        why: reason for this number.
        lines, lit: lines of comm/algorithms.py without their group, and (step, N) -> numbers of the lines that run.
        shape: arrangement of the ranks: "ring", "fan", "tree", or "pairs", a ring without a direction.
    """

    program: Callable
    broken: Callable
    says: Callable[[int, int], str]
    formula: str
    arrays: Callable[[int], float]
    why: str
    lines: str
    lit: Callable[[int, int], tuple[int, ...]]
    shape: str = "ring"


@dataclass(frozen=True)
class Kind:
    """Collective, with its algorithms and what they must end with.

    Args:
        name: name on the command line.
        title: what the collective does, in one line.
        question: question of the story, with {} for the number of ranks.
        opening: sentence for the state before the first step.
        algorithms: name of the scene -> the algorithm.
        bug: the injected bug, in words.
        begins: (rank, values of all ranks (N, M)) -> array that the rank begins with.
        result: (rank, chunk, N) -> whether that chunk is part of the rank's result.
        ends: (rank, chunk, N) -> terms (rank, chunk) that the chunk holds in the end; by default, of a sum.
        trains_on: (N -> layout that uses this collective, broken algorithm), or None.
    """

    name: str
    title: str
    question: str
    opening: str
    algorithms: dict[str, Algorithm]
    bug: str
    begins: Callable
    result: Callable[[int, int, int], bool] = lambda rank, chunk, size: True
    trains_on: tuple[Callable, Callable] | None = None
    ends: Callable[[int, int, int], list[tuple[int, int]]] = lambda rank, chunk, size: [(r, chunk) for r in range(size)]


def _everything(rank: int, values: np.ndarray) -> np.ndarray:
    return values[rank].copy()


def _only_root(rank: int, values: np.ndarray) -> np.ndarray:
    return values[rank].copy() if rank == 0 else np.zeros_like(values[rank])


def _own_chunk(rank: int, values: np.ndarray) -> np.ndarray:
    flat = np.zeros_like(values[rank])
    np.array_split(flat, len(values))[rank][:] = np.array_split(values[rank], len(values))[rank]
    return flat


def _reduce_scatter(flat: np.ndarray, world: ProcessGroup, algorithm=algorithms.reduce_scatter_ring) -> None:
    algorithm(np.array_split(flat, world.size), np.add, world)


def _all_gather(flat: np.ndarray, world: ProcessGroup, algorithm=algorithms.all_gather_ring) -> None:
    algorithm(np.array_split(flat, world.size), world)


def _all_to_all(flat: np.ndarray, world: ProcessGroup, algorithm=algorithms.all_to_all_pairwise) -> None:
    outgoing = [chunk.copy() for chunk in np.array_split(flat, world.size)]
    algorithm(outgoing, np.array_split(flat, world.size), world)


def _broadcast(algorithm: Callable) -> Callable:
    return lambda flat, world: algorithm(flat, 0, world)


def _all_reduce(algorithm: Callable) -> Callable:
    return lambda flat, world: algorithm(flat, np.add, world)


REDUCE_SCATTER_LINES = """\
for step in range(size - 1):
    outgoing = chunks[(rank-1-step) % size]
    incoming = chunks[(rank-2-step) % size]
    sendrecv(outgoing, right,
             incoming, left, combine)"""
ALL_GATHER_LINES = """\
for step in range(size - 1):
    outgoing = chunks[(rank-step) % size]
    incoming = chunks[(rank-1-step) % size]
    sendrecv(outgoing, right,
             incoming, left)"""
ADDS = "Every GPU adds the chunk from the GPU before it."
PASSES = "Whole chunks go round and replace the old ones."

BROADCAST = Kind(
    "broadcast",
    "Broadcast: GPU 0's array on every GPU",
    "How does GPU 0's array reach {} GPUs?",
    "Only GPU 0 has the array. All need it.",
    {
        "tree": Algorithm(
            _broadcast(algorithms.broadcast_tree),
            _broadcast(bug.broadcast_tree),
            lambda step, n: f"GPUs that have the array pass it on: now {min(2**step, n)} of {n} have it.",
            "⌈log2 N⌉",
            lambda n: (n - 1).bit_length(),
            "Each step can double the GPUs that have it, and GPU 0 sends in each of them.",
            """\
while distance < size:
    if (place < distance and
            place + distance < size):
        send(flat, (rank + distance) % size)
    elif distance <= place < 2 * distance:
        recv(flat, (rank - distance) % size)
    distance *= 2""",
            lambda step, n: (3, 5),
            "tree",
        ),
        "naive": Algorithm(
            _broadcast(algorithms.broadcast_naive),
            _broadcast(bug.broadcast_naive),
            lambda step, n: "GPU 0 sends the array to the next GPU.",
            "N−1",
            lambda n: n - 1,
            "GPU 0 sends the whole array to each other GPU: its link is the bottleneck.",
            """\
if rank == src:
    for rank in range(size):
        if rank != src:
            send(flat, rank)
else:
    recv(flat, src)""",
            lambda step, n: (3, 5),
            "fan",
        ),
        "ring": Algorithm(
            _broadcast(algorithms.broadcast_ring),
            _broadcast(bug.broadcast_ring),
            lambda step, n: "The array moves one GPU to the right.",
            "1",
            lambda n: 1,
            "GPU 0 sends the array once, to its neighbour, however many GPUs there are.",
            """\
if rank != src:
    recv(piece, left)
if right != src:
    isend(piece, right)""",
            lambda step, n: (1, 3),
        ),
    },
    "one GPU sends zeros instead of its array",
    _only_root,
    ends=lambda rank, chunk, size: [(0, chunk)],
)
ALL_REDUCE = Kind(
    "ring",
    "All-reduce: every GPU gets the sum",
    "How do {} GPUs add their arrays?",
    "Every GPU has an array of its own. All need the sum.",
    {
        "ring": Algorithm(
            _all_reduce(algorithms.all_reduce_ring),
            _all_reduce(bug.all_reduce_ring),
            lambda step, n: ADDS if step < n else PASSES,
            "2 (N−1)/N",
            lambda n: 2 * (n - 1) / n,
            "N−1 chunks of N to sum each chunk on one GPU, N−1 more to pass the sums on.",
            f"{REDUCE_SCATTER_LINES}\n{ALL_GATHER_LINES}",
            lambda step, n: (1, 2, 3, 4) if step < n else (6, 7, 8, 9),
        ),
        "naive": Algorithm(
            _all_reduce(algorithms.all_reduce_naive),
            _all_reduce(bug.all_reduce_naive),
            lambda step, n: "GPU 0 adds the next array." if step < n else "GPU 0 sends the sum to one GPU.",
            "N−1",
            lambda n: n - 1,
            "GPU 0 sends the sum to each other GPU: of 1,000 GPUs, 999 times.",
            """\
if rank == dst:
    for rank in range(size):
        if rank != dst:
            recv_reduce(flat, rank, combine)
else:
    send(flat, dst)
broadcast_naive(flat, 0)""",
            lambda step, n: (3, 5) if step < n else (6,),
            "fan",
        ),
        "halving-doubling": Algorithm(
            _all_reduce(algorithms.all_reduce_halving_doubling),
            _all_reduce(bug.all_reduce_halving_doubling),
            lambda step, n: (
                "Partners swap halves of their range, and add."
                if step < n.bit_length()
                else "Partners exchange the sums they have."
            ),
            "2 (N−1)/N",
            lambda n: 2 * (n - 1) / n,
            "Half of the array, half of that, down to one chunk; and the same again on the way back.",
            """\
while high - low > 1:
    keep, give = (halves if rank < middle
                  else halves[::-1])
    sendrecv(given, partner,
             kept, partner, combine)
    low, high = keep
for partner, kept, given in reversed(swaps):
    sendrecv(kept, partner, given, partner)""",
            lambda step, n: (1, 2, 3, 4, 5) if step < n.bit_length() else (7,),
            "pairs",
        ),
    },
    "GPU 1 sends the wrong chunk first",
    _everything,
    trains_on=(lambda ranks: Layout(dp=ranks, algorithm="ring"), bug.all_reduce_ring),
)
REDUCE_SCATTER = Kind(
    "reduce-scatter",
    "Reduce-scatter: each GPU gets one chunk of the sum",
    "How does each of {} GPUs get its share of a sum?",
    "Every GPU has an array, and needs one chunk of the sum: the framed one.",
    {
        "ring": Algorithm(
            _reduce_scatter,
            partial(_reduce_scatter, algorithm=bug.reduce_scatter_ring),
            lambda step, n: ADDS,
            "(N−1)/N",
            lambda n: (n - 1) / n,
            "One chunk of N in each of N−1 steps: half an all-reduce.",
            REDUCE_SCATTER_LINES,
            lambda step, n: (1, 2, 3, 4),
        )
    },
    "in the last step, GPU 1 stores the chunk instead of adding it",
    _everything,
    lambda rank, chunk, size: chunk == rank,
    (lambda ranks: Layout(dp=ranks, zero=1, algorithm="ring"), bug.reduce_scatter_ring),
)
ALL_GATHER = Kind(
    "all-gather",
    "All-gather: every GPU's chunk on every GPU",
    "How do {} GPUs collect each other's shares?",
    "Every GPU has one chunk, and needs the others: the empty frames.",
    {
        "ring": Algorithm(
            _all_gather,
            partial(_all_gather, algorithm=bug.all_gather_ring),
            lambda step, n: f"Every GPU passes on {'its own chunk' if step == 1 else 'the chunk that it got last'}.",
            "(N−1)/N",
            lambda n: (n - 1) / n,
            "One chunk of N in each of N−1 steps: the other half of an all-reduce.",
            ALL_GATHER_LINES,
            lambda step, n: (1, 2, 3, 4),
        )
    },
    "GPU 1 sends the wrong chunk in the last step",
    _own_chunk,
    trains_on=(lambda ranks: Layout(dp=ranks, zero=1, algorithm="ring"), bug.all_gather_ring),
    ends=lambda rank, chunk, size: [(chunk, chunk)],
)
ALL_TO_ALL = Kind(
    "all-to-all",
    "All-to-all: chunk r of every GPU goes to GPU r",
    "How do {} GPUs exchange blocks, each with every other?",
    "Every GPU has a block for each GPU, numbered by receiver.",
    {
        "pairwise": Algorithm(
            _all_to_all,
            partial(_all_to_all, algorithm=bug.all_to_all_pairwise),
            lambda step, n: f"Each GPU sends to the GPU {step} place{'s' * (step > 1)} on.",
            "(N−1)/N",
            lambda n: (n - 1) / n,
            "Every block but its own.",
            """\
incoming[rank][:] = outgoing[rank]
for step in range(1, size):
    right, left = ((rank + step) % size,
                   (rank - step) % size)
    sendrecv(outgoing[right], right,
             incoming[left], left)""",
            lambda step, n: (2, 3, 4, 5),
            "pairs",
        )
    },
    "GPU 0 swaps two of its chunks",
    _everything,
    ends=lambda rank, chunk, size: [(chunk, rank)],
)
