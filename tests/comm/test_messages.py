"""Messages between two ranks: every size and dtype, order, tags, batches, groups, and what is left over."""

import os
import sys
import time
import warnings
from importlib import import_module

import numpy as np
import pytest
from calls import available
from threadpoolctl import threadpool_info

import minidist as md
from minidist.comm.failures import is_plumbing
from minidist.comm.point_to_point import _irecv, recv_reduce, sendrecv
from minidist.comm.transports.messages import SHORT

DTYPES = "?bBhHiIlLefdgFDG"  # NumPy's letters: bool, integers, floating point, complex
SHAPES = [(), (0,), (1,), (3, 0), (5, 7), (2, 3, 1000), (40_000,), (100_000,)]  # every dtype with each in 136 messages
LIMIT = 60  # seconds, of each wait that ends by itself only if all goes well


def piece(world) -> int:
    """The bytes of a piece: no transport takes more than 4 of them at once."""
    return import_module(type(world.transport).__module__).PIECE


def sizes_of(world) -> list[int]:
    """Bytes: 0, 1, and around a short message, a piece of the transport, and its queue where there is one."""
    limits = [SHORT, piece(world)]
    limits += [queue.capacity for queue in world.transport.outgoing.values() if hasattr(queue, "capacity")][:1]
    limits += [4 * limits[-1], 5 * limits[-1]]  # as many pieces as may be in flight, and more
    return [0, 1, 63, 64, 65, *(limit + more for limit in limits for more in (-1, 0, 1))]


def filled(nbytes: int, salt: int) -> np.ndarray:
    """Bytes that repeat with a period that divides no size of a piece."""
    return np.resize((np.arange(251) * 7 + salt).astype(np.uint8), nbytes)  # (nbytes,)


def every_size(world, expected_first: bool) -> None:
    """Rank 0 sends to each other rank in turn; the others post their receives before the messages come, or after."""
    sizes = sizes_of(world)
    if world.rank == 0:
        for peer in range(1, world.size):
            if expected_first:
                md.recv(np.empty(1), peer, world, tag=3)
            works = [md.isend(filled(nbytes, i), peer, world, tag=1) for i, nbytes in enumerate(sizes)]
            works.append(md.isend(np.ones(1), peer, world, tag=2))
            assert all(work.wait() for work in works)
        return
    boxes, receives = [np.full(nbytes, 99, np.uint8) for nbytes in sizes], []
    if expected_first:
        receives = [md.irecv(box, 0, world, tag=1) for box in boxes]
        md.send(np.ones(1), 0, world, tag=3)
    md.recv(np.empty(1), 0, world, tag=2)
    if not expected_first:
        assert len(world.transport.unexpected[0]) == len(sizes)  # all have come, and wait for their receives
        receives = [md.irecv(box, 0, world, tag=1) for box in boxes]
    for i, (box, receive) in enumerate(zip(boxes, receives, strict=True)):
        receive.wait()
        assert box.tobytes() == filled(len(box), i).tobytes(), f"message {i} of {len(box)} bytes"


def sums_in_a_ring(world) -> None:
    """Add the left neighbour's array to one's own, in every size, by both calls that can."""
    right, left = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    for nbytes in sizes_of(world):
        mine, theirs = (np.arange(-(-nbytes // 8)) + 1000 * rank for rank in (world.rank, left))
        x = mine.copy()
        sendrecv(mine, right, x, left, world, np.add)
        assert np.array_equal(x, mine + theirs), f"sendrecv of {nbytes} bytes"
        y, send = x.copy(), md.P2POp(md.isend, mine, right, world)
        for work in md.batch_isend_irecv([send, md.P2POp(md.irecv, y, left, world)]):
            assert work.wait() is True and work.is_completed()
        assert np.array_equal(y, theirs), f"batch_isend_irecv of {nbytes} bytes"
        work = md.isend(mine, right, world)
        recv_reduce(x, left, world, np.maximum)
        work.wait()
        assert np.array_equal(x, np.maximum(mine + theirs, theirs)), f"recv_reduce of {nbytes} bytes"


def crowd(world, messages: int) -> None:
    """Each rank sends every other many messages, of every dtype and shape; they are received last tag first, and by tag
    in their order. The bits are the same, NaN's too. Four of the shapes hold one element or none."""
    others, tags, sent, received = [(world.rank + i) % world.size for i in range(1, world.size)], 7, [], {}

    def message(rank: int, i: int) -> np.ndarray:
        letter, shape = DTYPES[i % len(DTYPES)], SHAPES[i % len(SHAPES)]
        content = filled(int(np.prod(shape)) * np.dtype(letter).itemsize, 1000 * rank + i)
        return (content % 2 if letter == "?" else content).view(letter).reshape(shape)

    for i in range(messages):
        sent += [md.isend(message(world.rank, i), peer, world, tag=i % tags) for peer in others]
    for peer in others:
        for i in sorted(range(messages), key=lambda i: -(i % tags)):
            box = np.zeros_like(message(peer, i))
            received[peer, i] = box, md.irecv(box, peer, world, tag=i % tags)
    for (peer, i), (box, work) in received.items():
        work.wait()
        assert box.tobytes() == message(peer, i).tobytes(), f"message {i} from rank {peer}"
    for work in sent:
        work.wait()


def test_messages_of_every_size_and_dtype_arrive_whole(ranks):
    for size in available(2, 3):
        for expected_first in (True, False):
            ranks(size).run(every_size, expected_first)
        ranks(size).run(sums_without_a_yield if size == 3 else sums_in_a_ring)
    for size, messages in ((2, 136), (3, 60)):
        ranks(size).run(crowd, messages)


def sums_without_a_yield(world) -> None:
    world.transport.core._crowded_until = time.perf_counter_ns() + 10**12
    programs(world, 4)
    sums_in_a_ring(world)


def over_2_gib(world) -> None:
    """A length that no 32-bit int holds. The ends of the array, and what is around 2 GiB, differ from the rest."""
    places, n = [0, 1, 2**31 - 1, 2**31, 2**31 + 4], 2**31 + 5
    x = np.zeros(n, np.uint8)
    x[places] = [1, 2, 3, 4, 5] if world.rank == 0 else 0
    md.broadcast(x, 0, world)
    assert x[places].tolist() == [1, 2, 3, 4, 5] and int(np.count_nonzero(x)) == 5


@pytest.mark.long
def test_five_ranks_with_many_messages_in_flight_and_one_of_more_than_2_gib(ranks):
    ranks(5).run(sums_in_a_ring)
    ranks(5).run(crowd, 136)
    ranks(2).run(over_2_gib)


# Order


def takes_any(world) -> None:
    """Each rank sends when rank 0 tells it to. Of several that have come, the first in the list counts."""
    if world.rank:
        md.recv(np.empty(1), 0, world)  # the word to go
        return md.send(np.full(world.rank * 200_000, world.rank), 0, world, tag=1)
    boxes = {rank: np.zeros(rank * 200_000, int) for rank in (1, 2, 3)}
    works = {rank: md.irecv(box, rank, world, tag=1) for rank, box in boxes.items()}
    left = dict(works)
    for rank in (3, 1, 2):
        md.send(np.zeros(1), rank, world)
        assert [*left][md.wait_any([*left.values()])] == rank
        del left[rank]
    assert all((box == rank).all() for rank, box in boxes.items())
    assert md.wait_any([*works.values()]) == md.wait_any([*works.values()][::-1]) == 0


def test_wait_any_takes_messages_as_they_come(ranks):
    ranks(4).run(takes_any)


# In the background, and in several groups


def progress_without_waiting(world) -> None:
    """An asynchronous all-reduce comes to its end while the rank does something else, not in wait()."""
    x = np.ones(1 << 20)
    work, deadline = md.all_reduce(x, group=world, async_op=True, algorithm="ring"), time.monotonic() + LIMIT
    while not work.is_completed():
        assert time.monotonic() < deadline
        np.sqrt(np.ones(100_000))  # computing
    assert (x == world.size).all() and not world.unwaited


def programs(world, count: int) -> None:
    """Each sums an array, then sums what it has made of the sum, on a group of the same ranks."""
    inside, order = world.new_group(list(range(world.size))), []
    arrays, sums = [np.full(5, float(world.rank + i)) for i in range(count)], sum(range(world.size + 1))

    def program(i):
        md.all_reduce(arrays[i], group=inside)
        arrays[i] *= world.rank + 1
        md.all_reduce(arrays[i], group=inside)
        order.append(i)

    works = [world.run_in_background(f"program {i}", lambda i=i: program(i)) for i in range(count)]
    after = np.ones(1)
    md.all_reduce(after, group=world)  # of the group itself: waits its turn behind them
    assert order == [*range(count)] and all(work.is_completed() for work in works)
    works[-1].wait()
    assert [array[0] for array in arrays] == [sums * sum(i + rank for rank in range(world.size)) for i in range(count)]
    assert after[0] == world.size


def forgets_to_wait(world) -> None:
    """Messages that are not waited for still end, and a send of 8 MiB, more than a queue holds, arrives."""
    md.all_reduce(np.ones(100_000), group=world, async_op=True, algorithm="ring")
    box, full = np.empty(1 << 20, int), np.arange(1 << 20)
    md.isend(np.ones(3), 1 - world.rank, world, tag=1)
    md.irecv(np.empty(3), 1 - world.rank, world, tag=1)
    if world.rank == 0:
        md.isend(full, 1, world)
    else:
        md.recv(box, 0, world)
        assert np.array_equal(box, full)


def numpys_errors(world) -> None:
    """Any wait moves the pieces of all messages, and so combines what another call receives, in another block."""
    if world.rank == 0:
        md.send(np.full(3, 1e308), 1, world, tag=0)
        md.send(np.ones(3), 1, world, tag=1)
        return
    with np.errstate(over="raise"):
        reducing = _irecv(np.full(3, 1e308), 0, world, 0, "recv_reduce", np.add)
    md.recv(np.empty(3), 0, world, tag=1)
    with pytest.raises(FloatingPointError, match="overflow"):
        reducing.wait()


def test_what_runs_in_the_background_ends_in_order_and_disturbs_nobody(ranks):
    ranks(3).run(progress_without_waiting)
    for size in available(1, 3, 5):
        for count in (1, 4):
            ranks(size).run(programs, count)
    ranks(2).run(forgets_to_wait)
    ranks(2).run(numpys_errors)


def groups_of_groups(world) -> None:
    """Groups of the same members keep their messages apart; a group of a group counts within the group."""
    one, two, x = world.new_group([0, 1, 2]), world.new_group([0, 1, 2]), np.empty(1)
    if world.rank < 2:
        for value, group in ((1.0, one), (2.0, two)):
            md.isend(np.array([value]), 1 - world.rank, group)
        for value, group in ((2.0, two), (1.0, one)):
            md.recv(x, 1 - world.rank, group)
            assert x[0] == value
    some = world.new_group([3, 1, 2])
    if some is not None and (pair := some.new_group([0, 2])) is not None:
        x[:] = world.rank
        md.all_reduce(x, group=pair)
        mesh = md.init_device_mesh((2,), mesh_dim_names=("dp",), group=pair)
        assert (pair.ranks, x[0], mesh.get_local_rank("dp")) == ((3, 2), 5.0, pair.rank)


def meshes_and_nodes(world, nodes: tuple) -> None:
    """A new run begins on the nodes that there are."""
    mesh = md.init_device_mesh((1, 2, 3), mesh_dim_names=("pp", "dp", "tp"), group=world)
    dp, tp = divmod(world.rank, 3)
    assert mesh.get_coordinate() == (0, dp, tp) and (mesh.size(), mesh.size("tp")) == (6, 3)
    ranks = {"pp": (world.rank,), "dp": (tp, 3 + tp), "tp": (3 * dp, 3 * dp + 1, 3 * dp + 2)}
    assert all(mesh.get_group(name).ranks == those for name, those in ranks.items())
    both = mesh.flatten(("dp", "tp"), "dp_tp")
    assert repr(both) == "DeviceMesh(pp=1, dp_tp=6)" and both.get_group("dp_tp").ranks == tuple(range(6))
    assert world.nodes == nodes
    md.place_on_nodes(world, 2)
    column = world.new_group([5, 3, 1] if world.rank % 2 else [0, 2, 4])
    assert (world.nodes, world.local_rank) == ((0, 0, 1, 1, 2, 2), world.rank % 2)
    assert column.nodes == ((2, 1, 0) if world.rank % 2 else (0, 1, 2))


def test_groups_meshes_nodes_and_counters(ranks):
    ranks(4).run(groups_of_groups)
    if available(6):
        nodes = ranks(6).run(lambda world: world.nodes)[0]
        for _ in range(2):
            ranks(6).run(meshes_and_nodes, nodes)


# One run after another


def open_files(world, collect: bool) -> int:
    """Cycles of objects stay meanwhile: what a run has opened must be closed, not collected."""
    import gc

    (gc.enable if collect else gc.disable)()
    return len(os.listdir("/proc/self/fd"))


def sends_too_much(world) -> None:
    """Short messages: a long one may wait for its receive, as in MPI_Send."""
    if world.rank == 0:
        for i in range(3):
            md.send(np.full(3, 100 + i), 1, world, tag=4)
        md.recv(np.zeros(5), 1, world, tag=1)
    else:
        md.send(np.zeros(5), 0, world)
        md.send(np.zeros(5), 0, world, tag=1)


def takes_one(world) -> list:
    x = np.full(3, 7 - world.rank)
    (md.recv if world.rank else md.send)(x, 1 - world.rank, world, tag=4)
    return x.tolist()


def test_no_run_finds_anything_of_an_earlier_one(ranks):
    for _ in range(2):
        with pytest.warns(RuntimeWarning) as caught:
            ranks(2).run(sends_too_much)
        told = sorted(str(warning.message).partition(" in a message of")[0] for warning in caught)
        assert [text.partition("rank 0 sent")[2] for text in told[:3]] == [" rank 1 3 elements (24 bytes, tag 4)"] * 3
        assert len(told) == 4 and told[3].endswith("rank 1 sent rank 0 5 elements (40 bytes, tag 0)")
        assert not [warning.filename for warning in caught if is_plumbing(warning.filename)]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert ranks(2).run(takes_one) == [[7, 7, 7]] * 2
    ranks(2).run(lambda world: world.kept.update(mine=world.rank))
    assert ranks(2).run(lambda world: world.kept.pop("mine")) == [0, 1]  # but for what a rank keeps
    if sys.platform == "linux":
        before = ranks(3).run(open_files, False)
        for _ in range(5):
            ranks(3).run(md.barrier)
        assert ranks(3).run(open_files, True) == before


def mismatched(world, sent: np.ndarray, expected: np.ndarray, text: str) -> None:
    """The receive has an error and the message is gone: the next one is received as if nothing had been."""
    x = np.arange(10.0) * (1 - world.rank)
    if world.rank == 0:
        md.send(sent, 1, world)
        return md.send(x, 1, world)
    with pytest.raises(md.Mismatch) as caught:
        md.recv(expected, 0, world)
    assert text in str(caught.value)
    md.recv(x, 0, world)
    assert np.array_equal(x, np.arange(10.0))


def test_a_message_that_is_not_the_expected_one_is_an_error_of_its_receive_alone(ranks):
    for sent, expected, text in (
        (np.ones(3), np.ones(5), "ranks 1 and 0 disagree in recv: rank 1 expects 5 elements from rank 0, which sent 3"),
        (np.ones(5), np.ones(0), "expects 0 elements from rank 0, which sent 5"),
        (np.ones(700_000), np.ones(3), "expects 3 elements from rank 0, which sent 700,000"),
        (np.ones(3), np.ones(700_000), "expects 700,000 elements from rank 0, which sent 3"),
        (np.ones(700_000, "f"), np.ones(700_000), "is a message of float32"),
    ):
        ranks(2).run(mismatched, sent, expected, text)


def sums(*shape, op=md.ReduceOp.SUM):
    return lambda w: md.all_reduce(np.zeros(shape), op, w, algorithm="direct")


def long_sums(place: int):
    """Return a sum of arrays of 64 dimensions: their description exceeds the 151 bytes that a header has for it."""
    return sums(*(2 if i == place else 1 for i in range(64)))


DISAGREE = [  # two ranks' calls, and what the error of each names of its own call and of the other's
    (sums(3), sums(3, op=md.ReduceOp.MAX), *(f"all_reduce({op}, float64 (3,), direct), collective 1 of the world"
                                             for op in ("SUM", "MAX"))),
    (sums(300_000), sums(300_001), "float64 (300000,)", "float64 (300001,)"),
    (lambda w: [md.barrier(w), sums(3)(w)], lambda w: [sums(3)(w), md.barrier(w)], "barrier(), coll", "all_reduce(SUM"),
    # all that they differ in is far from both ends of their descriptions, of which both ends are told
    (long_sums(45), long_sums(46), "float64 (1, 1, 1, 1", "1, 1), direct), collective 1 of the world"),
]  # fmt: skip


def disagree(world, calls: tuple) -> str:
    with pytest.raises(md.Mismatch) as caught:
        calls[world.rank](world)
    return str(caught.value)


def test_each_rank_that_disagrees_learns_what_both_called(ranks):
    for *calls, first, second in DISAGREE:
        for rank, text in enumerate(ranks(2).run(disagree, calls)):
            ours, theirs = text.split("; what came from rank")
            assert ours.startswith(f"ranks {rank} and {1 - rank} disagree. Rank {rank} called "), text
            assert (first, second)[rank] in ours and (first, second)[1 - rank] in theirs, text


def test_ranks_have_one_blas_thread(ranks):
    pools = [pool for pools in ranks(2).run(lambda world: threadpool_info()) for pool in pools]
    assert all(pool["num_threads"] == 1 for pool in pools if pool["user_api"] == "blas")
