"""Every collective, by every algorithm, leaves what NumPy says; on MPI also what MPICH's own collectives leave."""

from itertools import product

import numpy as np
import pytest
from calls import REDUCING, available, call, cases, inputs, methods, wrong, wrong_splits
from choosing import long

import minidist as md
from minidist.comm.collectives import ALL_REDUCE
from minidist.comm.point_to_point import overlap
from minidist.comm.runtime.clusters import job_size

# Ranks, ranks on a node, and the groups that call at the same time, each with its ranks in an order of their own.
SHAPES = [
    (1, 1, [[0]]),
    (2, 1, [[1, 0]]),
    (3, 1, [[2, 0, 1]]),
    (4, 2, [[0, 2, 1, 3]]),  # neighbours are on different nodes
    (4, 2, [[0, 1, 2]]),  # not as many on every node: no hierarchical algorithm
    (5, 5, [[3, 1], [0, 2, 4]]),
]
MORE = [(size, each, [[*range(size)]]) for size, each in ((2, 2), (3, 3), (5, 5), (6, 3), (6, 2), (7, 7), (8, 4))]
MORE.append((6, 3, [[5, 0, 4, 1], [3, 2]]))


def check(world, node_size: int, groups: list, turn: int) -> list[str]:
    """Make all calls of a rank's group; return what is wrong."""
    md.place_on_nodes(world, node_size)
    mine = [group for group in map(world.new_group, groups) if group is not None]
    problems = [wrong(group, case) for group in mine for case in cases(group.nodes, turn)]
    for group in mine:
        problems += wrong_splits(group, [algorithm for name, algorithm in methods(group.nodes) if "to_all" in name])
        md.barrier(group)
    return [*filter(None, problems)]


@pytest.mark.parametrize("shapes", [SHAPES, long(MORE)], ids=len)
def test_results_are_numpys(ranks, shapes):
    for turn, (size, node_size, groups) in enumerate(shapes):
        if available(size):
            problems = [problem for found in ranks(size).run(check, node_size, groups, turn) for problem in found]
            assert problems == [], (size, node_size, groups)


def test_queues_may_be_smaller_than_the_arrays(small_queues):
    assert small_queues(3).run(check, 3, [[0, 1, 2]], 0) == [[]] * 3


def differing_from_mpich(world, turn: int) -> list:
    """The cases in which MPICH's own collectives leave something else than ours."""
    from mpi4py import MPI

    ops = {"SUM": MPI.SUM, "AVG": MPI.SUM, "PRODUCT": MPI.PROD, "MIN": MPI.MIN, "MAX": MPI.MAX}
    ops_of_bools = {"SUM": MPI.LOR, "PRODUCT": MPI.LAND, "MIN": MPI.LAND, "MAX": MPI.LOR}
    comm, rank, different = world.transport.comm, world.rank, []
    for case in cases(world.nodes, turn):
        if case.dtype == "float16" or case.how.startswith("in place"):  # MPI has no float16
            continue
        ours, (one, many) = call(world, case)[0][0], inputs(world, case)
        op = (ops_of_bools if case.dtype == "bool" else ops)[case.op.name]
        small, large, root = one[rank].copy(), many[rank].copy(), case.root
        at_root = case.collective not in ("reduce", "gather") or rank == root
        theirs = np.empty_like(ours) if at_root and case.collective != "broadcast" else small
        function, *arguments = {
            "broadcast": (comm.Bcast, theirs, root),
            "reduce": (comm.Reduce, small, theirs, op, root),
            "all_reduce": (comm.Allreduce, small, theirs, op),
            "reduce_scatter_tensor": (comm.Reduce_scatter_block, large, theirs, op),
            "all_gather_into_tensor": (comm.Allgather, small, theirs),
            "all_to_all_single": (comm.Alltoall, large, theirs),
            "scatter": (comm.Scatter, large, theirs, root),
            "gather": (comm.Gather, small, theirs, root),
        }[case.collective]
        function(*arguments)
        if case.collective in REDUCING and case.op.name == "AVG" and at_root:
            theirs = theirs / theirs.dtype.type(world.size)
        different += [] if np.array_equal(ours, theirs) else [(case, ours, theirs)]
    return different


@pytest.mark.skipif(job_size() is None, reason="MPI's part of test_conformance_on_mpi.py")
def test_results_are_mpichs(ranks):
    for size in available(1, 2, 3, 5, 8):
        for different in ranks(size).run(differing_from_mpich, size):
            assert different == [], size


def sums(world, node_size: int) -> dict[str, tuple[bytes, bytes]]:
    """Return by algorithm the bits of a sum in float32, and of one in float64 rounded once, as for gradients."""
    md.place_on_nodes(world, node_size)
    x = np.random.default_rng(world.rank).standard_normal(10_007).astype(np.float32)
    both = {algorithm: (x.copy(), x.astype(np.float64)) for algorithm in ALL_REDUCE}
    for algorithm, arrays in both.items():
        for y in arrays:
            md.all_reduce(y, group=world, algorithm=algorithm)
    return {algorithm: (x.tobytes(), y.astype(np.float32).tobytes()) for algorithm, (x, y) in both.items()}


def test_all_ranks_get_the_same_bits_and_float64_sums_show_no_algorithm(ranks):
    """float32 sums do: it is what float64 sums are for."""
    for size, node_size in ((5, 5), (6, 1), (6, 2), (6, 3)):
        if available(size):
            first, *others = ranks(size).run(sums, node_size)
            assert others == [first] * (size - 1)
            assert len({wide for _, wide in first.values()}) == 1 < len({narrow for narrow, _ in first.values()})


def test_arrays_overlap_where_numpy_says_that_they_share_memory():
    """Arrays that overlap are copied before an all-to-all."""
    x = np.arange(6)
    for a, b, c, d in product(range(7), repeat=4):
        one, other = x[a:b], x[c:d]
        assert overlap(one, other) == np.shares_memory(one, other) or not (one.size and other.size), (a, b, c, d)
