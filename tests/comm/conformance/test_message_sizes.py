"""Messages of every size at which a transport changes its ways, of every dtype, and many at once between two ranks."""

from importlib import import_module

import numpy as np
import pytest

import minidist as md
from minidist.comm.point_to_point import recv_reduce, sendrecv

DTYPES = "?bBhHiIlLefdgFDG"  # NumPy's letters: bool, integers, floating point, complex
LIMITS = ("SHORT", "PIECE")  # bytes: where a transport has such a limit, it has this name


def sizes_of(world) -> list[int]:
    """Bytes: 0, 1, and around each limit of the transport, and of the queue where there is one."""
    module = import_module(type(world.transport).__module__)
    limits = [getattr(module, name) for name in LIMITS if hasattr(module, name)]
    limits += [queue.capacity for queue in world.transport.outgoing.values() if hasattr(queue, "capacity")][:1]
    limits += [4 * limits[-1], 5 * limits[-1]]  # as many pieces as may be in flight, and more
    return [0, 1, 63, 64, 65, *(limit + more for limit in limits for more in (-1, 0, 1))]


def filled(nbytes: int, salt: int) -> np.ndarray:
    """Bytes that repeat with a period that divides no size of a piece."""
    return np.resize((np.arange(251) * 7 + salt).astype(np.uint8), nbytes)  # (nbytes,)


def every_size(world, expected_first: bool) -> int:
    """Rank 0 sends to each other rank in turn; the others post their receives before the messages come, or after."""
    sizes = sizes_of(world)
    if world.rank == 0:
        for peer in range(1, world.size):
            if expected_first:
                md.recv(np.empty(1), peer, world, tag=3)
            works = [md.isend(filled(nbytes, i), peer, world, tag=1) for i, nbytes in enumerate(sizes)]
            works.append(md.isend(np.ones(1), peer, world, tag=2))
            assert all(work.wait() for work in works)
        return len(sizes)
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
    return len(sizes)


@pytest.mark.parametrize("expected_first", [True, False], ids=["expected", "unexpected"])
@pytest.mark.parametrize("size", [2, 3])
def test_every_size(ranks, size, expected_first):
    counts = ranks(size).run(every_size, expected_first)
    assert len(set(counts)) == 1 and counts[0] >= 14


def every_size_reduced(world) -> None:
    """Each rank sends its right neighbour an array that the neighbour adds to its own, by both calls that can."""
    right, left = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    for nbytes in sizes_of(world):
        n = -(-nbytes // 8)
        mine, theirs = np.arange(n) + 1000 * world.rank, np.arange(n) + 1000 * left
        x = mine.copy()
        sendrecv(mine, right, x, left, world, np.add)
        assert np.array_equal(x, mine + theirs), f"sendrecv of {n} elements"
        work = md.isend(mine, right, world)
        recv_reduce(x, left, world, np.maximum)
        work.wait()
        assert np.array_equal(x, np.maximum(mine + theirs, theirs)), f"recv_reduce of {n} elements"


@pytest.mark.parametrize("size", [2, 3, 5])
def test_every_size_combined_as_it_arrives(ranks, size):
    ranks(size).run(every_size_reduced)


def every_dtype(world) -> None:
    """To and fro: the bits are the same, NaN's too. Three of the shapes hold one element or none."""
    for letter in DTYPES:
        for shape in [(), (0,), (1,), (3, 0), (5, 7), (2, 3, 1000)]:
            count = int(np.prod(shape)) * np.dtype(letter).itemsize
            content = filled(count, 5)
            sent = (content % 2 if letter == "?" else content).view(letter).reshape(shape)
            back = np.zeros(shape, letter)
            if world.rank == 0:
                md.send(sent, 1, world)
                md.recv(back, 1, world)
                assert back.tobytes() == sent.tobytes(), (letter, shape)
            else:
                md.recv(back, 0, world)
                md.send(back, 0, world)


def test_every_dtype_keeps_its_bits(ranks):
    ranks(2).run(every_dtype)


def crowd(world, messages: int, tags: int) -> None:
    """Each rank sends every other many messages; they are received last tag first, and by tag in their order."""
    rng = np.random.default_rng(3)
    sizes = rng.choice([0, 1, 100, 511, 513, 5000, 40_000], messages)  # elements
    others = [(world.rank + i) % world.size for i in range(1, world.size)]
    sends = [
        md.isend(np.full(n, 1000 * world.rank + i), peer, world, tag=i % tags)
        for i, n in enumerate(sizes)
        for peer in others
    ]
    received = {}
    for peer in others:
        for tag in reversed(range(tags)):
            for i in range(tag, messages, tags):
                box = np.full(sizes[i], -1)
                received[peer, i] = box, md.irecv(box, peer, world, tag=tag)
    for (peer, i), (box, work) in received.items():
        work.wait()
        assert (box == 1000 * peer + i).all(), f"message {i} from rank {peer}"
    for work in sends:
        work.wait()


@pytest.mark.parametrize(("size", "messages"), [(2, 200), (3, 60), pytest.param(5, 400, marks=pytest.mark.long)])
def test_many_messages_in_flight_between_every_two_ranks(ranks, size, messages):
    ranks(size).run(crowd, messages, 7)


def rings(world, rounds: int) -> np.ndarray:
    """Arrays of many sizes go round a ring, and once more in the other direction: all come home."""
    right, left = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    for nbytes in sizes_of(world):
        for to, source in ((right, left), (left, right)):
            x = filled(nbytes, world.rank)
            for _ in range(rounds * world.size):
                y = np.empty_like(x)
                ops = [md.P2POp(md.isend, x, to, world, 5), md.P2POp(md.irecv, y, source, world, 5)]
                for work in md.batch_isend_irecv(ops):
                    work.wait()
                x = y
            assert x.tobytes() == filled(nbytes, world.rank).tobytes(), nbytes


@pytest.mark.parametrize("size", [2, 3, pytest.param(5, marks=pytest.mark.long)])
def test_rings_bring_every_array_home(ranks, size):
    ranks(size).run(rings, 1)


def over_2_gib(world, collective: bool) -> None:
    """A length that no 32-bit int holds. The ends of the array, and what is around 2 GiB, differ from the rest."""
    places, n = [0, 1, 2**31 - 1, 2**31, 2**31 + 4], 2**31 + 5
    x = np.zeros(n, np.uint8)
    if world.rank == 0:
        x[places] = [1, 2, 3, 4, 5]
    if collective:
        md.broadcast(x, 0, world)
    elif world.rank == 0:
        md.send(x, 1, world)
    else:
        md.recv(x, 0, world)
    assert x[places].tolist() == [1, 2, 3, 4, 5]
    assert int(np.count_nonzero(x)) == 5


@pytest.mark.long
@pytest.mark.parametrize("collective", [False, True], ids=["message", "broadcast"])
def test_more_than_2_gib(ranks, collective):
    ranks(2).run(over_2_gib, collective)
