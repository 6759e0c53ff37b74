"""Chapter 2: ranks, messages, and how to avoid waiting for each other forever.

Every function here is the part of one rank; all ranks of ``group`` call it together. You may use what is imported
below, NumPy, and the functions that you write here. ``minidist check 2`` grades this file,
``minidist check --hint 2.5`` gives a hint.
"""

import numpy as np

from minidist import ProcessGroup, irecv, isend, recv, send, sendrecv


def pass_on(blocks: list[np.ndarray], factor: float, group: ProcessGroup) -> list[np.ndarray]:
    """2.1  Debugging: every rank gets its left neighbour's blocks, times ``factor``.

    There are two buffers: one is filled with the next block while the other is in flight. The authors tested this with
    blocks of a few hundred elements, and it worked. In production, with blocks of several megabytes, numbers are wrong
    in the middle of a block, and nothing fails. Find out why, and fix it.

    Args:
        blocks: at least one float64 array, all of the same shape, the same number on every rank; not changed.
        factor: each block is multiplied by it before it is sent.
        group: N ranks. A single rank gets its own blocks.

    Returns:
        The left neighbour's blocks times ``factor``, in new arrays.

    Cost: one message per block, two of them in flight at a time. Memory for two blocks besides the result.
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
        # >>> 2.1
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


def exchange(outgoing: np.ndarray, incoming: np.ndarray, group: ProcessGroup) -> None:
    """2.2  Every rank sends to the right and receives from the left, with ``send`` and ``recv`` only.

    The right neighbour of a rank is rank + 1; that of the last rank is 0. Use no other call, and do not rely on the
    queues: a ``send`` may have to wait until its receiver takes the message.

    Args:
        outgoing: the array for the right neighbour; not changed.
        incoming: of the same shape and dtype, overwritten with what the left neighbour sends.
        group: N ranks, N even, odd or 1. A single rank copies.

    Cost: one message per rank. With queues that hold nothing, at most 3 steps for any number of ranks.
    """
    # >>> 2.2
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
    """2.3  Shift the ranks' arrays around the ring: what was on rank r moves to rank (r + places) % N.

    Args:
        array: the same shape and dtype on all ranks; not changed.
        places: any integer, the same on all ranks; also 0, negative, or larger than N.
        group: N ranks.

    Returns:
        A new array, even if a rank keeps its own.

    Cost: one message per rank, directly to its destination, all in one step; no message if every array stays.
    """
    # >>> 2.3
    if places % group.size == 0:
        return array.copy()
    arrived = np.empty_like(array)
    sendrecv(array, (group.rank + places) % group.size, arrived, (group.rank - places) % group.size, group)
    return arrived
    # <<<


# 2.4  Worksheet: which of these programs deadlock?
#
# Each program runs on 4 ranks. There is a queue of QUEUE bytes from each rank to each other. A message takes HEADER
# bytes in it plus its payload, rounded up to whole cache lines of LINE bytes. A send returns when its last byte is in
# the queue. While a rank waits in a send, it takes nothing out of its incoming queues.

QUEUE, HEADER, LINE = 65_536, 192, 64


def program_a(world: ProcessGroup, n: int) -> None:
    """Exchange with the opposite rank: even ranks send first, odd ranks receive first."""
    mine, theirs = np.zeros(n), np.zeros(n)  # 8 bytes per element
    opposite = (world.rank + 2) % 4
    if world.rank % 2 == 0:
        send(mine, opposite, world)
        recv(theirs, opposite, world)
    else:
        recv(theirs, opposite, world)
        send(mine, opposite, world)


def program_b(world: ProcessGroup, n: int) -> None:
    """To the right around the ring: rank 0 receives first, all others send first."""
    mine, theirs = np.zeros(n), np.zeros(n)
    right, left = (world.rank + 1) % 4, (world.rank - 1) % 4
    if world.rank == 0:
        recv(theirs, left, world)
        send(mine, right, world)
    else:
        send(mine, right, world)
        recv(theirs, left, world)


def program_c(world: ProcessGroup, n: int) -> None:
    """Both ways around the ring: every rank sends to the right and to the left, then receives from both."""
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
    """The letters of the programs that deadlock with arrays of ``n`` elements, n >= 1, such as {"a", "b"}.

    Find out by thinking, not by running them.
    """
    # >>> 2.4
    message = HEADER + -(-8 * n // LINE) * LINE  # bytes in the queue
    found = {"a"}  # the two odd ranks are opposite each other, and both receive first
    if message > QUEUE:
        found.add("c")  # the messages to the left use another queue
    if 2 * message > QUEUE:
        found.add("d")
    return found  # never b: rank 0 receives, so rank 3 can proceed, then 2, then 1
    # <<<


def barrier(group: ProcessGroup) -> None:
    """2.5  Return when every rank of the group has called it, and not before.

    This is a dissemination barrier: in each round a rank tells one rank to its right that it has arrived, and so has
    every rank that it has heard of; it hears the same from one rank to its left. Each round reaches twice as far as the
    previous one. The messages are empty: their arrival is the information.

    Args:
        group: N ranks, for any N.

    Cost: ceil(log2 N) rounds; in each, every rank sends one message without elements.
    """
    # >>> 2.5
    nothing, arrived = np.empty(0), np.empty(0)
    distance = 1
    while distance < group.size:
        right, left = (group.rank + distance) % group.size, (group.rank - distance) % group.size
        sendrecv(nothing, right, arrived, left, group)
        distance *= 2
    # <<<
