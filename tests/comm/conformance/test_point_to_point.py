"""Messages between two ranks: order, tags, batches, and what is left over."""

import time
import warnings
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import minidist as md
from minidist.comm.point_to_point import _irecv

LIMIT = 60  # seconds, of each wait that ends by itself only if all goes well


def neighbours(world):
    right, left = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    big = np.full(1 << 19, float(world.rank))  # 4 MiB: larger than a queue
    arrived = np.empty_like(big)
    works = md.batch_isend_irecv([md.P2POp(md.isend, big, right, world), md.P2POp(md.irecv, arrived, left, world)])
    for work in works:
        assert work.wait() is True and work.is_completed()
    return arrived[0] == arrived[-1] == left


@pytest.mark.parametrize("size", [2, 3, 5])
def test_a_ring_of_large_messages(ranks, size):
    assert all(ranks(size).run(neighbours))


def tags(world):
    """Messages are taken in another order than they were sent, by tag; with one tag, in the order they were sent."""
    if world.rank == 0:
        for tag, value in [(1, 10), (2, 20), (1, 11), (2, 21)]:
            md.send(np.array([value]), 1, world, tag=tag)
        return None
    got, box = [], np.empty(1, int)
    for tag in (2, 2, 1, 1):
        md.recv(box, 0, world, tag=tag)
        got.append(int(box[0]))
    return got


def test_tags(ranks):
    assert ranks(2).run(tags)[1] == [20, 21, 10, 11]


def one_tag(world):
    """Messages with one tag, small ones and larger than a queue. Some are awaited before they come; the others
    come first, and are set aside while the receiver waits for one behind them with another tag."""
    large = 200_000  # 1.6 MB, more than a queue
    sizes = [1, 1, large, large, large, 7, 7, 0, large, large, 3, 3]
    if world.rank == 0:
        works = [md.isend(np.full(n, i), 1, world, tag=1) for i, n in enumerate(sizes)]
        works.append(md.isend(np.full(1, -1), 1, world, tag=2))
        return all(work.wait() for work in works)
    boxes = [np.full(n, -9) for n in sizes]
    works = [md.irecv(box, 0, world, tag=1) for box in boxes[:3]]
    md.recv(np.empty(1, int), 0, world, tag=2)  # it comes behind all the others
    assert len(world.transport.unexpected[0]) == len(sizes) - 3
    works += [md.irecv(box, 0, world, tag=1) for box in boxes[3:]]
    assert all(work.wait() for work in works)
    return all((box == i).all() for i, box in enumerate(boxes))


def test_messages_with_one_tag_do_not_overtake_each_other(ranks):
    assert ranks(2).run(one_tag) == [True, True]


def pieces(world, count: int) -> int:
    """So many pieces of a message, in bytes: no transport takes more than 4 of them at once."""
    return count * import_module(type(world.transport).__module__).PIECE


def one_complete_one_arriving(world, go_on: Path):
    """When the receive is posted, one message with its tag is complete, and a part of the next has arrived."""
    n = pieces(world, 6) // 8
    if world.rank == 0:
        works = [md.isend(np.full(n, i), 1, world, tag=1) for i in range(2)] + [md.isend(np.ones(1), 1, world, tag=2)]
        works[0].wait()
        works[1].is_completed()  # its first pieces move, and no more of them until the other rank says so
        wait_for(go_on)
        return all(work.wait() for work in works)
    transport, other = world.transport, md.irecv(np.empty(1), 0, world, tag=2)
    while not (transport.unexpected[0] and transport.arriving[0]):
        assert not other.is_completed()
    boxes = [np.full(n, -9) for _ in range(2)]
    works = [md.irecv(box, 0, world, tag=1) for box in boxes]
    assert transport.arriving[0] is not None  # the second is matched while it arrives
    go_on.touch()
    return all(work.wait() for work in (*works, other)) and all((box == i).all() for i, box in enumerate(boxes))


def wait_for(file: Path) -> None:
    """Wait until another rank has made a file, without a call that would move messages."""
    deadline = time.monotonic() + LIMIT
    while not file.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_message_that_is_arriving_does_not_overtake_a_complete_one(ranks, tmp_path):
    assert ranks(2).run(one_complete_one_arriving, tmp_path / "go on") == [True, True]


def while_a_collective_runs(world):
    """Messages, synchronous and asynchronous collectives of two groups, all at once between two ranks."""
    other = world.new_group([1, 0])
    peer = 1 - world.rank
    a, b, c = np.full(300_000, 1.0), np.full(7, 2.0), np.full(200_000, 3.0)
    first = md.all_reduce(a, group=world, async_op=True, algorithm="ring")
    second = md.all_reduce(c, group=other, async_op=True, algorithm="ring")
    arrived = np.empty(100_000)
    works = md.batch_isend_irecv(
        [md.P2POp(md.isend, np.full(100_000, 5.0 + world.rank), peer, world), md.P2POp(md.irecv, arrived, peer, world)]
    )
    md.all_reduce(b, group=world)  # goes behind the first, on the same group
    for work in (second, *works, first):
        work.wait()
    return a[-1] == 2 and b[-1] == 4 and c[-1] == 6 and arrived[-1] == 5.0 + peer


def test_many_things_between_the_same_two_ranks(ranks):
    for _ in range(5):
        assert all(ranks(2).run(while_a_collective_runs))


def progress_without_waiting(world):
    """An asynchronous all-reduce comes to its end while the rank does something else, not in wait()."""
    x = np.ones(1 << 20)
    work = md.all_reduce(x, group=world, async_op=True, algorithm="ring")
    deadline = time.monotonic() + LIMIT
    while not work.is_completed() and time.monotonic() < deadline:
        np.sqrt(np.ones(100_000))  # computing
    return work.is_completed() and bool((x == world.size).all())


@pytest.mark.parametrize("size", [2, 3])
def test_asynchronous_collectives_progress_while_the_rank_computes(ranks, size):
    assert all(ranks(size).run(progress_without_waiting))


def every_collective_async(world):
    n = world.size
    x, whole, part = np.full(6, 1.0), np.full(6 * n, 1.0), np.empty(6)
    pieces = [np.full(6, float(r)) for r in range(n)] if world.rank == 0 else None
    boxes = [np.empty(6) for _ in range(n)] if world.rank == 0 else None
    works = [
        md.all_reduce(x, group=world, async_op=True),
        md.broadcast(np.ones(3), 0, group=world, async_op=True),
        md.reduce(np.ones(3), 0, group=world, async_op=True),
        md.reduce_scatter_tensor(part, whole.copy(), group=world, async_op=True),
        md.all_gather_into_tensor(np.empty(6 * n), np.ones(6), group=world, async_op=True),
        md.all_to_all_single(np.empty(6 * n), whole.copy(), group=world, async_op=True),
        md.scatter(np.empty(6), pieces, 0, world, async_op=True),
        md.gather(np.ones(6), boxes, 0, world, async_op=True),
        md.barrier(world, async_op=True),
    ]
    return all(work.wait() for work in works) and x[0] == n and part[0] == n


def test_every_collective_can_be_asynchronous(ranks):
    assert all(ranks(3).run(every_collective_async))


def overflows_while_another_call_waits(world):
    """Any wait moves the pieces of all messages, and so combines what another call receives, in another block."""
    if world.rank == 0:
        md.send(np.full(3, 1e308), 1, world, tag=0)
        md.send(np.ones(3), 1, world, tag=1)
        return None
    with np.errstate(over="raise"):
        reducing = _irecv(np.full(3, 1e308), 0, world, 0, "recv_reduce", np.add)
    md.recv(np.empty(3), 0, world, tag=1)
    with pytest.raises(FloatingPointError, match="overflow"):
        reducing.wait()


def test_numpys_error_handling_is_that_of_the_call_that_receives(ranks):
    ranks(2).run(overflows_while_another_call_waits)


def forget_to_wait(world):
    x = np.ones(100_000)
    md.all_reduce(x, group=world, async_op=True, algorithm="ring")
    md.isend(np.ones(3), 1 - world.rank, world)
    md.irecv(np.empty(3), 1 - world.rank, world)
    return world.rank


def test_what_is_not_waited_for_still_ends(ranks):
    assert ranks(2).run(forget_to_wait) == [0, 1]
    assert ranks(2).run(lambda world: world.rank) == [0, 1]


def forget_a_large_send(world):
    if world.rank == 0:
        md.isend(np.arange(1 << 20), 1, world)  # 8 MiB, more than a queue
        return None
    x = np.empty(1 << 20, int)
    md.recv(x, 0, world)
    return int(x[-1])


def test_a_large_send_that_is_not_waited_for_arrives(ranks):
    assert ranks(2).run(forget_a_large_send) == [None, (1 << 20) - 1]


def twins_and_grandchildren(world):
    """Groups of the same members keep their messages apart; a group of a group counts within the group."""
    one, two = world.new_group([0, 1, 2]), world.new_group([0, 1, 2])
    if world.rank < 2:
        peer = 1 - world.rank
        md.isend(np.array([1.0]), peer, one)
        md.isend(np.array([2.0]), peer, two)
        x = np.empty(1)
        md.recv(x, peer, two)
        assert x[0] == 2
        md.recv(x, peer, one)
        assert x[0] == 1
    some = world.new_group([3, 1, 2])
    if some is not None and (pair := some.new_group([0, 2])) is not None:
        assert pair.ranks == (3, 2)
        x = np.array([float(world.rank)])
        md.all_reduce(x, group=pair)
        assert x[0] == 5
        mesh = md.init_device_mesh((2,), mesh_dim_names=("dp",), group=pair)
        assert mesh.get_local_rank("dp") == pair.rank
    return True


def test_groups_of_groups(ranks):
    assert all(ranks(4).run(twins_and_grandchildren))


def half_arrived(world, combine, go_on: Path):
    """The receive is posted while its message is arriving, because another receive was waiting."""
    big, small = np.arange(pieces(world, 6) // 8, dtype=np.float64), np.ones(1)
    if world.rank == 0:
        first = md.isend(big, 1, world, tag=1)
        second = md.isend(small, 1, world, tag=2)
        wait_for(go_on)
        return first.wait() and second.wait()
    later = md.irecv(small, 0, world, tag=2)
    while world.transport.arriving[0] is None:  # until a part of the big message has come
        assert not later.is_completed()
    assert world.transport.arriving[0].offset < big.nbytes
    x = np.ones_like(big)
    receive = _irecv(x, 0, world, 1, "irecv", combine)
    go_on.touch()
    receive.wait()
    return later.wait() and np.array_equal(x, big if combine is None else 1 + big)


@pytest.mark.parametrize("combine", [None, np.add])
def test_a_message_that_is_asked_for_while_it_arrives(ranks, combine, tmp_path):
    assert all(ranks(2).run(half_arrived, combine, tmp_path / "go on"))


def one_thread_of_blas(world):
    from threadpoolctl import threadpool_info

    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]


def test_ranks_have_one_blas_thread(ranks):
    assert all(set(threads) <= {1} for threads in ranks(2).run(one_thread_of_blas))


def unreceived(world):
    if world.rank == 0:
        md.send(np.zeros(3), 1, world, tag=4)
    else:
        md.send(np.zeros(5), 0, world)
        md.send(np.zeros(5), 0, world, tag=1)
    if world.rank == 0:
        md.recv(np.zeros(5), 1, world, tag=1)
    return world.rank


def test_messages_that_nobody_receives_are_named_and_cleared(ranks):
    with pytest.warns(RuntimeWarning) as caught:
        assert ranks(2).run(unreceived) == [0, 1]
    texts = sorted(str(warning.message) for warning in caught)
    assert len(texts) == 2
    assert "rank 0 sent rank 1 3 elements (24 bytes, tag 4)" in texts[0] and "never received" in texts[0]
    assert "rank 1 sent rank 0 5 elements (40 bytes, tag 0)" in texts[1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ranks(2).run(neighbours)


def mesh(world):
    mesh = md.init_device_mesh((2, 3), mesh_dim_names=("dp", "tp"), group=world)
    sums = {}
    for name in ("dp", "tp"):
        x = np.array([world.rank])
        md.all_reduce(x, group=mesh.get_group(name))
        sums[name] = int(x[0])
    assert mesh.get_coordinate() == (mesh.get_local_rank("dp"), mesh.get_local_rank("tp")) == divmod(world.rank, 3)
    assert (mesh.size(), mesh.size("dp"), mesh.size("tp")) == (6, 2, 3) and repr(mesh) == "DeviceMesh(dp=2, tp=3)"
    return sums


def test_device_mesh(ranks):
    results = ranks(6).run(mesh)
    for rank, sums in enumerate(results):
        dp, tp = divmod(rank, 3)
        assert sums == {"dp": tp + (tp + 3), "tp": sum(dp * 3 + i for i in range(3))}


def flattened(world):
    mesh = md.init_device_mesh((1, 2, 3), mesh_dim_names=("pp", "dp", "cp"), group=world)
    both = mesh.flatten(("dp", "cp"), "dp_cp")
    with pytest.raises(ValueError, match="flatten: 'dp' does not follow 'cp' in"):
        mesh.flatten(("cp", "dp"), "both")
    return repr(both), both.get_group("dp_cp").ranks, both.get_group("pp").ranks


def test_two_dimensions_made_one(ranks):
    for rank, (shown, together, alone) in enumerate(ranks(6).run(flattened)):
        assert shown == "DeviceMesh(pp=1, dp_cp=6)"
        assert list(together) == list(range(6)) and list(alone) == [rank]


def traced(world):
    from minidist import trace

    trace.start()
    x = np.ones(40_000)
    md.all_reduce(x, group=world, algorithm="ring")
    with trace.span("thinking"):
        pass
    return trace.stop()


def test_trace_has_spans_and_both_ends_of_every_message(ranks):
    from minidist import trace
    from minidist.show.perfetto import to_perfetto

    logs = ranks(3).run(traced)
    ends = {"send": {}, "receive": {}}
    for log in logs:
        names = [event.name for event in log if isinstance(event, trace.Event) and event.track != "wait"]
        assert names == ["all_reduce(SUM, float64 (40000,), ring)", "thinking"]
        for message in (entry for entry in log if isinstance(entry, trace.Message)):
            ends[message.kind][message.source, message.destination, message.number] = message.time
    assert ends["send"].keys() == ends["receive"].keys() and len(ends["send"]) == 3 * 4
    assert all(ends["send"][key] < ends["receive"][key] for key in ends["send"])

    exported = to_perfetto(logs)["traceEvents"]
    arrows = {phase: sorted(e["id"] for e in exported if e["ph"] == phase) for phase in "sf"}
    assert arrows["s"] == arrows["f"] and len(arrows["s"]) == 12
    assert min(event["ts"] for event in exported if "ts" in event) == 0
    assert {e["args"]["name"] for e in exported if e["name"] == "process_name"} == {"rank 0", "rank 1", "rank 2"}
