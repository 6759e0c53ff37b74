"""Graders of chapter 3: values, bytes and messages per rank, who sends to whom, steps, memory."""

from math import ceil, log2

import numpy as np
import pytest

from minidist.analysis.replay import flights
from minidist.course.authoring.assertions import (
    LARGE,
    MANY,
    SIZES,
    by_group,
    bytes_sent,
    compared,
    in_groups,
    in_steps,
    is_copy,
    is_sum,
    number,
    peak_bytes,
    same,
    sizes,
    to_the_right_only,
)
from minidist.course.sandbox.values import blank, many_digits, nbytes, numbers, working_dtype

pytestmark = pytest.mark.answers(
    "ch03_collectives",
    forbidden=(
        "minidist.comm.algorithms",
        "minidist.comm.collectives",
        "minidist.comm.double_tree",
        "minidist.comm.two_level",
    ),
)


def chunked(rank: int, sizes: list[int], dtype: str | None = None) -> list[np.ndarray]:
    return np.split(as_dtype(rank, sum(sizes), dtype), np.cumsum(sizes)[:-1])


def as_dtype(rank: int, elements: int, dtype: str | None) -> np.ndarray:
    """Return a rank's array, in the dtype of the test or in this one."""
    return many_digits(rank, elements) if dtype is None else small(rank, elements, dtype)


def small(rank: int, elements: int, dtype: str, seed: int = 0) -> np.ndarray:
    """Numbers whose sums are exact even in float16."""
    return (numbers(rank, elements, seed) % 64).astype(dtype)


# 3.1

EXOTIC = ("complex128", "float16", "bool")  # besides the dtypes in which all tests of a task run
DTYPES = ("float64", "float32", "int32")
BEFORE = "what was there before"


def run_broadcast(group, answers, src, elements, dtype=None):
    flat = as_dtype(group.rank, elements, dtype)
    answers.broadcast_tree(flat, src, group)
    return flat


@pytest.mark.task(
    "3.1",
    points=3,
    dtypes=DTYPES,
)
class TestBroadcastTree:
    """broadcast_tree: each step doubles the number of ranks that have the array"""

    def check(self, found, rank: int, size: int, src: int, elements: int, dtype: str | None = None) -> None:
        copies = {f"rank {other}'s array": as_dtype(other, elements, dtype) for other in range(size)}
        what = f"rank {rank} of {size}, from source {src}, {dtype or working_dtype()}"
        is_copy(found, f"rank {src}'s array", copies, what)

    def test_values(self, student):
        for size in sizes():
            for src in (0, 1, size - 1):
                for elements in (10, 1) if size == 3 else (10,):
                    for rank, seen in enumerate(student.on_ranks(size, run_broadcast, src, elements)):
                        self.check(seen.value, rank, size, src, elements)

    @pytest.mark.one_dtype
    def test_other_dtypes(self, student):
        for dtype in EXOTIC:
            for rank, seen in enumerate(student.on_ranks(3, run_broadcast, 1, 5, dtype)):
                self.check(seen.value, rank, 3, 1, 5, dtype)

    @pytest.mark.one_dtype
    def test_one_rank_and_no_elements(self, student):
        same(student.on_ranks(1, run_broadcast, 0, 4)[0].value, many_digits(0, 4), "a single rank")
        student.on_ranks(3, run_broadcast, 2, 0)

    @pytest.mark.one_dtype
    def test_many_ranks(self, student):
        for src in (0, 7):
            for rank, seen in enumerate(student.on_ranks(MANY, run_broadcast, src, 3)):
                self.check(seen.value, rank, MANY, src, 3)

    @pytest.mark.one_dtype
    def test_groups(self, student):
        for rank, size, found in by_group(student.on_ranks(5, in_groups, run_broadcast, 1, 6)):
            self.check(found, rank, size, 1, 6)

    @pytest.mark.one_dtype
    def test_large(self, student):
        for rank, seen in enumerate(student.on_ranks(3, run_broadcast, 1, LARGE)):
            self.check(seen.value, rank, 3, 1, LARGE)

    def test_bytes(self, student):
        for size in sizes():
            seen = student.on_ranks(size, run_broadcast, 1, 10)
            sent, source = bytes_sent(seen), bytes_sent(seen)[1].sum()
            assert (sent.sum(axis=0) == [nbytes(10) * (rank != 1) for rank in range(size)]).all(), (
                f"{size} ranks, {working_dtype()}: bytes received: expected {nbytes(10)} on every rank except "
                f"source 1, got {sent.sum(axis=0).tolist()}"
            )
            assert source == ceil(log2(size)) * nbytes(10), (
                f"{size} ranks, {working_dtype()}: bytes sent by the source: expected "
                f"{ceil(log2(size)) * nbytes(10)}, got {source}; "
                "in each step, every rank that has the array sends it on"
            )

    @pytest.mark.one_dtype
    def test_steps(self, student):
        for size in (*SIZES, 8, MANY):
            in_steps(student.on_ranks(size, run_broadcast, 1, 10), ceil(log2(size)))


# 3.2


def run_all_reduce(group, answers, name, elements, combine="add", dtype=None):
    flat = as_dtype(group.rank, elements, dtype)
    getattr(answers, name)(flat, getattr(np, combine), group)
    return flat


def is_all_reduced(found, rank: int, size: int, elements: int, what: str = "", dtype: str | None = None) -> None:
    """Assert that a rank has the sum; else say whose part is missing, chunk by chunk as a ring cuts the array."""
    parts = [as_dtype(other, elements, dtype) for other in range(size)]
    what = what or f"{elements} elements"
    where = f"on rank {rank} of {size}, {what}, {dtype or working_dtype()}"
    if isinstance(found, np.ndarray) and found.shape == parts[0].shape:
        cut = [np.array_split(part, size) for part in parts]
        for c, chunk in enumerate(np.array_split(found, size)):
            is_sum(chunk, [chunks[c] for chunks in cut], f"chunk {c} of {size} {where}")
    is_sum(found, parts, where)


def check_all_reduce(student, name: str) -> None:
    for size in sizes():
        for elements in (24, 1, 11, 0) if size < 5 else (11,):
            for rank, seen in enumerate(student.on_ranks(size, run_all_reduce, name, elements)):
                is_all_reduced(seen.value, rank, size, elements)


def check_other_operations(student, name: str) -> None:
    by_name = {f"the {op}": getattr(np, op).reduce([many_digits(rank, 9) for rank in range(3)]) for op in ORDERS}
    by_name["the sum"] = sum(many_digits(rank, 9) for rank in range(3))
    for op in ORDERS:
        for rank, seen in enumerate(student.on_ranks(3, run_all_reduce, name, 9, op)):
            is_copy(seen.value, f"the {op}", by_name, f"rank {rank} of 3 with np.{op}, {working_dtype()}")


def check_other_dtypes(student, name: str) -> None:
    for dtype in EXOTIC:
        for rank, seen in enumerate(student.on_ranks(3, run_all_reduce, name, 7, "add", dtype)):
            is_all_reduced(seen.value, rank, 3, 7, dtype=dtype)


def check_sizes_of_groups(student, name: str) -> None:
    same(student.on_ranks(1, run_all_reduce, name, 5)[0].value, many_digits(0, 5), "a single rank")
    for rank, seen in enumerate(student.on_ranks(MANY, run_all_reduce, name, 20)):
        is_all_reduced(seen.value, rank, MANY, 20)
    for rank, size, found in by_group(student.on_ranks(5, in_groups, run_all_reduce, name, 12)):
        is_all_reduced(found, rank, size, 12, "groups of 5 ranks")


ORDERS = ("maximum", "minimum")


@pytest.mark.task(
    "3.2",
    points=2,
    dtypes=DTYPES,
)
class TestAllReduceNaive:
    """all_reduce_naive: everything through rank 0"""

    def test_values(self, student):
        check_all_reduce(student, "all_reduce_naive")

    def test_other_operations(self, student):
        check_other_operations(student, "all_reduce_naive")

    @pytest.mark.one_dtype
    def test_other_dtypes(self, student):
        check_other_dtypes(student, "all_reduce_naive")

    @pytest.mark.one_dtype
    def test_sizes_of_groups(self, student):
        check_sizes_of_groups(student, "all_reduce_naive")

    @pytest.mark.one_dtype
    def test_large(self, student):
        for rank, seen in enumerate(student.on_ranks(3, run_all_reduce, "all_reduce_naive", LARGE)):
            is_all_reduced(seen.value, rank, 3, LARGE)

    def test_bytes(self, student):
        for size in sizes():
            sent = bytes_sent(student.on_ranks(size, run_all_reduce, "all_reduce_naive", 10)).sum(axis=1)
            mine = nbytes(10)
            assert sent.tolist() == [mine * (size - 1)] + [mine] * (size - 1), (
                f"{size} ranks, {working_dtype()}: bytes sent: expected {mine * (size - 1)} by rank 0 and "
                f"{mine} by each other rank, got {sent.tolist()}"
            )


# 3.3


def run_reduce_scatter(group, answers, sizes, combine="add", dtype=None):
    chunks = chunked(group.rank, sizes[: group.size], dtype)
    answers.reduce_scatter_ring(chunks, getattr(np, combine), group)
    return chunks[group.rank]


def run_reduce_scatter_in_place(world, answers, elements):
    buffer = many_digits(world.rank, elements)
    answers.reduce_scatter_ring(np.array_split(buffer, world.size), np.add, world)
    return np.array_split(buffer, world.size)[world.rank]


def peak_of_reduce_scatter(world, answers, each):
    chunks = [np.ones(each) for _ in range(world.size)]
    return peak_bytes(lambda: answers.reduce_scatter_ring(chunks, np.add, world))


def uneven(size: int) -> list[int]:
    """Unequal chunk sizes, with an empty chunk among them."""
    return [3 * ((7 * c + 2) % 4) for c in range(size)]


@pytest.mark.task(
    "3.3",
    points=5,
    dtypes=DTYPES,
)
class TestReduceScatterRing:
    """reduce_scatter_ring: partial sums travel around the ring, each rank keeps one"""

    def check(self, found, rank: int, chunk_sizes: list[int], dtype: str | None = None, where: str = "") -> None:
        size = len(chunk_sizes)
        parts = [chunked(other, chunk_sizes, dtype) for other in range(size)]
        others = {f"chunk {c}": [chunks[c] for chunks in parts] for c in range(size) if c != rank}
        what = f"chunk {rank} on rank {rank} of {size}{where}, chunks of {chunk_sizes}, {dtype or working_dtype()}"
        is_sum(found, [chunks[rank] for chunks in parts], what, others)

    def test_values(self, student):
        for size in sizes():
            for chunk_sizes in ([4] * size, [1] * size, uneven(size)):
                for rank, seen in enumerate(student.on_ranks(size, run_reduce_scatter, chunk_sizes)):
                    self.check(seen.value, rank, chunk_sizes)

    @pytest.mark.one_dtype
    def test_sizes_of_groups(self, student):
        same(student.on_ranks(1, run_reduce_scatter, [5])[0].value, many_digits(0, 5), "a single rank")
        for chunk_sizes in (uneven(MANY), [0] * MANY):
            for rank, seen in enumerate(student.on_ranks(MANY, run_reduce_scatter, chunk_sizes)):
                self.check(seen.value, rank, chunk_sizes)
        for rank, size, found in by_group(student.on_ranks(5, in_groups, run_reduce_scatter, [4, 3, 5, 1, 2])):
            self.check(found, rank, [4, 3, 5, 1, 2][:size], where=", groups of 5 ranks")

    def test_in_place(self, student):
        parts = [np.split(many_digits(rank, 8), 4) for rank in range(4)]
        for rank, seen in enumerate(student.on_ranks(4, run_reduce_scatter_in_place, 8)):
            what = (
                f"chunk {rank} on rank {rank} of 4, {working_dtype()}, in the buffer that the chunks are views of "
                f"(write into chunks[{rank}], do not replace it)"
            )
            is_sum(seen.value, [chunks[rank] for chunks in parts], what)

    def test_other_operations(self, student):
        for op in ORDERS:
            expected = getattr(np, op).reduce([many_digits(rank, 9) for rank in range(3)])
            for rank, seen in enumerate(student.on_ranks(3, run_reduce_scatter, [3] * 3, op)):
                same(seen.value, expected[3 * rank : 3 * rank + 3], f"rank {rank} with np.{op}, {working_dtype()}")

    @pytest.mark.one_dtype
    def test_other_dtypes(self, student):
        for dtype in EXOTIC:
            for rank, seen in enumerate(student.on_ranks(3, run_reduce_scatter, [3] * 3, "add", dtype)):
                self.check(seen.value, rank, [3] * 3, dtype)

    @pytest.mark.one_dtype
    def test_large(self, student):
        for rank, seen in enumerate(student.on_ranks(3, run_reduce_scatter, [LARGE // 3] * 3)):
            self.check(seen.value, rank, [LARGE // 3] * 3)

    def test_bytes_and_neighbours(self, student):
        for size in sizes():
            chunk_sizes = uneven(size)
            seen = student.on_ranks(size, run_reduce_scatter, chunk_sizes)
            to_the_right_only(seen)
            for rank, one in enumerate(seen):
                expected = nbytes(sum(chunk_sizes) - chunk_sizes[rank])
                assert one.traffic.sent[:, 0].sum() == expected, (
                    f"rank {rank} of {size}, {working_dtype()}: bytes sent: expected {expected}, all chunks except "
                    f"its own, got {one.traffic.sent[:, 0].sum()}"
                )

    @pytest.mark.one_dtype
    def test_steps(self, student):
        for size in SIZES:
            in_steps(student.on_ranks(size, run_reduce_scatter, [2] * size), size - 1)

    @pytest.mark.one_dtype
    def test_memory(self, student):
        each = 1 << 16
        for seen in student.on_ranks(4, peak_of_reduce_scatter, each):
            assert seen.value < 2.5 * each * 8, (  # the chunk that arrived last, and the one that is arriving
                f"extra memory, in chunks: expected at most 2, got {seen.value / each / 8:.1f}"
            )


# 3.4


def run_all_gather(group, answers, sizes, dtype=None):
    sizes = sizes[: group.size]
    buffer = before(sum(sizes), dtype)
    chunks = np.split(buffer, np.cumsum(sizes)[:-1])  # views: what is received must end up in the buffer
    chunks[group.rank][:] = chunked(group.rank, sizes, dtype)[group.rank]
    answers.all_gather_ring(chunks, group)
    return buffer


def peak_of_all_gather(world, answers, each):
    chunks = [np.ones(each) for _ in range(world.size)]
    return peak_bytes(lambda: answers.all_gather_ring(chunks, world))


def before(elements: int, dtype: str | None) -> np.ndarray:
    """A buffer to receive into."""
    return blank(elements) if dtype is None else blank(elements).astype(dtype)


@pytest.mark.task(
    "3.4",
    points=4,
    dtypes=DTYPES,
)
class TestAllGatherRing:
    """all_gather_ring: every chunk travels once around the ring"""

    def check(self, found, rank: int, chunk_sizes: list[int], dtype: str | None = None, where: str = "") -> None:
        size = len(chunk_sizes)
        owned = [chunked(owner, chunk_sizes, dtype)[owner] for owner in range(size)]
        where = f"on rank {rank} of {size}{where}, chunks of {chunk_sizes}, {dtype or working_dtype()}"
        if isinstance(found, np.ndarray) and found.size == sum(chunk_sizes):
            for c, chunk in enumerate(np.split(found, np.cumsum(chunk_sizes)[:-1])):
                copies = {f"chunk {owner}": array for owner, array in enumerate(owned)}
                copies[BEFORE] = before(chunk_sizes[c], dtype)
                is_copy(chunk, f"chunk {c}", copies, f"in the array passed as chunks[{c}] {where}")
        same(found, np.concatenate(owned), where)

    def test_values(self, student):
        for size in sizes():
            for chunk_sizes in ([2] * size, [1] * size, uneven(size)):
                for rank, seen in enumerate(student.on_ranks(size, run_all_gather, chunk_sizes)):
                    self.check(seen.value, rank, chunk_sizes)

    @pytest.mark.one_dtype
    def test_other_dtypes(self, student):
        for dtype in EXOTIC:
            for rank, seen in enumerate(student.on_ranks(3, run_all_gather, [2] * 3, dtype)):
                self.check(seen.value, rank, [2] * 3, dtype)

    @pytest.mark.one_dtype
    def test_sizes_of_groups(self, student):
        same(student.on_ranks(1, run_all_gather, [5])[0].value, many_digits(0, 5), "a single rank")
        for chunk_sizes in (uneven(MANY), [0] * MANY):
            for rank, seen in enumerate(student.on_ranks(MANY, run_all_gather, chunk_sizes)):
                self.check(seen.value, rank, chunk_sizes)
        for rank, size, found in by_group(student.on_ranks(5, in_groups, run_all_gather, [4, 3, 5, 1, 2])):
            self.check(found, rank, [4, 3, 5, 1, 2][:size], where=", groups of 5 ranks")

    @pytest.mark.one_dtype
    def test_large(self, student):
        for rank, seen in enumerate(student.on_ranks(3, run_all_gather, [LARGE // 3] * 3)):
            self.check(seen.value, rank, [LARGE // 3] * 3)

    def test_bytes_and_neighbours(self, student):
        for size in sizes():
            chunk_sizes = uneven(size)
            seen = student.on_ranks(size, run_all_gather, chunk_sizes)
            to_the_right_only(seen)
            for rank, one in enumerate(seen):
                own = chunk_sizes[(rank + 1) % size]  # which its right neighbour already has
                expected = nbytes(sum(chunk_sizes) - own)
                assert one.traffic.sent[:, 0].sum() == expected, (
                    f"rank {rank} of {size}, {working_dtype()}: bytes sent: expected {expected}, all chunks except "
                    f"its right neighbour's own, got {one.traffic.sent[:, 0].sum()}"
                )

    @pytest.mark.one_dtype
    def test_steps(self, student):
        for size in SIZES:
            in_steps(student.on_ranks(size, run_all_gather, [2] * size), size - 1)

    @pytest.mark.one_dtype
    def test_memory(self, student):
        each = 1 << 16
        for seen in student.on_ranks(4, peak_of_all_gather, each):
            assert seen.value < 0.5 * each * 8, (
                f"extra memory, in chunks: expected none, got {seen.value / each / 8:.1f}; receive each chunk directly "
                "into its place"
            )


# 3.5


@pytest.mark.task(
    "3.5",
    points=4,
    dtypes=DTYPES,
)
class TestAllReduceRing:
    """all_reduce_ring: a reduce-scatter, then an all-gather"""

    def test_values(self, student):
        check_all_reduce(student, "all_reduce_ring")

    def test_other_operations(self, student):
        check_other_operations(student, "all_reduce_ring")

    @pytest.mark.one_dtype
    def test_other_dtypes(self, student):
        check_other_dtypes(student, "all_reduce_ring")

    @pytest.mark.one_dtype
    def test_sizes_of_groups(self, student):
        check_sizes_of_groups(student, "all_reduce_ring")

    @pytest.mark.one_dtype
    def test_large(self, student):
        for rank, seen in enumerate(student.on_ranks(3, run_all_reduce, "all_reduce_ring", LARGE)):
            is_all_reduced(seen.value, rank, 3, LARGE)

    def test_bytes_and_neighbours(self, student):
        elements = 840  # divisible by all sizes
        for size in sizes():
            seen = student.on_ranks(size, run_all_reduce, "all_reduce_ring", elements)
            to_the_right_only(seen)
            formula = 2 * (size - 1) * nbytes(elements) // size
            for rank, one in enumerate(seen):
                sent = one.traffic.sent[:, 0].sum()
                assert sent == formula, (
                    f"rank {rank} of {size}, {working_dtype()}: bytes sent: expected 2 (N-1)/N M = "
                    f"{formula}, got {sent}"
                )

    @pytest.mark.one_dtype
    def test_steps(self, student):
        for size in SIZES:
            in_steps(student.on_ranks(size, run_all_reduce, "all_reduce_ring", 840), 2 * (size - 1))


# 3.6


def run_global_max(group, answers, elements, dtype=None):
    values = as_dtype(group.rank, elements, dtype)
    best = answers.global_max(values, group)
    return best, values


def run_global_max_of_extremes(world, answers):
    values = extremes(world.rank)
    return answers.global_max(values, world), values


def extremes(rank: int) -> np.ndarray:
    """The least and the largest numbers of the dtype, and numbers below 0 only."""
    dtype = working_dtype()
    limits = np.iinfo(dtype) if dtype.kind == "i" else np.finfo(dtype)
    return np.array([limits.min, limits.max if rank == 1 else limits.min, -9 - rank, -9 + rank], dtype)


@pytest.mark.task(
    "3.6",
    points=3,
    kind="debugging",
    dtypes=DTYPES,
)
class TestGlobalMax:
    """global_max: right for 2 ranks, wrong for 3. Find the bug and fix it"""

    def check(self, found, rank: int, of_ranks: list[np.ndarray], what: str) -> None:
        best, values = found
        copies = {"the maximum of all ranks": np.maximum.reduce(of_ranks)}
        copies |= {f"that of ranks 0 to {last}": np.maximum.reduce(of_ranks[: last + 1]) for last in range(rank, 8)}
        is_copy(best, "the maximum of all ranks", copies, what)
        same(values, of_ranks[rank], f"the argument of {what}, which must not change")

    def test_values(self, student):
        for size in (1, *sizes()):
            for elements in (20, 1, 0) if size == 3 else (20,):
                of_ranks = [many_digits(rank, elements) for rank in range(size)]
                for rank, seen in enumerate(student.on_ranks(size, run_global_max, elements)):
                    self.check(seen.value, rank, of_ranks, f"rank {rank} of {size}, {working_dtype()}")

    def test_extremes(self, student):
        for rank, seen in enumerate(student.on_ranks(3, run_global_max_of_extremes)):
            of_ranks = [extremes(other) for other in range(3)]
            self.check(seen.value, rank, of_ranks, f"rank {rank} of 3, the limits of {working_dtype()}")

    @pytest.mark.one_dtype
    def test_other_dtypes(self, student):
        for dtype in EXOTIC:
            of_ranks = [as_dtype(rank, 9, dtype) for rank in range(3)]
            for rank, seen in enumerate(student.on_ranks(3, run_global_max, 9, dtype)):
                self.check(seen.value, rank, of_ranks, f"rank {rank} of 3, {dtype}")

    @pytest.mark.one_dtype
    def test_sizes_of_groups(self, student):
        of_ranks = [many_digits(rank, 5) for rank in range(MANY)]
        for rank, seen in enumerate(student.on_ranks(MANY, run_global_max, 5)):
            self.check(seen.value, rank, of_ranks, f"rank {rank} of {MANY}")
        for rank, size, found in by_group(student.on_ranks(5, in_groups, run_global_max, 5)):
            self.check(found, rank, of_ranks[:size], f"rank {rank} of {size}, groups of 5 ranks")

    @pytest.mark.one_dtype
    def test_messages(self, student):
        for size in SIZES:
            seen = student.on_ranks(size, run_global_max, 20)
            to_the_right_only(seen)
            in_steps(seen, 2 * (size - 1))


# 3.7


@pytest.mark.task(
    "3.7",
    points=3,
    kind="worksheet",
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
        real = {}
        for size in (2, 3, 5, 8):
            logs = warm_ranks(size).run(recorded_all_reduce, 840, algorithm, timeout=10)
            for alpha, beta in self.NETWORKS:
                found = flights(logs, lambda n, a=alpha, b=beta: a + b * n)
                real[size, 840 * 4, alpha, beta] = max(flight.end for flight in found)
        self.check(student, name, real, "the time of a real run")

    def test_any_number_of_ranks(self, student):
        """One rank sends nothing; from 2 to 70 and beyond, the tree's depth grows at every power of two."""
        for name, share, steps in (
            ("naive_all_reduce_seconds", lambda n: 1, lambda n: 2 * (n - 1)),
            ("tree_all_reduce_seconds", lambda n: 1, lambda n: 2 * (n - 1).bit_length()),
            ("ring_all_reduce_seconds", lambda n: 1 / n, lambda n: 2 * (n - 1)),
        ):
            for alpha, beta in self.NETWORKS:
                cases = {
                    (size, nbytes, alpha, beta): steps(size) * (alpha + beta * nbytes * share(size))
                    for size in (*range(1, 71), 1 << 20, (1 << 20) + 1)
                    for nbytes in (0, 1.0, 3360, 140e9)
                }
                self.check(student, name, cases, "as the steps and bytes of the algorithm cost")

    def check(self, student, name: str, cases: dict[tuple, float], because: str) -> None:
        for args, found in zip(cases, student.call_each(name, list(cases)), strict=True):
            # equal up to the rounding of a handful of operations
            assert number(found, name) == pytest.approx(cases[args], rel=1e-12, abs=0), (
                f"{name}{args}: {compared(cases[args], found, f', {because}')}"
            )

    def test_crossover(self, student):
        inputs = [(size, *network) for size in (*range(4, 70), 1000, 1 << 20) for network in self.NETWORKS[:2]]
        for (size, alpha, beta), found in zip(inputs, student.call_each("crossover_bytes", inputs), strict=True):
            tree = 2 * ceil(log2(size)) * (alpha + beta * number(found, "crossover_bytes"))
            ring = 2 * (size - 1) * (alpha + beta * found / size)
            assert found > 0 and tree == pytest.approx(ring, rel=1e-9), (
                f"crossover_bytes, {size} ranks: at {found:g} bytes the tree takes {tree:g} s, the ring {ring:g} s"
            )


def recorded_all_reduce(world, elements, algorithm):
    import minidist as md
    from minidist import trace

    trace.start()
    md.all_reduce(np.ones(elements, np.float32), group=world, algorithm=algorithm)
    return trace.stop()


# 3.8


def pieces(size: int, equal: bool) -> np.ndarray:
    """(from, to): the number of elements from each rank to each other."""
    return (
        np.full((size, size), 3)
        if equal
        else np.array([[(2 * a + 3 * b) % 4 for b in range(size)] for a in range(size)])
    )


def piece(source: int, to: int, elements: int, dtype: str | None) -> np.ndarray:
    """Return the piece that one rank sends to another."""
    return many_digits(source, elements, to) if dtype is None else small(source, elements, dtype, to)


def run_all_to_all(group, answers, counts, dtype=None):
    counts, rank, size = counts[: group.size, : group.size], group.rank, group.size
    outgoing = [piece(rank, to, counts[rank, to], dtype) for to in range(size)]
    buffer = before(counts[:, rank].sum(), dtype)
    incoming = np.split(buffer, np.cumsum(counts[:, rank])[:-1])  # views: what arrives must end up in the buffer
    answers.all_to_all_pairwise(outgoing, incoming, group)
    kept = [np.array_equal(one, piece(rank, to, len(one), dtype)) for to, one in enumerate(outgoing)]
    return buffer, all(kept)


@pytest.mark.task(
    "3.8",
    points=4,
    dtypes=DTYPES,
)
class TestAllToAll:
    """all_to_all_pairwise: transpose the matrix of pieces"""

    def check(self, found, rank: int, counts: np.ndarray, dtype: str | None = None) -> None:
        size, (found, kept) = len(counts), found
        where = f"rank {rank} of {size}, {dtype or working_dtype()}"
        copies = {
            f"rank {one}'s piece for rank {to}": piece(one, to, counts[one, to], dtype)
            for one in range(size)
            for to in range(size)
        }
        for source, arrived in enumerate(np.split(found, np.cumsum(counts[:, rank])[:-1])):
            copies[BEFORE] = before(len(arrived), dtype)
            is_copy(arrived, f"rank {source}'s piece for rank {rank}", copies, f"incoming[{source}] of {where}")
        assert kept, f"outgoing of {where} has changed"

    def test_values(self, student):
        for size in (1, *sizes()):
            for equal in (True, False):
                counts = pieces(size, equal)
                for rank, seen in enumerate(student.on_ranks(size, run_all_to_all, counts)):
                    self.check(seen.value, rank, counts)

    @pytest.mark.one_dtype
    def test_other_dtypes(self, student):
        for dtype in EXOTIC:
            for rank, seen in enumerate(student.on_ranks(3, run_all_to_all, pieces(3, False), dtype)):
                self.check(seen.value, rank, pieces(3, False), dtype)

    @pytest.mark.one_dtype
    def test_sizes_of_groups(self, student):
        for counts in (pieces(MANY, False), np.zeros((MANY, MANY), int)):
            for rank, seen in enumerate(student.on_ranks(MANY, run_all_to_all, counts)):
                self.check(seen.value, rank, counts)
        for rank, size, found in by_group(student.on_ranks(5, in_groups, run_all_to_all, pieces(5, False))):
            self.check(found, rank, pieces(size, False))

    @pytest.mark.one_dtype
    def test_large(self, student):
        counts = np.full((3, 3), LARGE // 3)
        for rank, seen in enumerate(student.on_ranks(3, run_all_to_all, counts)):
            self.check(seen.value, rank, counts)

    def test_messages(self, student):
        for size in sizes():
            seen = student.on_ranks(size, run_all_to_all, pieces(size, equal=True))
            for rank, one in enumerate(seen):
                messages = one.traffic.sent[:, 1].tolist()
                assert messages == [int(peer != rank) for peer in range(size)], (
                    f"rank {rank} of {size}: messages: expected one to each other rank, got {messages}"
                )
                sent = one.traffic.sent[:, 0].tolist()
                assert sent == [nbytes(3) * (peer != rank) for peer in range(size)], (
                    f"rank {rank} of {size}, {working_dtype()}: bytes to each rank: expected {nbytes(3)}, one piece "
                    f"for each other rank, got {sent}"
                )

    @pytest.mark.one_dtype
    def test_steps(self, student):
        for size in SIZES:
            in_steps(student.on_ranks(size, run_all_to_all, pieces(size, equal=True)), size - 1)
