"""Every collective, with every algorithm, against integers added up in one process."""

import numpy as np
import pytest

import minidist as md
from minidist.comm import tables
from minidist.comm.collectives import ReduceOp
from minidist.comm.nodes.placement import node_counts

SIZES = (0, 1, 7, 1001)  # elements; hardly any number of ranks divides them
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
DTYPES = (*INTEGERS, "float16", "float32", "float64", "longdouble", "complex64", "complex128", "clongdouble", "bool")
FEW = ("uint8", "int64", "float16", "float32", "complex128", "bool")  # of each kind one, for groups that take longer

PATTERN = np.random.default_rng(0).choice(3, size=97, p=(0.1, 0.45, 0.45))


def values(rank: int, size: int, dtype: str, salt: int = 0) -> np.ndarray:
    """Small whole numbers: sums and products of them are exact in every dtype, or wrap around the same way.

    They repeat after 97 elements, each rank's begin elsewhere in the pattern.
    """
    return PATTERN[(np.arange(size) + 31 * rank + 7 * salt) % len(PATTERN)].astype(dtype)


def combined(op: ReduceOp, group_size: int, size: int, dtype: str) -> np.ndarray:
    """The oracle: Python's own integers, one element at a time, as far as the values do not repeat."""
    rows = [[int(x.real) for x in values(rank, min(size, len(PATTERN)), dtype)] for rank in range(group_size)]
    columns = list(zip(*rows, strict=True))
    if op is ReduceOp.AVG:
        sums = np.resize(np.array([sum(column) for column in columns], dtype), size)
        return sums / np.dtype(dtype).type(group_size)
    result = []
    for column in columns:
        if op is ReduceOp.SUM:
            result.append(sum(column))
        elif op is ReduceOp.PRODUCT:
            product = 1
            for x in column:
                product *= x
            result.append(product)
        else:
            result.append(min(column) if op is ReduceOp.MIN else max(column))
    return np.resize(np.array(result, np.int64).astype(dtype), size)


def ops_of(dtype: str) -> list[ReduceOp]:
    kind = np.dtype(dtype).kind
    ops = [ReduceOp.SUM, ReduceOp.PRODUCT]
    if kind != "c":
        ops += [ReduceOp.MIN, ReduceOp.MAX]
    if kind in "fc":
        ops.append(ReduceOp.AVG)
    return ops


def same(found: np.ndarray, expected: np.ndarray, *what) -> None:
    assert found.dtype == expected.dtype, what
    assert np.array_equal(found, expected), (what, found, expected)


def methods(table, group) -> tuple[str, ...]:
    """The algorithms that can run on a group."""
    uneven = len(set(node_counts(group.nodes))) > 1
    return ("auto", *(name for name in table if not (name == tables.HIERARCHICAL and uneven)))


def check_everything(group, dtypes=DTYPES) -> int:
    """Run all collectives on a group; returns how many results were compared."""
    size, rank, compared = group.size, group.rank, 0
    for dtype in dtypes:
        for elements in SIZES:
            mine = values(rank, elements, dtype)
            root = elements % size
            theirs = [values(r, elements, dtype) for r in range(size)]
            for algorithm in methods(tables.BROADCAST, group):
                x = mine.copy()
                md.broadcast(x, root, group=group, algorithm=algorithm)
                same(x, theirs[root], "broadcast", algorithm, dtype, elements)
                compared += 1
            for op in ops_of(dtype):
                expected = combined(op, size, elements, dtype)
                for algorithm in methods(tables.ALL_REDUCE, group):
                    x = mine.copy()
                    md.all_reduce(x, op, group=group, algorithm=algorithm)
                    same(x, expected, "all_reduce", op, algorithm, dtype, elements)
                    compared += 1
                for algorithm in methods(tables.REDUCE, group):
                    x = mine.copy()
                    md.reduce(x, root, op, group=group, algorithm=algorithm)
                    same(x, expected if rank == root else mine, "reduce", op, algorithm, dtype, elements)
                    compared += 1
            for algorithm in methods(tables.REDUCE_SCATTER, group):
                whole = values(rank, elements * size, dtype)
                before = whole.copy()
                part = np.empty(elements, dtype)
                md.reduce_scatter_tensor(part, whole, ReduceOp.SUM, group=group, algorithm=algorithm)
                expected = combined(ReduceOp.SUM, size, elements * size, dtype)
                same(part, expected[rank * elements : (rank + 1) * elements], "reduce_scatter", algorithm, dtype)
                same(whole, before, "the input of reduce_scatter stays as it was")
                compared += 1
            for algorithm in methods(tables.ALL_GATHER, group):
                whole = np.empty((size, elements), dtype)
                md.all_gather_into_tensor(whole, mine, group=group, algorithm=algorithm)
                same(whole, np.stack(theirs), "all_gather", algorithm, dtype, elements)
                compared += 1
            outgoing = values(rank, elements * size, dtype)
            incoming = np.empty_like(outgoing)
            md.all_to_all_single(incoming, outgoing, group=group)
            cut = slice(rank * elements, (rank + 1) * elements)
            same(incoming, np.concatenate([values(r, elements * size, dtype)[cut] for r in range(size)]), "all_to_all")
            x = np.empty(elements, dtype)
            md.scatter(x, [values(r, elements, dtype, 1) for r in range(size)] if rank == root else None, root, group)
            same(x, values(rank, elements, dtype, 1), "scatter", dtype, elements)
            lists = [np.empty(elements, dtype) for _ in range(size)] if rank == root else None
            md.gather(mine, lists, root, group)
            if rank == root:
                same(np.stack(lists), np.stack(theirs), "gather", dtype, elements)
            md.barrier(group)
            compared += 3
    return compared


long = pytest.mark.long


@pytest.mark.parametrize(
    ("size", "dtypes"),
    [
        (1, DTYPES),
        (3, FEW),
        *(pytest.param(n, DTYPES, marks=long) for n in (2, 3, 4, 5, 6, 7, 8)),
    ],
    ids=lambda value: value if isinstance(value, int) else f"{len(value)} dtypes",
)
def test_all_collectives_agree_with_integers(ranks, size, dtypes):
    counts = ranks(size).run(check_everything, dtypes)
    assert len(set(counts)) == 1 and counts[0] > 125 * len(dtypes)


def on_subgroups(world, dtypes):
    """Two groups at the same time, one of them with its ranks in another order."""
    odd_ranks_backwards = [r for r in range(world.size) if r % 2][::-1]
    even = [r for r in range(world.size) if r % 2 == 0]
    for ranks in (odd_ranks_backwards, even):
        group = world.new_group(ranks)
        assert (group is None) == (world.rank not in ranks)
        if group is not None:
            assert group.ranks == tuple(ranks) and group.ranks[group.rank] == world.rank
            return check_everything(group, dtypes)
    return 0


@pytest.mark.long
@pytest.mark.parametrize("size", [5, 7])
def test_collectives_on_subgroups(ranks, size):
    assert min(ranks(size).run(on_subgroups, DTYPES)) > 125 * len(DTYPES)


def larger_than_the_queues(world):
    for elements in (1001, 65_537):
        for dtype in ("float64", "int16"):
            for algorithm in methods(tables.ALL_REDUCE, world):
                x = values(world.rank, elements, dtype)
                md.all_reduce(x, group=world, algorithm=algorithm)
                same(x, combined(ReduceOp.SUM, world.size, elements, dtype), algorithm)
            for algorithm in methods(tables.BROADCAST, world):
                x = values(world.rank, elements, dtype)
                md.broadcast(x, 1, group=world, algorithm=algorithm)
                same(x, values(1, elements, dtype), algorithm)
            whole = np.empty(elements * world.size, dtype)
            md.all_gather_into_tensor(whole, values(world.rank, elements, dtype), group=world)
            same(whole, np.concatenate([values(r, elements, dtype) for r in range(world.size)]))
            out = np.empty_like(whole)
            md.all_to_all_single(out, whole, group=world)
            cut = slice(world.rank * elements, (world.rank + 1) * elements)
            same(out, np.concatenate([whole[cut]] * world.size))


@pytest.mark.long
@pytest.mark.parametrize("size", [pytest.param(2, marks=long), 3, pytest.param(5, marks=long)])
def test_arrays_larger_than_every_queue(small_queues, size):
    small_queues(size).run(larger_than_the_queues)


def uneven(world):
    """Rank a sends (a + 2 b) % 4 rows to rank b: some none at all."""
    rows = lambda a, b: (a + 2 * b) % 4  # noqa: E731
    send = [rows(world.rank, b) for b in range(world.size)]
    receive = [rows(a, world.rank) for a in range(world.size)]
    outgoing = np.concatenate([np.full((n, 3), 100 * world.rank + b) for b, n in enumerate(send)])
    incoming = np.empty((sum(receive), 3), int)
    md.all_to_all_single(incoming, outgoing, receive, send, group=world)
    expected = np.concatenate([np.full((n, 3), 100 * a + world.rank) for a, n in enumerate(receive)])
    same(incoming, expected)


@pytest.mark.parametrize("size", [1, 3, 4, 7])
def test_all_to_all_with_uneven_splits(ranks, size):
    ranks(size).run(uneven)


def all_ranks_same_bits(world):
    x = np.random.default_rng(world.rank).standard_normal(1003).astype(np.float32)
    found = {}
    for algorithm in methods(tables.ALL_REDUCE, world):
        y = x.copy()
        md.all_reduce(y, group=world, algorithm=algorithm)
        found[algorithm] = y.tobytes()
    return found


def test_every_rank_gets_the_same_float32_bits_and_algorithms_differ(ranks):
    results = ranks(5).run(all_ranks_same_bits)
    assert all(result == results[0] for result in results)
    assert len(set(results[0].values())) > 1  # float32 shows the order of the sum: what float64 sums are for


def float64_sums(world):
    """Sums of float32 numbers in float64, rounded once: what gradients go through."""
    x = np.random.default_rng(world.rank).standard_normal(10_007).astype(np.float32)
    found = set()
    for algorithm in methods(tables.ALL_REDUCE, world):
        y = x.astype(np.float64)
        md.all_reduce(y, group=world, algorithm=algorithm)
        found.add(y.astype(np.float32).tobytes())
    return found


def test_float64_sums_do_not_show_the_algorithm(ranks):
    results = ranks(7).run(float64_sums)
    assert len(set.union(*results)) == 1


def overlapping_arrays(world):
    """An all-gather in place: the input is the rank's own part of the output, as FSDP calls it."""
    whole = np.zeros((world.size, 5))
    whole[world.rank] = world.rank + 1
    md.all_gather_into_tensor(whole, whole[world.rank], group=world)
    same(whole, np.repeat(np.arange(1.0, world.size + 1)[:, None], 5, axis=1))
    part = whole[world.rank]
    md.reduce_scatter_tensor(part, whole, group=world)
    same(part, np.full(5, world.size * (world.rank + 1.0)))


def test_in_place_gather_and_scatter(ranks):
    ranks(3).run(overlapping_arrays)


def all_to_all_in_place(world):
    x = np.arange(world.size) + 10 * world.rank
    md.all_to_all_single(x, x, group=world)
    same(x, np.arange(world.size) * 10 + world.rank)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_in_place_all_to_all(ranks, size):
    ranks(size).run(all_to_all_in_place)


def scatter_and_gather_in_place(world):
    boxes = [np.full(100_000, 10.0 * world.rank + r) for r in range(world.size)]
    mine = boxes[1] if world.rank == 0 else np.empty(100_000)
    md.scatter(mine, boxes if world.rank == 0 else None, 0, world)
    same(mine, np.full(100_000, float(world.rank)))
    boxes = [np.full(100_000, -1.0) for _ in range(world.size)]
    mine = boxes[1] if world.rank == 0 else np.empty(100_000)
    mine[:] = world.rank
    md.gather(mine, boxes if world.rank == 0 else None, 0, world)
    if world.rank == 0:
        same(np.stack(boxes)[:, 0], np.arange(float(world.size)))


def test_scatter_and_gather_with_one_of_the_pieces(ranks):
    ranks(3).run(scatter_and_gather_in_place)


def zero_dimensional(world):
    x = np.array(float(world.rank))
    md.all_reduce(x, ReduceOp.MAX, group=world)
    return float(x)


def test_zero_dimensional_arrays(ranks):
    assert ranks(4).run(zero_dimensional) == [3.0] * 4


BAD_CALLS = [
    (lambda w: md.all_reduce([1, 2], group=w), TypeError, "tensor must be an array, but is list"),
    (lambda w: md.all_reduce(np.ma.zeros(3), group=w), TypeError, "but is MaskedArray"),
    (lambda w: md.send(np.zeros(3), 1 - w.rank, w, tag="a"), TypeError, "cannot be interpreted as an integer"),
    (lambda w: md.broadcast(np.zeros(3), 0.5, w), TypeError, "cannot be interpreted as an integer"),
    (lambda w: md.all_reduce(np.array(["a"]), group=w), TypeError, "must hold numbers or bools"),
    (lambda w: md.all_reduce(np.zeros(3, ">f8"), group=w), TypeError, "native byte order"),
    (lambda w: md.all_reduce(np.zeros((4, 4)).T[:2], group=w), ValueError, "np.ascontiguousarray(tensor)"),
    (lambda w: md.all_reduce(np.broadcast_to(np.zeros(1), 1), group=w), ValueError, "read-only"),
    (lambda w: md.all_reduce(np.zeros(3), "sum", group=w), TypeError, "op must be a ReduceOp"),
    (lambda w: md.all_reduce(np.zeros(3, int), md.ReduceOp.AVG, group=w), TypeError, "use SUM and divide"),
    (lambda w: md.all_reduce(np.zeros(3, complex), md.ReduceOp.MAX, group=w), TypeError, "complex numbers have no MAX"),
    (lambda w: md.all_reduce(np.zeros(3), group=w, algorithm="magic"), ValueError, "choose auto, naive, tree, ring"),
    (lambda w: md.all_reduce(np.zeros(3)), TypeError, "all_reduce needs group="),
    (lambda w: md.broadcast(np.zeros(3), 2, group=w), ValueError, "src=2 is not a rank of this group of 2"),
    (lambda w: md.send(np.zeros(3), w.rank, group=w), ValueError, "cannot exchange a message with itself"),
    (lambda w: md.recv(np.zeros(3), 5, group=w), ValueError, "there is no rank 5 in a group of 2"),
    (
        lambda w: md.all_gather_into_tensor(np.zeros(5), np.zeros(3), group=w),
        ValueError,
        "output must have 6 elements (the number of ranks times input's), but has 5",
    ),
    (
        lambda w: md.reduce_scatter_tensor(np.zeros(2, "f"), np.zeros(4), group=w),
        TypeError,
        "input is float64 but output",
    ),
    (lambda w: md.all_to_all_single(np.zeros(3), np.zeros(3), group=w), ValueError, "pass input_split_sizes"),
    (lambda w: md.all_to_all_single(np.zeros(3), np.zeros(3), [1, 2], [5, 5], w), ValueError, "add up to the 3 rows"),
    (lambda w: md.scatter(np.zeros(3), [np.zeros(3)], w.rank, w), ValueError, "a list of 2 arrays"),
    (lambda w: md.gather(np.zeros(3), [np.zeros(3), np.zeros(2)], w.rank, w), ValueError, "they must agree"),
    (lambda w: md.batch_isend_irecv([1]), TypeError, "takes P2POp"),
    (lambda w: w.new_group([0, 0]), ValueError, "all different and from 0 to 1"),
    (lambda w: md.init_device_mesh((3,), mesh_dim_names=("dp",), group=w), ValueError, "exactly the 2 ranks"),
]


def bad_calls(world):
    problems = []
    for number, (call, error, text) in enumerate(BAD_CALLS):
        try:
            call(world)
            problems.append(f"call {number} was accepted")
        except error as raised:
            if text not in str(raised):
                problems.append(f"call {number} said: {raised}")
    return problems


def test_bad_arguments_are_named_before_anything_moves(ranks):
    assert ranks(2).run(bad_calls) == [[], []]
