"""Collectives by NCCL, on the stand-in: what they compute, which calls take them, and what goes wrong."""

import os
import re
import time

import numpy as np
import pytest
from choosing import long
from clusters import PatientCluster
from own_gpus import staged, with_gpus

import minidist as md
from minidist import trace
from minidist.backend import xp
from minidist.comm.nccl.communicator import DTYPES

SIZES = (1, 2, 3, long(5), long(7))  # ranks
MOVED = (*DTYPES, "bool", "int16", "uint16", "complex64")
OPS = (md.ReduceOp.SUM, md.ReduceOp.PRODUCT, md.ReduceOp.MIN, md.ReduceOp.MAX, md.ReduceOp.AVG)
SECONDS = 30  # for a failure to be told


def inputs(size: int, shape: tuple, dtype: str) -> np.ndarray:
    """Small whole numbers of every rank, (size, *shape), so that sums have the same bits in any order."""
    return np.random.default_rng(7).integers(0, 4, (size, *shape)).astype(dtype)


def same(array, expected: np.ndarray) -> bool:
    host = array.get()
    return (host.dtype, host.shape, host.tobytes()) == (expected.dtype, expected.shape, expected.tobytes())


def combine(everyone: np.ndarray, op: md.ReduceOp) -> np.ndarray:
    found = everyone[0].copy()
    for other in everyone[1:]:
        op.ufunc(found, other, out=found)
    return found / np.asarray(len(everyone), everyone.dtype) if op is md.ReduceOp.AVG else found


def check_reductions(world, dtype: str, elements: int, async_op: bool) -> list:
    """The calls whose results are wrong."""
    wrong, size, rank = [], world.size, world.rank
    for op in OPS:
        if op is md.ReduceOp.AVG and np.dtype(dtype).kind not in "fc":
            continue
        if op in (md.ReduceOp.MIN, md.ReduceOp.MAX) and np.dtype(dtype).kind == "c":
            continue
        everyone = inputs(size, (elements,), dtype)
        total = combine(everyone, op)
        x = xp.asarray(everyone[rank])
        finish(md.all_reduce(x, op, world, async_op))
        if not same(x, total):
            wrong.append(("all_reduce", dtype, elements, op))
        root, x = size // 2, xp.asarray(everyone[rank])
        finish(md.reduce(x, root, op, world, async_op))
        if not same(x, total if rank == root else everyone[rank]):
            wrong.append(("reduce", dtype, elements, op))
        everyone = inputs(size, (size, elements), dtype)
        x, y = xp.asarray(everyone[rank]), xp.empty(elements, dtype)
        finish(md.reduce_scatter_tensor(y, x, op, world, async_op))
        if not (same(y, combine(everyone, op)[rank]) and same(x, everyone[rank])):
            wrong.append(("reduce_scatter_tensor", dtype, elements, op))
    return wrong


def check_moves(world, dtype: str, elements: int, async_op: bool) -> list:
    wrong, size, rank, root = [], world.size, world.rank, world.size - 1
    everyone = inputs(size, (elements,), dtype)
    x = xp.asarray(everyone[rank])
    finish(md.broadcast(x, root, world, async_op))
    if not same(x, everyone[root]):
        wrong.append(("broadcast", dtype, elements))
    x, y = xp.asarray(everyone[rank]), xp.empty((size, elements), dtype)
    finish(md.all_gather_into_tensor(y, x, world, async_op))
    if not same(y, everyone):
        wrong.append(("all_gather_into_tensor", dtype, elements))
    pieces = [xp.empty(elements, dtype) for _ in range(size)] if rank == root else None
    finish(md.gather(x, pieces, root, world, async_op))
    if pieces is not None and not all(same(piece, part) for piece, part in zip(pieces, everyone, strict=True)):
        wrong.append(("gather", dtype, elements))
    y = xp.empty(elements, dtype)
    finish(md.scatter(y, [xp.asarray(part) for part in everyone] if rank == root else None, root, world, async_op))
    if not same(y, everyone[rank]):
        wrong.append(("scatter", dtype, elements))
    everyone = inputs(size, (size, elements), dtype)
    x, y = xp.asarray(everyone[rank]), xp.empty((size, elements), dtype)
    finish(md.all_to_all_single(y, x, group=world, async_op=async_op))
    if not same(y, everyone[:, rank]):
        wrong.append(("all_to_all_single", dtype, elements))
    rows = np.arange(size * size).reshape(size, size) * 5 % 3  # rank i sends rank j rows[i, j], some of them none
    sent = [inputs(size, (rows[i].sum(), elements), dtype)[i] for i in range(size)]
    ends = rows.cumsum(axis=1)
    expected = [sent[i][ends[i, rank] - rows[i, rank] : ends[i, rank]] for i in range(size)]
    x, y = xp.asarray(sent[rank]), xp.empty((rows[:, rank].sum(), elements), dtype)
    finish(md.all_to_all_single(y, x, rows[:, rank].tolist(), rows[rank].tolist(), world, async_op))
    if not same(y, np.concatenate(expected)):
        wrong.append(("all_to_all_single with splits", dtype, elements))
    return wrong


def finish(work) -> None:
    if work is not None:
        assert work.wait()


def check_all(world, dtypes: tuple, counts: tuple) -> tuple[list, int]:
    on_the_standin = hasattr(xp, "crossings")
    if on_the_standin:
        xp.crossings.clear()
    wrong = []
    for dtype in dtypes:
        for elements in counts:
            for async_op in (False, True):
                wrong += check_reductions(world, dtype, elements, async_op)
                wrong += check_moves(world, dtype, elements, async_op)
    return wrong, staged() if on_the_standin else 0


@pytest.mark.parametrize("size", SIZES)
def test_results_are_numpys(device_ranks, size):
    for wrong, copies in device_ranks(size).run(with_gpus, size, check_all, ("float64", "int32"), (0, 1, 5)):
        assert wrong == []
        # reduce and reduce_scatter_tensor by MIN and MAX of floats, each with one input, 3 counts, 2 ways
        assert copies == (0 if size == 1 else 2 * 2 * 3 * 2)


@pytest.mark.long
@pytest.mark.parametrize("size", (1, 2, 5))
def test_results_are_numpys_in_every_dtype(device_ranks, size):
    for wrong, _ in device_ranks(size).run(with_gpus, size, check_all, MOVED, (0, 1, 2, 5, 1021)):
        assert wrong == []


def dtypes_that_move(world) -> int:
    """Gather one array of each dtype; return how many were copied to the host."""
    xp.crossings.clear()
    for dtype in MOVED:
        everyone = inputs(world.size, (3,), dtype)
        found = xp.empty((world.size, 3), dtype)
        md.all_gather_into_tensor(found, xp.asarray(everyone[world.rank]), world)
        assert same(found, everyone)
    return staged()


def test_every_dtype_moves_by_nccl(device_ranks):
    assert device_ranks(2).run(with_gpus, 2, dtypes_that_move) == [0, 0]


def not_a_number(world):
    x = xp.asarray(np.array([1.0, np.nan if world.rank == 1 else 2.0, 3.0]))
    md.all_reduce(x, md.ReduceOp.MAX, world)
    return x.get()


def test_a_nan_outlives_max(device_ranks):
    """NCCL's MAX would drop it."""
    for found in device_ranks(3).run(with_gpus, 3, not_a_number):
        assert np.isnan(found[1]) and found[0] == 1 and found[2] == 3


def in_place(world, async_op: bool) -> list:
    """Inputs that share memory with outputs."""
    size, rank, wrong = world.size, world.rank, []
    everyone = inputs(size, (size, 3), "float32")
    for place in range(size):  # of this rank's part in the whole array: NCCL takes its own place only
        x = xp.asarray(everyone[rank])
        finish(md.all_gather_into_tensor(x, x[place], world, async_op))
        if not same(x, everyone[np.arange(size), place]):
            wrong.append(("all_gather", place))
        x = xp.asarray(everyone[rank])
        finish(md.reduce_scatter_tensor(x[place], x, md.ReduceOp.SUM, world, async_op))
        if not same(x[place], everyone.sum(axis=0)[rank]):
            wrong.append(("reduce_scatter", place))
        x = xp.asarray(everyone[rank])
        finish(md.scatter(x[place], list(x) if rank == 0 else None, 0, world, async_op))
        if not same(x[place], everyone[0, rank]):
            wrong.append(("scatter", place))
        x = xp.asarray(everyone[rank])
        finish(md.gather(x[place], list(x) if rank == 0 else None, 0, world, async_op))
        if rank == 0 and not same(x, everyone[np.arange(size), place]):
            wrong.append(("gather", place))
    x = xp.asarray(everyone[rank])
    finish(md.all_to_all_single(x, x, group=world, async_op=async_op))
    if not same(x, everyone[:, rank]):
        wrong.append("all_to_all")
    return wrong


@pytest.mark.parametrize("async_op", [long(False), True])
def test_input_and_output_may_share_memory(device_ranks, async_op):
    assert device_ranks(3).run(with_gpus, 3, in_place, async_op) == [[]] * 3


# Streams


def too_early(world):
    x = xp.asarray(np.ones(3))
    work = md.all_reduce(x, group=world, async_op=True)
    try:
        x + 1
    except RuntimeError as error:
        told = str(error)
    finish(work)
    return told, (x + 1).get().tolist(), work.is_completed()


def test_the_result_is_there_after_wait(device_ranks):
    for told, found, completed in device_ranks(2).run(with_gpus, 2, too_early):
        assert "Work.wait()" in told and found == [3.0] * 3 and completed


def changed(world) -> None:
    """Rank 0 changes what a call in flight reads, since rank 1 comes late."""
    x, y = xp.asarray(np.ones(3)), xp.empty((2, 3))
    md.all_gather_into_tensor(y, x, world)
    md.barrier(world)
    if world.rank == 1:
        time.sleep(1.0)
    work = md.all_gather_into_tensor(y, x, world, async_op=True)
    if world.rank == 0:
        time.sleep(0.3)  # until the stream has come to the call
        x += 1
    work.wait()
    y.get()


def test_an_input_does_not_change_before_wait(device_ranks):
    with pytest.raises(md.RankFailed, match=r"rank 0 .*RuntimeError: an array has changed while a call reads it"):
        device_ranks(2).run(with_gpus, 2, changed)


def let_go(world, waits: bool) -> list:
    """Nobody else holds the arrays of calls in flight."""
    works = [md.all_reduce(xp.asarray(np.full(100, float(i))), group=world, async_op=True) for i in range(20)]
    if waits:
        for work in works:
            work.wait()
    del works
    x = xp.asarray(np.ones(2))
    md.all_reduce(x, group=world)
    return x.get().tolist()


@pytest.mark.parametrize("waits", [True, False])
def test_arrays_live_as_long_as_nccl_uses_them(device_ranks, waits):
    assert device_ranks(2).run(with_gpus, 2, let_go, waits) == [[2.0, 2.0]] * 2


def host_runs_ahead(world) -> bool:
    """Rank 1 comes late, and rank 0 does not wait for it: not in the calls, not in ``wait``."""
    x = xp.asarray(np.ones(3))
    md.all_reduce(x, group=world)  # the first call compares
    md.barrier(world)
    if world.rank == 1:
        time.sleep(1.0)
    started = time.monotonic()
    md.all_reduce(x, group=world)
    md.all_reduce(x, group=world, async_op=True).wait()
    seconds = time.monotonic() - started
    assert x.get().tolist() == [8.0] * 3
    return seconds


def test_the_host_does_not_wait(device_ranks):
    seconds = device_ranks(2).run(with_gpus, 2, host_runs_ahead)
    assert seconds[0] < 0.5  # of the second that rank 1 is late


# Which calls take NCCL


def routes(world) -> dict[str, bool]:
    """Whether each call was staged in host memory."""
    found = {}

    def look(name: str, call) -> None:
        xp.crossings.clear()
        call()
        found[name] = staged() > 0

    x = xp.asarray(np.ones(4, np.float32))
    look("auto", lambda: md.all_reduce(x, group=world))
    look("named", lambda: md.all_reduce(x, group=world, algorithm="ring"))
    pair = world.new_group([0, 1])
    if pair is not None:
        look("pair", lambda: md.all_reduce(x, group=pair))
    alone = world.new_group([world.rank])
    look("alone", lambda: md.all_reduce(x, group=alone))
    look(
        "message", lambda: md.sendrecv(x, (world.rank + 1) % world.size, x.copy(), (world.rank - 1) % world.size, world)
    )
    other = world.duplicate()
    look("background", lambda: other.start("a program", lambda: md.all_reduce(x, group=world.duplicate())).wait())
    return found


def test_a_gpu_each_takes_nccl(device_ranks):
    for found in device_ranks(3).run(with_gpus, 3, routes):
        pair = {"pair": False} if "pair" in found else {}
        assert found == {"auto": False, "named": True, "alone": False, "message": False, "background": True} | pair


def test_two_ranks_on_one_gpu_go_through_the_host(device_ranks):
    for found in device_ranks(2).run(with_gpus, 1, routes):
        assert found["auto"] and found["pair"] and not found["alone"]


def test_three_ranks_on_two_gpus(device_ranks):
    """All three go through the host; the two with a GPU each do not."""
    found = device_ranks(3).run(with_gpus, 2, routes)
    assert all(one["auto"] for one in found) and [one.get("pair") for one in found] == [False, False, None]


def without_nccl(world) -> bool:
    xp.cuda.nccl.available = world.rank != 1
    try:
        md.find_gpus(world)  # once more
        return routes(world)["auto"]
    finally:
        xp.cuda.nccl.available = True


def test_a_rank_without_nccl_keeps_all_from_it(device_ranks):
    assert device_ranks(3).run(with_gpus, 3, without_nccl) == [True] * 3


def devices_of_threads(world) -> list[int]:
    """Of the main thread and of a thread that runs programs."""
    found = [xp.cuda.Device().id]
    world.duplicate().start("a program", lambda: found.append(xp.cuda.Device().id)).wait()
    return found


def test_a_background_thread_uses_the_ranks_gpu(device_ranks):
    assert device_ranks(3).run(with_gpus, 3, devices_of_threads) == [[0, 0], [1, 1], [2, 2]]


# What is counted


def one_of_each(world, where: str, elements: int) -> None:
    to = xp.asarray if where == "device" else np.asarray
    ring = {} if where == "device" else {"algorithm": "ring"}
    size, root = world.size, 1
    x, parts = to(np.ones(elements)), to(np.ones((size, elements)))
    md.all_reduce(x, group=world, **ring)
    md.broadcast(x, root, world, **ring)
    md.all_gather_into_tensor(parts, x, world, **ring)
    md.reduce_scatter_tensor(x, parts, group=world, **ring)
    md.all_to_all_single(parts, parts.copy(), group=world)
    md.scatter(x, list(parts) if world.rank == root else None, root, world)
    md.gather(x, list(parts) if world.rank == root else None, root, world)


def counts(world, where: str, elements: int) -> tuple[list, dict, list]:
    """Of one call of each collective, after a first: rows of the table, traffic, and names in the trace."""
    one_of_each(world, where, elements)
    before, traffic = world.collectives, world.traffic
    trace.start()
    one_of_each(world, where, elements)
    names = [entry.name for entry in trace.stop() if isinstance(entry, trace.Event) and entry.track == "communication"]
    return (world.collectives - before).as_list(), (world.traffic - traffic).as_dict(), names


@pytest.mark.parametrize("elements", [0, 1, 5, 7])
def test_counts_are_those_of_a_ring(device_ranks, elements):
    size = 3
    on_device = device_ranks(size).run(with_gpus, size, counts, "device", elements)
    on_host = device_ranks(size).run(with_gpus, size, counts, "host", elements)
    for (rows, traffic, names), (host_rows, host_traffic, host_names) in zip(on_device, on_host, strict=True):
        assert rows == host_rows
        for messages in ("messages_sent", "messages_received"):  # a ring's steps are not counted
            del traffic[messages], host_traffic[messages]
        assert traffic == host_traffic
        assert all(name.endswith("nccl)") for name in names)
        assert [name.split("(")[0] for name in names] == [name.split("(")[0] for name in host_names]


# What goes wrong


def different_calls(world) -> None:
    x = xp.asarray(np.ones(4))
    if world.rank == 0:
        md.all_reduce(x, group=world)
    else:
        md.broadcast(x, 0, world)


def different_shapes(world) -> None:
    md.all_reduce(xp.asarray(np.ones(4 + world.rank)), group=world)


@pytest.mark.parametrize("function", [different_calls, different_shapes])
def test_ranks_that_call_different_things_are_told(device_ranks, function):
    with pytest.raises(md.RankFailed, match=r"(?s)Mismatch: ranks . and . disagree.*all_reduce\(SUM, float64") as error:
        device_ranks(2).run(with_gpus, 2, function)
    assert "nccl" in str(error.value)


def one_fails(world, stops: bool) -> None:
    x = xp.asarray(np.ones(4))
    md.all_reduce(x, group=world)
    if world.rank == 1:
        raise ValueError("no such shard")
    md.all_reduce(x, group=world)
    if stops:
        x.get()  # on a GPU the host waits here, within CUDA
    md.barrier(world)


@pytest.mark.parametrize("stops", [long(True), False])
def test_a_failing_rank_ends_those_that_wait_for_a_gpu(device_ranks, stops):
    device_ranks(3).run(with_gpus, 3, routes)  # so that starting is not counted
    started = time.monotonic()
    with pytest.raises(md.RankFailed, match="rank 1 of 3 failed: ValueError: no such shard") as error:
        device_ranks(3).run(with_gpus, 3, one_fails, stops)
    assert re.search(r'raise ValueError\("no such shard"\)', error.value.traceback_text)
    assert time.monotonic() - started < SECONDS


def one_dies(world) -> None:
    x = xp.asarray(np.ones(4))
    md.all_reduce(x, group=world)
    if world.rank == 1:
        os._exit(3)
    md.all_reduce(x, group=world)  # never ends
    md.barrier(world)


def total(world) -> list:
    x = xp.asarray(np.ones(2))
    md.all_reduce(x, group=world)
    return x.get().tolist()


def test_survivors_go_on_without_the_rank_that_nccl_waits_for(device_ranks):
    with PatientCluster(3, keep_survivors=True) as cluster:
        with pytest.raises(md.RankFailed, match="rank 1 of 3 exited with status 3"):
            cluster.run(with_gpus, 3, one_dies)
        assert cluster.survivors == [0, 2]
        cluster.regroup(2)
        assert cluster.run(with_gpus, 2, total) == [[2.0, 2.0]] * 2


def on_two_sides(world) -> None:
    x = xp.asarray(np.ones(2))
    md.gather(x, [np.ones(2), np.ones(2)] if world.rank == 0 else None, 0, world)


def test_arrays_on_two_sides_are_refused(device_ranks):
    with pytest.raises(md.RankFailed, match=r"gather: tensor is on a GPU, but gather_list\[0\] in host memory"):
        device_ranks(2).run(with_gpus, 2, on_two_sides)


def of_a_part(world) -> None:
    md.find_gpus(world.new_group([0, 1]) if world.rank < 2 else world)


def test_gpus_are_found_by_the_world(device_ranks):
    with pytest.raises(md.RankFailed, match="ValueError: find_gpus is about all 3 ranks, but got a group of 2"):
        device_ranks(3).run(with_gpus, 3, of_a_part)
