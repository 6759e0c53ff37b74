"""Graders of chapter 3: values, bytes and messages per rank, who sends to whom, steps, memory."""

from math import ceil, log2

import numpy as np
import pytest

from minidist.analysis.replay import replay
from minidist.course.authoring.assertions import (
    LARGE,
    SIZES,
    bytes_sent,
    in_steps,
    number,
    numbers,
    peak_bytes,
    same,
    to_the_right_only,
)

pytestmark = pytest.mark.answers(
    "ch03_collectives", forbidden=("minidist.comm.algorithms", "minidist.comm.collectives")
)


def chunked(rank: int, sizes: list[int]) -> list[np.ndarray]:
    return np.split(numbers(rank, sum(sizes)), np.cumsum(sizes)[:-1])


# 3.1


@pytest.mark.task(
    "3.1",
    points=3,
    kind="worksheet",
    hint="Count the steps first, then the bytes of one message in a step. For the crossover, set the two times equal "
    "and solve for M. ceil(log2 N) is int(np.ceil(np.log2(ranks))).",
)
class TestAlphaBeta:
    """What an all-reduce costs: naive, tree, ring, and where tree and ring cross"""

    NETWORKS = ((5e-6, 1 / 50e9), (1e-6, 1 / 450e9), (0.0, 1.0), (1.0, 0.0))  # (alpha, beta)

    @pytest.mark.parametrize(
        ("name", "algorithm"),
        [
            ("naive_all_reduce_seconds", "naive"),
            ("tree_all_reduce_seconds", "tree"),
            ("ring_all_reduce_seconds", "ring"),
        ],
    )
    def test_like_a_real_run(self, student, warm_ranks, name, algorithm):
        """Against a recorded run of the library's algorithm, replayed on the network."""
        for size in (2, 3, 5, 8):
            logs = warm_ranks(size).run(recorded_all_reduce, 840, algorithm, timeout=10)
            for alpha, beta in self.NETWORKS:
                real = max(flight.end for flight in replay(logs, lambda n, a=alpha, b=beta: a + b * n))
                found = number(student.call(name, size, 840 * 4, alpha, beta), name)
                # equal up to the rounding of a handful of operations
                assert found == pytest.approx(real, rel=1e-12), (
                    f"{name}({size}, 3360, {alpha}, {beta}): expected {real:g}, the time of a real run, got {found:g}"
                )

    def test_crossover(self, student):
        for size in (4, 6, 8, 64, 1000):
            for alpha, beta in self.NETWORKS[:2]:
                nbytes = number(student.call("crossover_bytes", size, alpha, beta), "crossover_bytes")
                tree = 2 * ceil(log2(size)) * (alpha + beta * nbytes)
                ring = 2 * (size - 1) * (alpha + beta * nbytes / size)
                assert nbytes > 0 and tree == pytest.approx(ring, rel=1e-9), (
                    f"crossover_bytes, {size} ranks: at {nbytes:g} bytes the tree takes {tree:g} s, the ring {ring:g} s"
                )


def recorded_all_reduce(world, elements, algorithm):
    import minidist as md
    from minidist import trace

    trace.start()
    md.all_reduce(np.ones(elements, np.float32), group=world, algorithm=algorithm)
    return trace.stop()


# 3.2


DTYPES = ("int32", "float32", "complex128")


def run_broadcast(world, answers, src, elements, dtype="float64"):
    flat = numbers(world.rank, elements).astype(dtype)
    answers.broadcast_tree(flat, src, world)
    return flat


@pytest.mark.task(
    "3.2",
    points=3,
    hint="Let distance be 1, 2, 4, ... while it is below N. Places below distance send to place + distance if that "
    "place exists; places from distance to 2 * distance - 1 receive from place - distance.",
)
class TestBroadcastTree:
    """broadcast_tree: each step doubles the number of ranks that have the array"""

    def test_values(self, student):
        for size in SIZES:
            for src in (0, 1, size - 1):
                for rank, seen in enumerate(student.on_ranks(size, run_broadcast, src, 10)):
                    same(seen.value, numbers(src, 10), f"rank {rank} of {size}, from source {src}")

    def test_other_dtypes(self, student):
        for dtype in DTYPES:
            for rank, seen in enumerate(student.on_ranks(3, run_broadcast, 1, 5, dtype)):
                same(seen.value, numbers(1, 5).astype(dtype), f"rank {rank} of 3, {dtype}")

    def test_one_rank_and_no_elements(self, student):
        same(student.on_ranks(1, run_broadcast, 0, 4)[0].value, numbers(0, 4), "a single rank")
        student.on_ranks(3, run_broadcast, 2, 0)

    def test_large(self, student):
        for rank, seen in enumerate(student.on_ranks(3, run_broadcast, 1, LARGE)):
            same(seen.value, numbers(1, LARGE), f"rank {rank}")

    def test_bytes(self, student):
        for size in SIZES:
            seen = student.on_ranks(size, run_broadcast, 1, 10)
            sent, source = bytes_sent(seen), bytes_sent(seen)[1].sum()
            assert (sent.sum(axis=0) == [80 * (rank != 1) for rank in range(size)]).all(), (
                f"{size} ranks: bytes received: expected 80 on every rank except source 1, got "
                f"{sent.sum(axis=0).tolist()}"
            )
            assert source == ceil(log2(size)) * 80, (
                f"{size} ranks: bytes sent by the source: expected {ceil(log2(size)) * 80}, got {source}; "
                "in each step, every rank that has the array sends it on"
            )

    def test_steps(self, student):
        for size in (*SIZES, 8):
            in_steps(student.on_ranks(size, run_broadcast, 1, 10), ceil(log2(size)))


# 3.3


def run_all_reduce(world, answers, name, elements, combine="add", dtype="float64"):
    flat = numbers(world.rank, elements).astype(dtype)
    getattr(answers, name)(flat, getattr(np, combine), world)
    return flat


def check_all_reduce(student, name: str) -> None:
    for size in SIZES:
        for elements in (12, 1, 11, 0):
            total = sum(numbers(rank, elements) for rank in range(size))
            for rank, seen in enumerate(student.on_ranks(size, run_all_reduce, name, elements)):
                same(seen.value, total, f"rank {rank} of {size}, {elements} elements")


def check_other_operations(student, name: str) -> None:
    for combine in ("maximum", "minimum"):
        expected = getattr(np, combine).reduce([numbers(rank, 9) for rank in range(3)])
        for rank, seen in enumerate(student.on_ranks(3, run_all_reduce, name, 9, combine)):
            same(seen.value, expected, f"rank {rank} of 3 with np.{combine}")
    for dtype in DTYPES:
        total = sum(numbers(rank, 7) for rank in range(3)).astype(dtype)
        for rank, seen in enumerate(student.on_ranks(3, run_all_reduce, name, 7, "add", dtype)):
            same(seen.value, total, f"rank {rank} of 3, {dtype}")


@pytest.mark.task(
    "3.3",
    points=2,
    hint="For each other rank, rank 0 receives into a separate array (np.empty_like) and calls combine(flat, arrived, "
    "out=flat); then it sends flat to each. The others send, then receive.",
)
class TestAllReduceNaive:
    """all_reduce_naive: everything through rank 0"""

    def test_values(self, student):
        check_all_reduce(student, "all_reduce_naive")

    def test_other_operations(self, student):
        check_other_operations(student, "all_reduce_naive")

    def test_large(self, student):
        total = sum(numbers(rank, LARGE) for rank in range(3))
        for rank, seen in enumerate(student.on_ranks(3, run_all_reduce, "all_reduce_naive", LARGE)):
            same(seen.value, total, f"rank {rank}")

    def test_bytes(self, student):
        for size in SIZES:
            sent = bytes_sent(student.on_ranks(size, run_all_reduce, "all_reduce_naive", 10)).sum(axis=1)
            assert sent.tolist() == [80 * (size - 1)] + [80] * (size - 1), (
                f"{size} ranks: bytes sent: expected {80 * (size - 1)} by rank 0 and 80 by each other rank, "
                f"got {sent.tolist()}"
            )


# 3.4


def run_reduce_scatter(world, answers, sizes, combine="add", dtype="float64"):
    chunks = [chunk.astype(dtype) for chunk in chunked(world.rank, sizes)]
    answers.reduce_scatter_ring(chunks, getattr(np, combine), world)
    return chunks[world.rank]


def run_reduce_scatter_in_place(world, answers, elements):
    buffer = np.full(elements, world.rank + 1.0)
    answers.reduce_scatter_ring(np.array_split(buffer, world.size), np.add, world)
    return np.array_split(buffer, world.size)[world.rank]


def peak_of_reduce_scatter(world, answers, each):
    chunks = [np.ones(each) for _ in range(world.size)]
    return peak_bytes(lambda: answers.reduce_scatter_ring(chunks, np.add, world))


def uneven(size: int) -> list[int]:
    """Unequal chunk sizes, with an empty chunk among them."""
    return [3 * ((7 * c + 2) % 4) for c in range(size)]


@pytest.mark.task(
    "3.4",
    points=5,
    hint="In step s (from 0) a rank sends chunk (rank - 1 - s) % N to its right neighbour; what arrives from the left "
    "belongs to chunk (rank - 2 - s) % N. sendrecv does both at once; receive into a separate array and combine.",
)
class TestReduceScatterRing:
    """reduce_scatter_ring: partial sums travel around the ring, each rank keeps one"""

    def test_values(self, student):
        for size in SIZES:
            for sizes in ([2] * size, [1] * size, uneven(size)):
                total = [sum(parts) for parts in zip(*(chunked(r, sizes) for r in range(size)), strict=True)]
                for rank, seen in enumerate(student.on_ranks(size, run_reduce_scatter, sizes)):
                    same(seen.value, total[rank], f"chunk {rank} on rank {rank} of {size}, chunks of {sizes}")

    def test_one_rank(self, student):
        same(student.on_ranks(1, run_reduce_scatter, [5])[0].value, numbers(0, 5), "a single rank")

    def test_in_place(self, student):
        for rank, seen in enumerate(student.on_ranks(4, run_reduce_scatter_in_place, 8)):
            same(seen.value, np.full(2, 10.0), f"the buffer behind the chunks, on rank {rank}")

    def test_other_operations(self, student):
        expected = np.maximum.reduce([numbers(rank, 9) for rank in range(3)])
        for rank, seen in enumerate(student.on_ranks(3, run_reduce_scatter, [3] * 3, "maximum")):
            same(seen.value, expected[3 * rank : 3 * rank + 3], f"rank {rank} with np.maximum")

    def test_other_dtypes(self, student):
        for dtype in DTYPES:
            total = sum(numbers(rank, 9) for rank in range(3)).astype(dtype)
            for rank, seen in enumerate(student.on_ranks(3, run_reduce_scatter, [3] * 3, "add", dtype)):
                same(seen.value, total[3 * rank : 3 * rank + 3], f"rank {rank} of 3, {dtype}")

    def test_large(self, student):
        sizes = [LARGE // 3] * 3
        total = sum(numbers(rank, LARGE) for rank in range(3))
        for rank, seen in enumerate(student.on_ranks(3, run_reduce_scatter, sizes)):
            same(seen.value, np.split(total, 3)[rank], f"rank {rank}")

    def test_bytes_and_neighbours(self, student):
        for size in SIZES:
            sizes = uneven(size)
            seen = student.on_ranks(size, run_reduce_scatter, sizes)
            to_the_right_only(seen)
            for rank, one in enumerate(seen):
                expected = 8 * (sum(sizes) - sizes[rank])
                assert one.traffic.sent[:, 0].sum() == expected, (
                    f"rank {rank} of {size}: bytes sent: expected {expected}, all chunks except its own, got "
                    f"{one.traffic.sent[:, 0].sum()}"
                )

    def test_steps(self, student):
        for size in SIZES:
            in_steps(student.on_ranks(size, run_reduce_scatter, [2] * size), size - 1)

    def test_memory(self, student):
        each = 1 << 16
        for seen in student.on_ranks(4, peak_of_reduce_scatter, each):
            assert seen.value < 2.5 * each * 8, (  # the chunk that arrived last, and the one that is arriving
                f"extra memory, in chunks: expected at most 2, got {seen.value / each / 8:.1f}"
            )


# 3.5


def run_all_gather(world, answers, sizes, dtype="float64"):
    buffer = np.full(sum(sizes), -1, dtype)
    chunks = np.split(buffer, np.cumsum(sizes)[:-1])  # views: what is received must end up in the buffer
    chunks[world.rank][:] = chunked(world.rank, sizes)[world.rank]
    answers.all_gather_ring(chunks, world)
    return buffer


@pytest.mark.task(
    "3.5",
    points=4,
    hint="In step s (from 0) a rank sends chunk (rank - s) % N, which arrived in the previous step, to the right, and "
    "receives chunk (rank - 1 - s) % N from the left, directly into its place.",
)
class TestAllGatherRing:
    """all_gather_ring: every chunk travels once around the ring"""

    def test_values(self, student):
        for size in SIZES:
            for sizes in ([2] * size, [1] * size, uneven(size)):
                expected = np.concatenate([chunked(rank, sizes)[rank] for rank in range(size)])
                for rank, seen in enumerate(student.on_ranks(size, run_all_gather, sizes)):
                    same(seen.value, expected, f"rank {rank} of {size}, chunks of {sizes}")

    def test_other_dtypes(self, student):
        for dtype in DTYPES:
            expected = np.concatenate([chunked(rank, [2] * 3)[rank] for rank in range(3)]).astype(dtype)
            for rank, seen in enumerate(student.on_ranks(3, run_all_gather, [2] * 3, dtype)):
                same(seen.value, expected, f"rank {rank} of 3, {dtype}")

    def test_one_rank(self, student):
        same(student.on_ranks(1, run_all_gather, [5])[0].value, numbers(0, 5), "a single rank")

    def test_large(self, student):
        sizes = [LARGE // 3] * 3
        expected = np.concatenate([chunked(rank, sizes)[rank] for rank in range(3)])
        for rank, seen in enumerate(student.on_ranks(3, run_all_gather, sizes)):
            same(seen.value, expected, f"rank {rank}")

    def test_bytes_and_neighbours(self, student):
        for size in SIZES:
            sizes = uneven(size)
            seen = student.on_ranks(size, run_all_gather, sizes)
            to_the_right_only(seen)
            for rank, one in enumerate(seen):
                expected = 8 * (sum(sizes) - sizes[(rank + 1) % size])  # the right neighbour already has its own
                assert one.traffic.sent[:, 0].sum() == expected, (
                    f"rank {rank} of {size}: bytes sent: expected {expected}, all chunks except its right neighbour's "
                    f"own, got {one.traffic.sent[:, 0].sum()}"
                )

    def test_steps(self, student):
        for size in SIZES:
            in_steps(student.on_ranks(size, run_all_gather, [2] * size), size - 1)


# 3.6


@pytest.mark.task(
    "3.6",
    points=4,
    hint="Cut flat with chunks_of into one chunk per rank. The chunks are views, so writing to them writes to flat. "
    "Then a reduce-scatter, then an all-gather.",
)
class TestAllReduceRing:
    """all_reduce_ring: a reduce-scatter, then an all-gather"""

    def test_values(self, student):
        check_all_reduce(student, "all_reduce_ring")

    def test_other_operations(self, student):
        check_other_operations(student, "all_reduce_ring")

    def test_one_rank(self, student):
        same(student.on_ranks(1, run_all_reduce, "all_reduce_ring", 5)[0].value, numbers(0, 5), "a single rank")

    def test_large(self, student):
        total = sum(numbers(rank, LARGE) for rank in range(3))
        for rank, seen in enumerate(student.on_ranks(3, run_all_reduce, "all_reduce_ring", LARGE)):
            same(seen.value, total, f"rank {rank}")

    def test_bytes_and_neighbours(self, student):
        elements = 840  # divisible by all sizes
        for size in (*SIZES, 8):
            seen = student.on_ranks(size, run_all_reduce, "all_reduce_ring", elements)
            to_the_right_only(seen)
            formula = 2 * (size - 1) * elements * 8 // size
            for rank, one in enumerate(seen):
                sent = one.traffic.sent[:, 0].sum()
                assert sent == formula, (
                    f"rank {rank} of {size}: bytes sent: expected 2 (N-1)/N M = {formula}, got {sent}"
                )

    def test_steps(self, student):
        for size in SIZES:
            in_steps(student.on_ranks(size, run_all_reduce, "all_reduce_ring", 840), 2 * (size - 1))


# 3.7


def pieces(size: int, equal: bool) -> np.ndarray:
    """(from, to): the number of elements from each rank to each other."""
    return (
        np.full((size, size), 3)
        if equal
        else np.array([[(2 * a + 3 * b) % 4 for b in range(size)] for a in range(size)])
    )


def run_all_to_all(world, answers, counts, dtype="float64"):
    outgoing = [100 * world.rank + 10 * to + np.arange(counts[world.rank, to]) for to in range(world.size)]
    outgoing = [piece.astype(dtype) for piece in outgoing]
    buffer = np.full(counts[:, world.rank].sum(), -1, dtype)
    incoming = np.split(buffer, np.cumsum(counts[:, world.rank])[:-1])  # views: what arrives must end up in the buffer
    answers.all_to_all_pairwise(outgoing, incoming, world)
    return buffer


@pytest.mark.task(
    "3.7",
    points=4,
    hint="Copy your own piece. Then for step i = 1 to N-1: sendrecv outgoing[right] to right = rank + i and "
    "incoming[left] from left = rank - i, both % N.",
)
class TestAllToAll:
    """all_to_all_pairwise: transpose the matrix of pieces"""

    def test_values(self, student):
        for size in (1, *SIZES):
            for equal in (True, False):
                counts = pieces(size, equal)
                for rank, seen in enumerate(student.on_ranks(size, run_all_to_all, counts)):
                    expected = [100.0 * source + 10 * rank + np.arange(counts[source, rank]) for source in range(size)]
                    same(seen.value, np.concatenate(expected), f"rank {rank} of {size}")

    def test_other_dtypes(self, student):
        for dtype in DTYPES:
            for rank, seen in enumerate(student.on_ranks(3, run_all_to_all, pieces(3, False), dtype)):
                expected = [100 * src + 10 * rank + np.arange(pieces(3, False)[src, rank]) for src in range(3)]
                same(seen.value, np.concatenate(expected).astype(dtype), f"rank {rank} of 3, {dtype}")

    def test_large(self, student):
        counts = np.full((3, 3), LARGE // 3)
        for rank, seen in enumerate(student.on_ranks(3, run_all_to_all, counts)):
            expected = [100.0 * source + 10 * rank + np.arange(LARGE // 3) for source in range(3)]
            same(seen.value, np.concatenate(expected), f"rank {rank}")

    def test_messages(self, student):
        for size in SIZES:
            seen = student.on_ranks(size, run_all_to_all, pieces(size, equal=True))
            for rank, one in enumerate(seen):
                messages = one.traffic.sent[:, 1].tolist()
                assert messages == [int(peer != rank) for peer in range(size)], (
                    f"rank {rank} of {size}: messages: expected one to each other rank, got {messages}"
                )
                sent = one.traffic.sent[:, 0].tolist()
                assert sent == [24 * (peer != rank) for peer in range(size)], (
                    f"rank {rank} of {size}: bytes to each rank: expected 24, one piece for each other rank, got {sent}"
                )

    def test_steps(self, student):
        for size in SIZES:
            in_steps(student.on_ranks(size, run_all_to_all, pieces(size, equal=True)), size - 1)


# 3.8


def run_global_max(world, answers, elements):
    values = numbers(world.rank, elements)
    best = answers.global_max(values, world)
    return [best, values, np.shares_memory(best, values)]


@pytest.mark.task(
    "3.8",
    points=3,
    kind="debugging",
    hint="Draw the second round for 4 ranks: which rank gets the result from the last rank, and which gets it next? "
    "Every rank except the last must receive it. Every rank except one must send it on.",
)
class TestGlobalMax:
    """global_max: right for 2 ranks, wrong for 3. Find the bug and fix it"""

    def test_values(self, student):
        for size in (1, *SIZES):
            expected = np.maximum.reduce([numbers(rank, 20) for rank in range(size)])
            for rank, seen in enumerate(student.on_ranks(size, run_global_max, 20)):
                same(seen.value[0], expected, f"rank {rank} of {size}")
                same(seen.value[1], numbers(rank, 20), f"the argument of rank {rank} of {size}, which must not change")
                assert not seen.value[2], (
                    f"rank {rank} of {size}: expected a new array, got one that shares memory with the argument"
                )

    def test_messages(self, student):
        for size in SIZES:
            seen = student.on_ranks(size, run_global_max, 20)
            to_the_right_only(seen)
            in_steps(seen, 2 * (size - 1))
