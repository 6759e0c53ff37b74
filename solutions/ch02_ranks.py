"""Chapter 2: ranks, messages, and how not to wait for each other for ever.

Every function here is one rank's part; all ranks of ``group`` call it together. You may use what is imported below,
NumPy, and the functions that you write here. ``minidist check 2`` judges, ``minidist check --hint 2.3`` helps.
"""

import numpy as np

from minidist import ProcessGroup, irecv, isend, recv, send, sendrecv


def exchange(outgoing: np.ndarray, incoming: np.ndarray, group: ProcessGroup) -> None:
    """2.1  Everybody sends to the right and receives from the left, by ``send`` and ``recv`` alone.

    The right neighbour of a rank is rank + 1, that of the last rank is 0. No other call may be used, and the ranks must
    not count on the queues: a ``send`` may have to wait until its receiver takes the message.

    Args:
        outgoing: for the right neighbour; not changed.
        incoming: an array of the same shape and dtype, overwritten with what the left neighbour sends.
        group: the ranks, N of them, N being even, odd or 1. A rank that is alone copies.

    Cost: one message from each rank; and if no queue held anything, 3 steps at most, however many ranks there are.
    """
    # >>> 2.1
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    if group.size == 1:
        incoming[...] = outgoing
    elif group.rank % 2 == 0:
        send(outgoing, right, group)
        recv(incoming, left, group)
    else:
        recv(incoming, left, group)
        send(outgoing, right, group)
    # <<<


def ring_shift(array: np.ndarray, places: int, group: ProcessGroup) -> np.ndarray:
    """2.2  Pass the ranks' arrays on by some places: what was on rank r is then on rank r + places, going round.

    Args:
        array: of the same shape and dtype on all ranks; not changed.
        places: any whole number, the same on all ranks: 0, negative, or larger than N too.
        group: the ranks, N of them.

    Returns:
        A new array, even where the rank gets its own back.

    Cost: one message from each rank, straight to where it belongs, all in one step; none if every array stays.
    """
    # >>> 2.2
    if places % group.size == 0:
        return array.copy()
    arrived = np.empty_like(array)
    sendrecv(array, (group.rank + places) % group.size, arrived, (group.rank - places) % group.size, group)
    return arrived
    # <<<


def barrier(group: ProcessGroup) -> None:
    """2.3  Return when every rank of the group has called it, and not before.

    By dissemination: in each round a rank tells one to its right that it, and all that it has heard of, are here, and
    hears the same from one to its left; each round reaches twice as far as the one before. A message says it by coming:
    it is empty.

    Args:
        group: the ranks, N of them, any number.

    Cost: ceil(log2 N) rounds, in each of which every rank sends one message without any element.
    """
    # >>> 2.3
    nothing, arrived = np.empty(0), np.empty(0)
    distance = 1
    while distance < group.size:
        right, left = (group.rank + distance) % group.size, (group.rank - distance) % group.size
        sendrecv(nothing, right, arrived, left, group)
        distance *= 2
    # <<<


# 2.4  Worksheet: which of these programs deadlock?
#
# Each runs on 4 ranks. From each rank to each other there is a queue of QUEUE bytes. A message takes HEADER bytes
# in it, and then its payload, rounded up to whole cache lines of LINE bytes. A send returns when the last byte is in
# the queue; while a rank waits in a send, nothing is taken out of the queues that lead to it.

QUEUE, HEADER, LINE = 65_536, 192, 64


def program_a(world: ProcessGroup, n: int) -> None:
    """Over to the one opposite: even ranks send first, odd ranks receive first."""
    mine, theirs = np.zeros(n), np.zeros(n)  # 8 bytes an element
    opposite = (world.rank + 2) % 4
    if world.rank % 2 == 0:
        send(mine, opposite, world)
        recv(theirs, opposite, world)
    else:
        recv(theirs, opposite, world)
        send(mine, opposite, world)


def program_b(world: ProcessGroup, n: int) -> None:
    """To the right, round the ring: rank 0 receives first, all others send first."""
    mine, theirs = np.zeros(n), np.zeros(n)
    right, left = (world.rank + 1) % 4, (world.rank - 1) % 4
    if world.rank == 0:
        recv(theirs, left, world)
        send(mine, right, world)
    else:
        send(mine, right, world)
        recv(theirs, left, world)


def program_c(world: ProcessGroup, n: int) -> None:
    """To the right and to the left, then from there: everybody sends both first."""
    mine, from_left, from_right = np.zeros(n), np.zeros(n), np.zeros(n)
    right, left = (world.rank + 1) % 4, (world.rank - 1) % 4
    send(mine, right, world)
    send(mine, left, world)
    recv(from_left, left, world)
    recv(from_right, right, world)


def program_d(world: ProcessGroup, n: int) -> None:
    """Twice to the right, then twice from the left."""
    mine, first, second = np.zeros(n), np.zeros(n), np.zeros(n)
    right, left = (world.rank + 1) % 4, (world.rank - 1) % 4
    send(mine, right, world)
    send(mine, right, world)
    recv(first, left, world)
    recv(second, left, world)


def deadlocks(n: int) -> set[str]:
    """Which of the four programs deadlock with arrays of ``n`` elements, n >= 1: their letters, such as {"a", "b"}.

    It is to be found by thinking, and not by running them.
    """
    # >>> 2.4
    message = HEADER + -(-8 * n // LINE) * LINE  # bytes in the queue
    found = {"a"}  # the two odd ranks are opposite each other, and both receive first
    if message > QUEUE:
        found.add("c")  # to the left goes through another queue
    if 2 * message > QUEUE:
        found.add("d")
    return found  # b never: rank 0 receives, so that rank 3 can go on, then 2, then 1
    # <<<


def pass_on(blocks: list[np.ndarray], factor: float, group: ProcessGroup) -> list[np.ndarray]:
    """2.5  Debugging: everybody gets its left neighbour's blocks, times ``factor``.

    There are two buffers: one is filled with the next block while the other is on its way. The people who wrote this
    tested it with blocks of a few hundred elements, and all was well. In production, with blocks of some megabytes,
    numbers are wrong in the middle of a block; nothing fails. Find out why, and mend it.

    Args:
        blocks: at least one float64 array, all of one shape, as many on every rank; not changed.
        factor: what each block is multiplied by before it is sent.
        group: the ranks, N of them. A rank that is alone gets its own blocks.

    Returns:
        The left neighbour's blocks times ``factor``, new arrays.

    Cost: one message for each block, two of them under way at a time. Beside what is returned there is room for two
    blocks.
    """
    if group.size == 1:
        return [factor * block for block in blocks]
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    arrived = [np.empty_like(block) for block in blocks]
    receiving = [irecv(block, left, group) for block in arrived]
    buffers = [np.empty_like(blocks[0]), np.empty_like(blocks[0])]
    sending = []
    for i, block in enumerate(blocks):
        buffer = buffers[i % 2]
        # >>> 2.5
        if i >= 2:
            sending[i - 2].wait()  # the block before last has left this buffer
        np.multiply(block, factor, out=buffer)
        sending.append(isend(buffer, right, group))
        # === given to the learner
        # np.multiply(block, factor, out=buffer)
        # if i >= 2:
        #     sending[i - 2].wait()  # the block before last has left this buffer
        # sending.append(isend(buffer, right, group))
        # <<<
    for work in sending + receiving:
        work.wait()
    return arrived
