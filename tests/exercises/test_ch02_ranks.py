"""Graders of chapter 2: values, messages and their receivers, deadlocks with empty queues, what each rank knows."""

import runpy
import time
from functools import cache
from math import ceil, log2

import numpy as np
import pytest

from minidist.analysis.replay import steps
from minidist.comm.failures import Deadlock
from minidist.comm.runtime.launch import Cluster
from minidist.course.answers import course_folder
from minidist.course.authoring.assertions import (
    LARGE,
    MANY,
    SIZES,
    by_group,
    in_groups,
    is_copy,
    peak_bytes,
    same,
    sizes,
)
from minidist.course.sandbox.values import blank, many_digits, numbers, working_dtype
from minidist.trace import PointToPoint

COLLECTIVES = ("minidist.comm.algorithms", "minidist.comm.collectives", "minidist.comm.point_to_point:barrier")
pytestmark = pytest.mark.answers("ch02_ranks", forbidden=COLLECTIVES)


DTYPES = ("float64", "float32", "int32")
EXOTIC = ("complex128", "float16", "bool")  # besides the dtypes in which all tests of a task run


def calls_of(log: list) -> list[PointToPoint]:
    return [entry for entry in log if isinstance(entry, PointToPoint)]


def check_messages(seen, places: int, count: int = 1) -> None:
    """Assert that every rank sends ``count`` messages to the rank ``places`` to its right, and none to others."""
    size = len(seen)
    for rank, one in enumerate(seen):
        sent = one.traffic.sent[:, 1].tolist()
        right = [count * (peer == (rank + places) % size) for peer in range(size)]
        assert sent == right, f"rank {rank} of {size}: messages to each rank: expected {right}, got {sent}"


# 2.1


def blocks_of(rank: int, count: int, elements: int) -> list[np.ndarray]:
    return [numbers(rank, elements, seed) for seed in range(count)]


def run_pass_on(world, answers, count, elements, factor, shape=None):
    blocks = [block.reshape(shape or -1) for block in blocks_of(world.rank, count, elements)]
    arrived = answers.pass_on(blocks, factor, world)
    kept = np.array_equal(np.ravel(blocks), np.ravel(blocks_of(world.rank, count, elements)))
    return arrived, kept


def peak_of_pass_on(world, answers, count, elements):
    blocks = blocks_of(world.rank, count, elements)
    return peak_bytes(lambda: answers.pass_on(blocks, 3.0, world))


@pytest.mark.task(
    "2.1",
    points=3,
    kind="debugging",
)
class TestPassOn:
    """pass_on: right for small blocks, wrong for large ones. Find the bug and fix it"""

    def check(self, student, size, count, elements, factor=3.0):
        seen = student.on_ranks(size, run_pass_on, count, elements, factor)
        self.judge([(rank, size, one.value) for rank, one in enumerate(seen)], count, elements, factor)
        return seen

    def judge(self, found, count, elements, factor, shape=None):
        for rank, size, (arrived, kept) in found:
            what = f"rank {rank} of {size}, {count} blocks of {elements:,} elements, factor {factor}"
            assert len(arrived) == count, f"{what}: expected {count} blocks, got {len(arrived)}"
            for number, right in enumerate(blocks_of((rank - 1) % size, count, elements)):
                same(arrived[number], factor * right.reshape(shape or -1), f"{what}, block {number}")
            assert kept, f"{what}: its own blocks have changed"

    def test_small(self, student):
        for size in (1, 2, 3, 5):
            for count in (1, 2, 5):
                self.check(student, size, count, 10)

    def test_other_factors_and_shapes(self, student):
        for factor in (-0.5, 0.0, 1.0):
            self.check(student, 3, 3, 10, factor)
        for elements, shape in ((6, (2, 3)), (0, (0, 2)), (1, (1, 1, 1))):
            seen = student.on_ranks(2, run_pass_on, 3, elements, 2.0, shape)
            self.judge([(rank, 2, one.value) for rank, one in enumerate(seen)], 3, elements, 2.0, shape)

    def test_sizes_of_groups(self, student):
        self.check(student, MANY, 3, 4)
        self.judge(by_group(student.on_ranks(5, in_groups, run_pass_on, 4, 5, 2.0)), 4, 5, 2.0)

    def test_large(self, student):
        for size, count in ((2, 5), (3, 4), (2, 3)):
            self.check(student, size, count, LARGE // 2)

    def test_of_queue_size(self, student):
        for elements in (1 << 15, 1 << 16, 1 << 17):
            self.check(student, 3, 6, elements)

    def test_messages(self, student):
        for size in (2, 3, 5):
            check_messages(self.check(student, size, 4, 10), places=1, count=4)

    def test_overlap(self, student):
        for one in student.on_ranks(2, run_pass_on, 4, 10, 3.0):
            sends = [call for call in calls_of(one.log) if call.kind == "send"]
            numbered = sorted({call.number for call in sends})
            order = [(call.call, numbered.index(call.number)) for call in sends]
            for number in range(3):
                assert ("wait", number) in order, f"the send of block {number} is never waited for"
                assert order.index(("post", number + 1)) < order.index(("wait", number)), (
                    f"block {number} is waited for before the send of block {number + 1} starts: keep two in flight"
                )

    def test_memory(self, student):
        elements, count = 1 << 16, 8
        for one in student.on_ranks(2, peak_of_pass_on, count, elements):
            blocks = one.value / 8 / elements
            assert blocks < count + 2.5, (  # and some slack
                f"peak memory, in blocks: expected at most {count} + 2, got {blocks:.1f}"
            )


# 2.2

ONLY_SEND_AND_RECV = tuple(
    f"minidist.comm.point_to_point:{name}"
    for name in ("sendrecv", "isend", "irecv", "batch_isend_irecv", "recv_reduce")
)


def run_exchange(world, answers, elements):
    outgoing, incoming = many_digits(world.rank, elements), blank(elements)
    answers.exchange(outgoing, incoming, world)
    return incoming, np.array_equal(outgoing, many_digits(world.rank, elements))


def run_exchange_of_tables(world, answers, dtype):
    outgoing, incoming = table_of(world.rank, dtype), np.zeros((2, 3), dtype)
    answers.exchange(outgoing, incoming, world)
    return incoming


def table_of(rank: int, dtype: str) -> np.ndarray:
    return (numbers(rank, 6) % 64).astype(dtype).reshape(2, 3)


def rendezvous(logs: list[list]) -> tuple[int, list[int]]:
    """Simulate the same calls with queues that hold nothing: a send and its receive are one joint step.

    Returns the number of steps, and the ranks that never finish.
    """
    programs = []
    for log in logs:
        calls = [(c.kind, c.source, c.destination) for c in calls_of(log) if (c.kind, c.call) != ("send", "wait")]
        programs.append(calls[::-1])  # the next call is the last of the list
    clock = [0] * len(programs)
    moved = True
    while moved:
        moved = False
        for rank, program in enumerate(programs):
            if program and program[-1][0] == "send":
                other = program[-1][2]
                if programs[other] and programs[other][-1] == ("receive", rank, other):
                    clock[rank] = clock[other] = max(clock[rank], clock[other]) + 1
                    program.pop()
                    programs[other].pop()
                    moved = True
    return max(clock), [rank for rank, program in enumerate(programs) if program]


@pytest.mark.answers("ch02_ranks", forbidden=COLLECTIVES + ONLY_SEND_AND_RECV)
@pytest.mark.task(
    "2.2",
    points=3,
    dtypes=DTYPES,
)
class TestExchange:
    """exchange: send right and receive left without deadlock"""

    def test_values(self, student):
        for size in (1, *sizes()):
            for elements in (10, 1, 0):
                for rank, seen in enumerate(student.on_ranks(size, run_exchange, elements)):
                    self.check(seen.value, rank, size, elements)

    def check(self, found, rank: int, size: int, elements: int) -> None:
        incoming, kept = found
        copies = {f"rank {other}'s array": many_digits(other, elements) for other in range(size)}
        copies["what was there before"] = blank(elements)
        what = f"rank {rank} of {size}, {elements} elements, {working_dtype()}"
        is_copy(incoming, f"rank {(rank - 1) % size}'s array", copies, what)
        assert kept, f"{what}: outgoing has changed"

    @pytest.mark.one_dtype
    def test_other_arrays(self, student):
        for dtype in EXOTIC:
            for rank, seen in enumerate(student.on_ranks(3, run_exchange_of_tables, dtype)):
                same(seen.value, table_of((rank - 1) % 3, dtype), f"rank {rank} of 3, a 2-D array, {dtype}")

    @pytest.mark.one_dtype
    def test_sizes_of_groups(self, student):
        for rank, seen in enumerate(student.on_ranks(MANY, run_exchange, 3)):
            self.check(seen.value, rank, MANY, 3)
        for rank, size, found in by_group(student.on_ranks(5, in_groups, run_exchange, 3)):
            self.check(found, rank, size, 3)

    @pytest.mark.one_dtype
    def test_large(self, student):
        for size in (2, 3):
            for rank, seen in enumerate(student.on_ranks(size, run_exchange, LARGE)):
                self.check(seen.value, rank, size, LARGE)

    @pytest.mark.one_dtype
    def test_messages(self, student):
        for size in SIZES:
            check_messages(student.on_ranks(size, run_exchange, 10), places=1)

    @pytest.mark.one_dtype
    def test_without_queues(self, student):
        for size in (*SIZES, 8):
            taken, stuck = rendezvous([seen.log for seen in student.on_ranks(size, run_exchange, 10)])
            assert not stuck, f"with queues that hold nothing, ranks {stuck} of {size} wait forever"
            assert taken <= 3, (
                f"steps of {size} ranks with queues that hold nothing: expected at most 3, got {taken}: each "
                "rank waits for the next"
            )


# 2.3


def run_shift(world, answers, places, shape=(3,), dtype=None):
    array = shaped(world.rank, shape, dtype)
    return answers.ring_shift(array, places, world), np.array_equal(array, shaped(world.rank, shape, dtype))


def shaped(rank: int, shape: tuple[int, ...], dtype: str | None) -> np.ndarray:
    elements = int(np.prod(shape))
    array = many_digits(rank, elements) if dtype is None else (numbers(rank, elements) % 64).astype(dtype)
    return array.reshape(shape)


def check_shift(found, rank: int, size: int, places: int, shape=(3,), dtype=None) -> None:
    shifted, kept = found
    copies = {f"rank {other}'s array": shaped(other, shape, dtype) for other in range(size)}
    what = f"rank {rank} of {size}, shifted by {places}, shape {shape}, {dtype or working_dtype()}"
    is_copy(shifted, f"rank {(rank - places) % size}'s array", copies, what)
    assert kept, f"{what}: the argument has changed"


def checked_shift(student, size: int, places: int, shape=(3,), dtype=None) -> list:
    seen = student.on_ranks(size, run_shift, places, shape, dtype)
    for rank, one in enumerate(seen):
        check_shift(one.value, rank, size, places, shape, dtype)
    return seen


@pytest.mark.task(
    "2.3",
    points=2,
    dtypes=DTYPES,
)
class TestRingShift:
    """ring_shift: every array moves k places around the ring"""

    def test_one_place(self, student):
        for size in sizes():
            checked_shift(student, size, 1)

    @pytest.mark.one_dtype
    def test_any_number_of_places(self, student):
        for size in (1, *SIZES):
            for places in (0, -1, 2, -3, size, size + 1, -2 * size, 1001):
                checked_shift(student, size, places)

    def test_other_shapes(self, student):
        for shape in ((2, 3), (0,), (1,)):
            for places in (2, 0):
                checked_shift(student, 3, places, shape)

    @pytest.mark.one_dtype
    def test_other_arrays(self, student):
        for shape, dtype in (((4, 1, 2), "complex128"), ((5,), "bool"), ((2, 2), "float16"), ((LARGE,), None)):
            checked_shift(student, 3, 2, shape, dtype)

    @pytest.mark.one_dtype
    def test_sizes_of_groups(self, student):
        checked_shift(student, MANY, -4)
        for places in (1, -2):
            for rank, size, found in by_group(student.on_ranks(5, in_groups, run_shift, places)):
                check_shift(found, rank, size, places)

    @pytest.mark.one_dtype
    def test_messages_and_steps(self, student):
        for size in SIZES:
            for places in (1, -1, 2, size, size + 2):
                seen = checked_shift(student, size, places)
                needed = int(places % size != 0)
                check_messages(seen, places, count=needed)
                taken = steps([one.log for one in seen])
                assert taken == needed, f"steps of {size} ranks for {places} places: expected {needed}, got {taken}"


# 2.4


@cache
def really_deadlock(n: int) -> frozenset[str]:
    """Run the given programs; returns the letters of those that deadlock."""
    given = runpy.run_path(str(course_folder("solutions") / "ch02_ranks.py"))
    stuck = set()
    with Cluster(4, queue_bytes=given["QUEUE"]) as cluster:
        for letter in "abcd":
            try:
                cluster.run(given[f"program_{letter}"], n, timeout=10)
            except Deadlock:
                stuck.add(letter)
    return frozenset(stuck)


@pytest.mark.task(
    "2.4",
    points=3,
    kind="worksheet",
)
class TestDeadlocks:
    """deadlocks: which of four programs never finish"""

    def check(self, student, n):
        found, right = student.call("deadlocks", n), really_deadlock(n)
        assert isinstance(found, set), f"deadlocks({n}): expected a set of letters, got {found!r}"
        wrong = sorted(found ^ right, key=str)
        facts = ", ".join(f"{letter} {'deadlocks' if letter in right else 'completes'}" for letter in wrong)
        named = ", ".join(sorted(map(str, found))) or "no program"
        assert found == right, f"deadlocks({n}) names {named}, but in a real run with n = {n}, {facts}"

    def test_small(self, student):
        self.check(student, 1)

    def test_large(self, student):
        self.check(student, 10_000)

    def test_in_between(self, student):
        self.check(student, 6_000)

    def test_a_queue_that_is_just_full(self, student):
        for n in (4_072, 4_073, 8_168, 8_169):
            self.check(student, n)


# 2.5


def run_barriers(world, answers, late, count=1):
    """Return when this rank enters and leaves, in ns. Rank ``late`` enters last, long after the others."""
    from minidist import recv, send

    nothing, stamps = np.empty(0), []
    for _ in range(count):
        if world.rank == late:
            for other in range(world.size):
                if other != late:
                    recv(nothing, other, world, tag=5)  # it is about to enter
            time.sleep(0.02)
        else:
            send(nothing, late, world, tag=5)
        entered = time.perf_counter_ns()  # one clock for all processes of the machine
        answers.barrier(world)
        stamps.append((entered, time.perf_counter_ns()))
    return stamps


def run_barrier(world, answers):
    answers.barrier(world)


def heard_of(logs: list[list]) -> list[set[int]]:
    """The ranks that each rank can know to have arrived, from the messages alone, independent of timing."""
    programs = [calls_of(log) for log in logs]
    known, told, done = [{rank} for rank in range(len(logs))], {}, [0] * len(logs)
    before = -1
    while sum(done) > before:
        before = sum(done)
        for rank, program in enumerate(programs):
            while done[rank] < len(program):
                call = program[done[rank]]
                message = (call.source, call.destination, call.number)
                if call.call == "post":
                    told[message] = set(known[rank])
                elif call.kind == "receive":
                    if message not in told:
                        break
                    known[rank] |= told[message]
                done[rank] += 1
    return known


@pytest.mark.task(
    "2.5",
    points=3,
)
class TestBarrier:
    """barrier: no rank leaves before the last has entered"""

    def test_nobody_leaves_early(self, student):
        for size in (2, 3, 4, 5):
            for late in range(size):
                seen = student.on_ranks(size, run_barriers, late)
                last_entered = max(one.value[0][0] for one in seen)
                for rank, one in enumerate(seen):
                    early = (last_entered - one.value[0][1]) / 1e6
                    assert early <= 0, (
                        f"{size} ranks, rank {late} enters last: rank {rank} leaves {early:.1f} ms before that"
                    )

    def test_one_after_another(self, student):
        stamps = [one.value for one in student.on_ranks(3, run_barriers, 1, 4)]
        for number, of_one in enumerate(zip(*stamps, strict=True)):
            assert max(entered for entered, _ in of_one) <= min(left for _, left in of_one), (
                f"in barrier {number} (from 0) of several in a row, a rank leaves before the last has entered"
            )

    def test_everybody_hears_of_everybody(self, student):
        for size in (*SIZES, 6, 8, MANY):
            known = heard_of([one.log for one in student.on_ranks(size, run_barrier)])
            for rank, heard in enumerate(known):
                missing = set(range(size)) - heard
                assert not missing, f"{size} ranks: rank {rank} leaves before it has heard of {sorted(missing)}"

    def test_one_rank(self, student):
        student.on_ranks(1, run_barrier)

    def test_messages(self, student):
        for size in (*SIZES, 8, MANY):
            for rank, one in enumerate(student.on_ranks(size, run_barrier)):
                messages, nbytes = one.traffic.sent[:, 1].sum(), one.traffic.sent[:, 0].sum()
                assert messages == ceil(log2(size)), (
                    f"rank {rank} of {size}: messages: expected ceil(log2 {size}) = {ceil(log2(size))}, got {messages}"
                )
                assert nbytes == 0, f"bytes from rank {rank} of {size}: expected 0 (empty messages), got {nbytes}"

    def test_steps(self, student):
        for size in (*SIZES, 8, MANY):
            taken = steps([one.log for one in student.on_ranks(size, run_barrier)])
            assert taken == ceil(log2(size)), (
                f"steps of {size} ranks that all send at once: expected {ceil(log2(size))}, got {taken}"
            )

    def test_groups(self, student):
        """A barrier of a group concerns its ranks only, and comes after one of all ranks."""
        for rank, one in enumerate(student.on_ranks(5, in_groups, run_barrier)):
            messages, expected = one.traffic.sent[:, 1].sum(), 3 + 2 * (2 if rank % 2 == 0 else 1)
            assert messages == expected, (
                f"rank {rank} of 5: messages of a barrier of all ranks and of two of its group of "
                f"{3 if rank % 2 == 0 else 2}: expected {expected}, got {messages}"
            )
