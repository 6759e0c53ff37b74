"""Collectives by NCCL, on the stand-in: what they compute, which calls take them, and what goes wrong."""

import os
import weakref
from itertools import count, product

import numpy as np
import pytest
from calls import HOW, REDUCING, Case, call, ops_of, wrong, wrong_splits
from choosing import long
from clusters import PatientCluster
from own_gpus import with_gpus

import minidist as md
from minidist import trace
from minidist.backend import xp
from minidist.comm.collectives import COLLECTIVES
from minidist.comm.nccl.communicator import DTYPES

MOVED = (*DTYPES, "bool", "int16", "uint16", "complex64")

# What the calls compute. test_on_several_gpus.py makes the same calls on real GPUs.


def calls_of(size: int, dtypes: tuple, counts: tuple) -> list[Case]:
    """Every collective with every operation; in place, with a rank's own part of the whole array and with another."""
    found = []
    for name, dtype, n, how in product(COLLECTIVES, dtypes, counts, HOW):
        inside = how.startswith("in place")
        ops = ops_of(dtype) if name in REDUCING and not inside else [md.ReduceOp.SUM]
        roots = sorted({0, size // 2}) if inside else [size // 2]
        found += [Case(name, "auto", n, dtype, op, root, how) for op, root in product(ops, roots)]
    return found


def check_all(world, dtypes: tuple, counts: tuple) -> list[str]:
    """Make every call; return those that leave something else than NumPy's numbers in one of their arrays."""
    problems = [wrong(world, case, xp.asarray) for case in calls_of(world.size, dtypes, counts)]
    return [*filter(None, problems), *wrong_splits(world, ["auto"], xp.asarray)]


def staged() -> int:
    """Return how many arrays collectives copied to the host in this process since the counts were cleared."""
    return xp.crossings["to host", "comm.collectives.stage"]


def check_and_count(world, *arguments) -> tuple[list, int]:
    xp.crossings.clear()
    return check_all(world, *arguments), staged()


@pytest.mark.parametrize(
    ("size", "dtypes", "counts"),
    [
        (1, ("float32",), (0, 5)),
        *((size, ("float64", "int32"), (0, 5)) for size in (2, 3)),
        *(long(size, ("float32", "int32"), (0, 1, 5)) for size in (5, 7)),
        *(long(size, MOVED, (0, 1, 2, 5, 1021)) for size in (1, 2, 5)),
    ],
)
def test_results_are_numpys(device_ranks, size, dtypes, counts):
    for problems, copies in device_ranks(size).run(with_gpus, size, check_and_count, dtypes, counts):
        assert problems == []
        if len(dtypes) < len(MOVED):  # reduce and reduce_scatter_tensor by MIN and MAX of floats, 2 ways
            assert copies == (0 if size == 1 else 2 * 2 * len(counts) * 2)


def not_a_number(world) -> str:
    x = xp.asarray(np.array([1.0, np.nan if world.rank == 1 else 2.0, 3.0]))
    md.all_reduce(x, md.ReduceOp.MAX, world)
    return str(x.get().tolist())


def no_number_is_read(world) -> tuple[int, str]:
    """Return how many arrays were copied to the host while every dtype moved; and a maximum of NaN and numbers."""
    xp.crossings.clear()
    for dtype in MOVED:
        md.all_gather_into_tensor(xp.empty((world.size, 3), dtype), xp.empty(3, dtype), world)
    return staged(), not_a_number(world)


def test_every_dtype_moves_by_nccl_and_a_nan_outlives_max(device_ranks):
    """NCCL's MAX would drop it."""
    assert device_ranks(3).run(with_gpus, 3, no_number_is_read) == [(0, "[1.0, nan, 3.0]")] * 3


# Streams


def let_go(world) -> None:
    """Nobody else holds the arrays of calls in flight, whether or not anybody waits: for one, or for one after it."""
    for waits in (slice(0), slice(None), slice(-1, None)):
        arrays = [xp.asarray(np.full(100, float(i))) for i in range(20)]
        works = [md.all_reduce(x, group=world, async_op=True) for x in arrays]
        held = [weakref.ref(x) for x in arrays]
        for work in works[waits]:
            work.wait()
        del arrays, works
        assert waits == slice(0) or all(array() is None for array in held)
        x = xp.asarray(np.ones(2))
        md.all_reduce(x, group=world)
        assert x.get().tolist() == [2.0, 2.0]


def changed(world) -> None:
    """Rank 0 changes what a call in flight reads, and rank 1 comes later."""
    x, y, word = xp.asarray(np.ones(3)), xp.empty((2, 3)), np.zeros(1)
    md.all_gather_into_tensor(y, x, world)  # the first call compares
    if world.rank == 1:
        md.recv(word, 0, world)
    work = md.all_gather_into_tensor(y, x, world, async_op=True)
    for change in count() if world.rank == 0 else ():
        if work.is_completed():
            break
        x += 1
        if change == 1000:
            md.send(word, 1, world)
    work.wait()
    y.get()


def computes_meanwhile(world) -> None:
    """Rank 1 calls only when rank 0 has computed, and gone on: neither the calls nor ``wait`` stop the host."""
    x, y, word = xp.asarray(np.ones(3)), xp.asarray(np.ones(3)), np.zeros(1)
    md.all_reduce(x, group=world)  # the first call compares
    assert (y + y).get().tolist() == [2.0] * 3  # so that a GPU has the kernel, and memory for its result
    if world.rank == 1:
        md.recv(word, 0, world)
    work = md.all_reduce(x, group=world, async_op=True)
    if world.rank == 0:
        assert (y + y).get().tolist() == [2.0] * 3 and not work.is_completed()
    work.wait()
    md.all_reduce(x, group=world)
    if world.rank == 0:
        md.send(word, 1, world)
    assert x.get().tolist() == [8.0] * 3


@pytest.mark.parametrize("function", [let_go, computes_meanwhile])
def test_nccl_works_beside_what_computes(device_ranks, function):
    device_ranks(2).run(with_gpus, 2, function)


# Which calls take NCCL


def routes(world, lacks_nccl: int | None = None) -> set[str]:
    """The calls that go through host memory. A thread that runs programs uses the GPU of the main thread."""
    xp.cuda.nccl.available = world.rank != lacks_nccl
    md.find_gpus(world)  # once more
    xp.cuda.nccl.available = True
    x = xp.asarray(np.ones(4, np.float32))
    right, left = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    pair, alone, other = world.new_group([0, 1]), world.new_group([world.rank]), world.duplicate()
    calls = {
        "auto": lambda: md.all_reduce(x, group=world),
        "named": lambda: md.all_reduce(x, group=world, algorithm="ring"),
        "pair": lambda: md.all_reduce(x, group=pair or alone),
        "alone": lambda: md.all_reduce(x, group=alone),
        "message": lambda: md.sendrecv(x, right, x.copy(), left, world),
        "background": lambda: other.run_in_background("sum", lambda: md.all_reduce(x, group=world.duplicate())).wait(),
    }
    found, devices = set(), []
    other.run_in_background("a program", lambda: devices.append(xp.cuda.Device())).wait()
    assert devices == [xp.cuda.Device()]
    for name, make in calls.items():
        xp.crossings.clear()
        make()
        found |= {name} if staged() else set()
    return found


def test_ranks_with_a_gpu_each_and_nccl_take_it(device_ranks):
    """Calls without a named algorithm, of the main thread; and of groups, those that have it."""
    always = {"named", "background"}
    assert device_ranks(3).run(with_gpus, 3, routes) == [always] * 3
    assert device_ranks(3).run(with_gpus, 2, routes) == [always | {"auto"}] * 3
    assert device_ranks(2).run(with_gpus, 1, routes) == [always | {"auto", "pair"}] * 2
    assert device_ranks(3).run(with_gpus, 3, routes, 1) == [always | {"auto", "pair"}] * 2 + [always | {"auto"}]


# What is counted


def counts(world, where: str, elements: int) -> tuple[list, dict, list]:
    """Return for one call of each collective, after a first one, rows of the table, traffic, and names in the trace."""
    put = xp.asarray if where == "device" else np.copy
    for _ in range(2):
        before, traffic = world.collectives, world.traffic
        trace.start()
        for name, row in COLLECTIVES.items():
            algorithm = "ring" if "ring" in row.algorithms and put is np.copy else "auto"
            if name != "reduce":  # which has no ring
                call(world, Case(name, algorithm, elements, "float64", md.ReduceOp.SUM, 1, "waits"), put)
        events = trace.stop()
    names = [entry.name for entry in events if isinstance(entry, trace.Event) and entry.track == "communication"]
    bytes_and_calls = (world.traffic - traffic).as_dict()
    del bytes_and_calls["messages_sent"], bytes_and_calls["messages_received"]  # a ring's steps are not counted
    return (world.collectives - before).as_list(), bytes_and_calls, names


@pytest.mark.parametrize("elements", [0, 7])
def test_counts_are_those_of_a_ring(device_ranks, elements):
    on_device, on_host = (device_ranks(3).run(with_gpus, 3, counts, where, elements) for where in ("device", "host"))
    for (*numbers, names), (*host_numbers, host_names) in zip(on_device, on_host, strict=True):
        assert numbers == host_numbers
        assert all(name.endswith("nccl)") for name in names)
        assert [name.split("(")[0] for name in names] == [name.split("(")[0] for name in host_names]


def reduced(world) -> tuple[list, list]:
    """Bytes of a reduce to rank 1, after a first: sent to each rank, and received from each."""
    for _ in range(2):
        before = world.traffic
        md.reduce(xp.asarray(np.ones(7)), 1, group=world)
    moved = world.traffic - before
    return moved.sent[:, 0].tolist(), moved.received[:, 0].tolist()


def test_a_reduce_counts_as_a_chain(device_ranks):
    sent, received = zip(*device_ranks(3).run(with_gpus, 3, reduced), strict=True)
    assert sent == ([0, 56, 0], [0, 0, 0], [56, 0, 0]) and received == ([0, 0, 56], [56, 0, 0], [0, 0, 0])


# What goes wrong


def different_calls(world) -> None:
    x = xp.asarray(np.ones(4))
    md.all_reduce(x, group=world) if world.rank == 0 else md.broadcast(x, 0, world)
    x.get()


def on_two_sides(world) -> None:
    md.gather(xp.asarray(np.ones(2)), [np.ones(2), np.ones(2)] if world.rank == 0 else None, 0, world)


MISMATCH = r"(?s)Mismatch: ranks . and . disagree.*all_reduce\(SUM, float64.*nccl"


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (different_calls, MISMATCH),
        (lambda world: md.all_reduce(xp.ones(4 + world.rank), group=world), MISMATCH),
        (on_two_sides, r"gather: tensor is on a GPU, but gather_list\[0\] in host memory"),
        (
            lambda world: md.find_gpus(world.new_group([0]) if world.rank == 0 else world),
            "ValueError: find_gpus needs all 2 ranks, but got a group of 1",
        ),
        (changed, r"rank 0 .*RuntimeError: an array has changed while a call reads it"),
    ],
)
def test_what_is_wrong_is_told(device_ranks, function, message):
    with pytest.raises(md.RankFailed, match=message):
        device_ranks(2).run(with_gpus, 2, function)


def one_fails(world, stops: bool, dies: bool = False) -> None:
    x = xp.asarray(np.ones(4))
    md.all_reduce(x, group=world)
    if world.rank == 1 and dies:
        os._exit(3)
    if world.rank == 1:
        raise ValueError("no such shard")
    md.all_reduce(x, group=world)  # never ends
    if stops:
        x.get()  # on a GPU the host waits here, within CUDA
    md.barrier(world)


@pytest.mark.parametrize("stops", [long(True), False])
def test_a_failing_rank_ends_those_that_wait_for_a_gpu(device_ranks, stops):
    with pytest.raises(md.RankFailed, match="rank 1 of 3 failed: ValueError: no such shard") as error:
        device_ranks(3).run(with_gpus, 3, one_fails, stops)
    assert 'raise ValueError("no such shard")' in error.value.traceback_text


def test_survivors_go_on_without_the_rank_that_nccl_waits_for(device_ranks):
    with PatientCluster(3, keep_survivors=True) as cluster:
        with pytest.raises(md.RankFailed, match="rank 1 of 3 exited with status 3"):
            cluster.run(with_gpus, 3, one_fails, False, True)
        assert cluster.survivors == [0, 2]
        cluster.regroup(2)
        assert cluster.run(with_gpus, 2, not_a_number) == ["[1.0, nan, 3.0]"] * 2
