"""Every collective with every algorithm: calls that cover their settings, and what NumPy says that each leaves."""

from itertools import product
from typing import NamedTuple

import numpy as np

import minidist as md
from minidist.comm.collectives import COLLECTIVES
from minidist.comm.placement import HIERARCHICAL, node_counts
from minidist.comm.runtime.clusters import job_size

SIZES = (0, 1, 7, 1001)  # elements; hardly any number of ranks divides them
LARGE = 98_305  # more than a queue holds, and than three pieces of a pipelined broadcast
DTYPES = (
    *("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool"),
    *("float16", "float32", "float64", "longdouble", "complex64", "complex128", "clongdouble"),
)
HOW = ("waits", "in the background", "in place", "in place, in the background")
REDUCING = ("reduce", "all_reduce", "reduce_scatter_tensor")
PATTERN = np.random.default_rng(0).choice(3, size=97, p=(0.1, 0.45, 0.45))


def available(*sizes: int) -> list[int]:
    """Return the numbers of ranks that can be had: all; in an MPI job those up to the number of its processes."""
    return [size for size in sizes if size <= (job_size() or size)]


class Case(NamedTuple):
    """One call of a collective by all ranks of a group: ``elements`` of the whole array, or of each rank's part where
    there are parts; ``root`` is ``src`` or ``dst``, and where in the larger array the smaller one is if in place."""

    collective: str
    algorithm: str
    elements: int
    dtype: str
    op: md.ReduceOp
    root: int
    how: str


def methods(nodes: tuple[int, ...]) -> list[tuple[str, str]]:
    """All (collective, algorithm) that can run on a group whose ranks are on these nodes."""
    uneven = len(set(node_counts(nodes))) > 1
    return [
        (name, algorithm)
        for name, collective in COLLECTIVES.items()
        for algorithm in ("auto", *collective.algorithms)
        if not (algorithm == HIERARCHICAL and uneven)
    ]


def ops_of(dtype: str) -> list[md.ReduceOp]:
    kind = np.dtype(dtype).kind
    ordered, divided = [md.ReduceOp.MIN, md.ReduceOp.MAX], [md.ReduceOp.AVG]
    return [md.ReduceOp.SUM, md.ReduceOp.PRODUCT, *ordered * (kind != "c"), *divided * (kind in "fc")]


def cases(nodes: tuple[int, ...], turn: int) -> list[Case]:
    """Every algorithm with every number of elements. The other settings take turns, which begin with ``turn``."""
    found, size = [], len(nodes)
    for place, ((name, algorithm), elements) in enumerate(product(methods(nodes), (*SIZES, LARGE)[: 5 - (size > 3)])):
        number = 5 * place + 7 * turn
        dtype = DTYPES[number % len(DTYPES)] if elements < LARGE else ("float32", "int16")[number % 2]
        ops = ops_of(dtype)
        op, how = ops[(place // 2 + turn) % len(ops)], HOW[(place + place // 4 + turn) % len(HOW)]
        found.append(Case(name, algorithm, elements, dtype, op, (0, size // 2, size - 1)[(place + turn) % 3], how))
    return found


def values(rank: int, elements: int, dtype: str, salt: int = 0) -> np.ndarray:
    """Small whole numbers: sums and products of them are exact in every dtype, or wrap around the same way.

    They repeat after 97 elements, each rank's begin elsewhere in the pattern.
    """
    return np.resize(np.roll(PATTERN, -31 * rank - 7 * salt).astype(dtype), elements)


def combined(rows: np.ndarray, op: md.ReduceOp) -> np.ndarray:
    """(ranks, ...) -> (...), in NumPy."""
    ufunc = {"SUM": np.add, "AVG": np.add, "PRODUCT": np.multiply, "MIN": np.minimum, "MAX": np.maximum}[op.name]
    total = ufunc.reduce(rows, axis=0, dtype=rows.dtype)
    return total / rows.dtype.type(len(rows)) if op.name == "AVG" else total


def inputs(group, case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Return each rank's small array, (ranks, elements), and one with a part per rank, (ranks, ranks, elements)."""
    size, n = group.size, case.elements
    small = [values(rank, n, case.dtype) for rank in range(size)]
    large = [values(rank, size * n, case.dtype, 1).reshape(size, n) for rank in range(size)]
    return np.stack(small), np.stack(large)


def call(group, case: Case, put=np.copy) -> tuple[list, list[np.ndarray]]:
    """Make the call, and return this rank's arrays after it, and what they must hold. ``put`` makes them of NumPy's."""
    name, rank, root, there = case.collective, group.rank, case.root, group.size // 2
    one, many = inputs(group, case)
    small, large, inside = put(one[rank]), put(many[rank]), case.how.startswith("in place")
    others = {"group": group, "algorithm": case.algorithm, "async_op": case.how.endswith("background")}
    others |= {"op": case.op} if name in REDUCING else {}
    if put is np.copy and not inside:
        (small if "gather" in name else large).flags.writeable = False  # it is only read
    function = getattr(md, name)
    if name in ("broadcast", "reduce"):
        work, found = function(small, root, **others), [small]
        expected = [one[root] if name == "broadcast" else combined(one, case.op) if rank == root else one[rank]]
    elif name == "all_reduce":
        work, found, expected = function(small, **others), [small], [combined(one, case.op)]
    elif name == "reduce_scatter_tensor":
        output = large[root] if inside else small
        work, found, expected = function(output, large, **others), [output], [combined(many[:, rank], case.op)]
        if not inside:
            found, expected = [*found, large], [*expected, many[rank]]
    elif name == "all_gather_into_tensor":
        work, found = function(large, large[root] if inside else small, **others), [large]
        expected = [many[:, root] if inside else one]
    elif name == "all_to_all_single":
        output = large if inside else put(np.empty_like(many[rank]))
        work, found, expected = function(output, large, **others), [output], [many[:, rank]]
    else:  # in place: what the root keeps or gives is one of its pieces
        mine = large[there] if inside and rank == root else small
        work = function(mine, list(large) if rank == root else None, root, **others)
        found, expected = [mine], [many[root, rank]]
        if name == "gather":
            one[root] = many[root, there] if inside else one[root]
            found, expected = ([large], [one]) if rank == root else ([mine], [one[rank]])
    if work is not None:
        assert work.wait() is True and (work.is_completed() or put is not np.copy)  # a GPU may still be at it
    return found, expected


def host(array) -> np.ndarray:
    return array.get() if hasattr(array, "get") else array


def wrong(group, case: Case, put=np.copy) -> str:
    """Return what is wrong with the call's result; "" if nothing is."""
    found, expected = call(group, case, put)
    for have, want in zip(map(host, found), expected, strict=True):
        if have.dtype != want.dtype or not np.array_equal(have, want):
            return f"{case} on rank {group.rank} of {group.ranks}: {have} and not {want}"
    return ""


def wrong_splits(group, algorithms: list[str], put=np.copy) -> list[str]:
    """Return what is wrong with an all-to-all where rank a sends (a + 2 b) % 4 rows to rank b: only they know."""
    rank, problems = group.rank, []
    rows = np.array([[(a + 2 * b) % 4 for b in range(group.size)] for a in range(group.size)])
    for algorithm in algorithms:
        outgoing = put(np.concatenate([np.full((n, 3), 100 * rank + b) for b, n in enumerate(rows[rank])]))
        incoming = put(np.empty((rows[:, rank].sum(), 3), int))
        md.all_to_all_single(incoming, outgoing, list(rows[:, rank]), list(rows[rank]), group, algorithm=algorithm)
        expected = np.concatenate([np.full((n, 3), 100 * a + rank) for a, n in enumerate(rows[:, rank])])
        problems += [f"splits, {algorithm}, rank {rank}"] * (not np.array_equal(host(incoming), expected))
    return problems
