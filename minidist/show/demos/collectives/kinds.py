"""The five collectives: what each begins and ends with, its algorithms, its cost, and its bug."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from minidist.comm import algorithms
from minidist.comm.group import ProcessGroup
from minidist.show.demos.collectives import bug
from minidist.show.demos.collectives.pictures.places import Places, circle, fan, tree
from minidist.train.layout import Layout


@dataclass(frozen=True)
class Kind:
    """One collective.

    Args:
        name: its name on the command line.
        title: what it does, in one line.
        programs: name of the scene -> the algorithm: ``program(array, world)`` works on a rank's flat array.
        broken: name of the scene -> the same algorithm with the bug.
        bug: what the bug is.
        begins: (rank, values of all ranks (N, M)) -> the array that the rank begins with.
        ends: (values of all ranks (N, M)) -> the result (N, M), NaN where it is undefined, as one process computes it.
        formula: name of the scene -> the bytes that the busiest rank sends, as text and as a function of N and M.
        says: name of the scene -> (step, N) -> what happens in that step.
        trains_on: a function N -> a layout that uses this collective, and its algorithm with the bug.
        columns: the heading of a column, with a place for its letter.
        adds: whether arrays are added, so that it can be shown with small integers too.
        places: name of the scene -> N -> where the ranks stand.
    """

    name: str
    title: str
    programs: dict[str, Callable]
    broken: dict[str, Callable]
    bug: str
    begins: Callable
    ends: Callable
    formula: dict[str, tuple[str, Callable]]
    says: dict[str, Callable[[int, int], str]]
    trains_on: tuple[Callable, Callable] | None = None
    columns: str = "chunk {}"
    adds: bool = False
    places: dict[str, Callable[[int], Places]] = field(default_factory=dict)

    def places_of(self, algorithm: str, ranks: int) -> Places:
        """Where the ranks stand: on a circle, unless ``places`` says otherwise."""
        return self.places.get(algorithm, circle)(ranks)


def programs_for(kind: Kind, ranks: int) -> dict[str, Callable]:
    """The programs to show: halving-doubling works on equal chunks for a power of two of ranks alone."""
    return {
        name: program for name, program in kind.programs.items() if name != "halving-doubling" or ranks.bit_count() == 1
    }


def _everything(rank: int, values: np.ndarray) -> np.ndarray:
    return values[rank].copy()


def _only_root(rank: int, values: np.ndarray) -> np.ndarray:
    return values[rank].copy() if rank == 0 else np.zeros_like(values[rank])


def _own_chunk(rank: int, values: np.ndarray) -> np.ndarray:
    flat = np.zeros_like(values[rank])
    np.array_split(flat, len(values))[rank][:] = np.array_split(values[rank], len(values))[rank]
    return flat


def _total(values: np.ndarray) -> np.ndarray:
    return np.stack([values.sum(axis=0)] * len(values))


def _own_total(values: np.ndarray) -> np.ndarray:
    found = np.full_like(values, np.nan)  # the other chunks are undefined
    for rank, flat in enumerate(found):
        np.array_split(flat, len(values))[rank][:] = np.array_split(values.sum(axis=0), len(values))[rank]
    return found


def _gathered(values: np.ndarray) -> np.ndarray:
    whole = np.concatenate([np.array_split(flat, len(values))[rank] for rank, flat in enumerate(values)])
    return np.stack([whole] * len(values))


def _transposed(values: np.ndarray) -> np.ndarray:
    return np.stack(
        [np.concatenate([np.array_split(flat, len(values))[rank] for flat in values]) for rank in range(len(values))]
    )


def _reduce_scatter(flat: np.ndarray, world: ProcessGroup, algorithm=algorithms.reduce_scatter_ring) -> None:
    algorithm(np.array_split(flat, world.size), np.add, world)


def _all_gather(flat: np.ndarray, world: ProcessGroup, algorithm=algorithms.all_gather_ring) -> None:
    algorithm(np.array_split(flat, world.size), world)


def _all_to_all(flat: np.ndarray, world: ProcessGroup, algorithm=algorithms.all_to_all_pairwise) -> None:
    outgoing = [chunk.copy() for chunk in np.array_split(flat, world.size)]
    algorithm(outgoing, np.array_split(flat, world.size), world)


ADDS = "reduce-scatter, each rank adds the chunk that its left neighbour sends"
PASSES = "all-gather, each rank stores the chunk that its left neighbour passes on"
HALVE = "partners swap halves of the range they still work on, and add"
DOUBLE = "partners exchange the sums they have"

BROADCAST = Kind(
    "broadcast",
    "Broadcast: rank 0's array on every rank",
    {
        "tree": lambda flat, world: algorithms.broadcast_tree(flat, 0, world),
        "naive": lambda flat, world: algorithms.broadcast_naive(flat, 0, world),
        "ring": lambda flat, world: algorithms.broadcast_ring(flat, 0, world),
    },
    {
        "tree": lambda flat, world: bug.broadcast_tree(flat, 0, world),
        "naive": lambda flat, world: bug.broadcast_naive(flat, 0, world),
        "ring": lambda flat, world: bug.broadcast_ring(flat, 0, world),
    },
    "one rank sends zeros instead of its array",
    _only_root,
    lambda values: np.stack([values[0]] * len(values)),
    {
        "tree": ("M ⌈log2 N⌉", lambda n, m: (n - 1).bit_length() * m),
        "naive": ("M (N−1)", lambda n, m: (n - 1) * m),
        "ring": ("M", lambda n, m: m),
    },
    {
        "tree": lambda step, n: "every rank that has the array passes it on",
        "naive": lambda step, n: "rank 0 sends the array to the next rank",
        "ring": lambda step, n: "the array moves one rank to the right",
    },
    places={"tree": tree, "naive": fan},
)
RING = Kind(
    "ring",
    "All-reduce: every rank gets the sum",
    {
        "ring": lambda flat, world: algorithms.all_reduce_ring(flat, np.add, world),
        "naive": lambda flat, world: algorithms.all_reduce_naive(flat, np.add, world),
        "halving-doubling": lambda flat, world: algorithms.all_reduce_halving_doubling(flat, np.add, world),
    },
    {
        "ring": lambda flat, world: bug.all_reduce_ring(flat, np.add, world),
        "naive": lambda flat, world: bug.all_reduce_naive(flat, np.add, world),
        "halving-doubling": lambda flat, world: bug.all_reduce_halving_doubling(flat, np.add, world),
    },
    "rank 1 sends the wrong chunk first",
    _everything,
    _total,
    {
        "ring": ("2 M (N−1)/N", lambda n, m: 2 * (n - 1) / n * m),
        "naive": ("M (N−1)", lambda n, m: (n - 1) * m),
        "halving-doubling": ("2 M (N−1)/N", lambda n, m: 2 * (n - 1) / n * m),
    },
    {
        "ring": lambda step, n: ADDS if step < n else PASSES,
        "naive": lambda step, n: "rank 0 adds the next array" if step < n else "rank 0 sends the sum to one rank",
        "halving-doubling": lambda step, n: HALVE if step < n.bit_length() else DOUBLE,
    },
    (lambda ranks: Layout(dp=ranks, algorithm="ring"), bug.all_reduce_ring),
    adds=True,
    places={"naive": fan},
)
REDUCE_SCATTER = Kind(
    "reduce-scatter",
    "Reduce-scatter: each rank gets one chunk of the sum",
    {"ring": _reduce_scatter},
    {"ring": lambda flat, world: _reduce_scatter(flat, world, bug.reduce_scatter_ring)},
    "in the last step, rank 1 stores what arrives instead of adding it",
    _everything,
    _own_total,
    {"ring": ("M (N−1)/N", lambda n, m: (n - 1) / n * m)},
    {"ring": lambda step, n: ADDS},
    (lambda ranks: Layout(dp=ranks, zero=1, algorithm="ring"), bug.reduce_scatter_ring),
    adds=True,
)
ALL_GATHER = Kind(
    "all-gather",
    "All-gather: every rank's chunk on every rank",
    {"ring": _all_gather},
    {"ring": lambda flat, world: _all_gather(flat, world, bug.all_gather_ring)},
    "rank 1 sends the wrong chunk in the last step",
    _own_chunk,
    _gathered,
    {"ring": ("M (N−1)/N", lambda n, m: (n - 1) / n * m)},
    {"ring": lambda step, n: PASSES},
    (lambda ranks: Layout(dp=ranks, zero=1, algorithm="ring"), bug.all_gather_ring),
)
ALL_TO_ALL = Kind(
    "all-to-all",
    "All-to-all: chunk r of every rank goes to rank r",
    {"pairwise": _all_to_all},
    {"pairwise": lambda flat, world: _all_to_all(flat, world, bug.all_to_all_pairwise)},
    "rank 0 swaps two of its chunks",
    _everything,
    _transposed,
    {"pairwise": ("M (N−1)/N", lambda n, m: (n - 1) / n * m)},
    {"pairwise": lambda step, n: f"each rank sends to the rank {step} after it"},
    columns="place {}",
)
