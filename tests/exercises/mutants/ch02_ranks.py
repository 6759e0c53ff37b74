"""Mutants of chapter 2."""

from minidist.course.authoring.mutants import WHOLE, Mutant

MUTANTS = [
    # 2.1 pass_on
    Mutant(
        "2.1",
        "the factor of the first test",
        """
        np.multiply(block, factor, out=buffer)
        sending.append(isend(buffer, right, group))
        """,
        """
        np.multiply(block, 3.0, out=buffer)
        sending.append(isend(buffer, right, group))
        """,
        kind="edge",
    ),
    Mutant(
        "2.1",
        "flat blocks only",
        """
        np.multiply(block, factor, out=buffer)
        sending.append(isend(buffer, right, group))
        """,
        """
        buffer[: len(block)] = [factor * float(number) for number in block]
        sending.append(isend(buffer, right, group))
        """,
        kind="edge",
    ),
    Mutant(
        "2.1",
        "the factor of the first call",
        """
        np.multiply(block, factor, out=buffer)
        sending.append(isend(buffer, right, group))
        """,
        """
        np.multiply(block, vars(pass_on).setdefault("factor", factor), out=buffer)
        sending.append(isend(buffer, right, group))
        """,
        kind="second call",
    ),
    Mutant(
        "2.1",
        "scales the caller's blocks",
        """
        np.multiply(block, factor, out=buffer)
        sending.append(isend(buffer, right, group))
        """,
        """
        block *= factor
        buffer[...] = block
        sending.append(isend(buffer, right, group))
        """,
        kind="lent",
    ),
    Mutant(
        "2.1",
        "the last sends are not waited for",
        """
        np.multiply(block, factor, out=buffer)
        sending.append(isend(buffer, right, group))
        """,
        """
        np.multiply(block, factor, out=buffer)
        sending.append(isend(buffer, right, group))
        if i == len(blocks) - 1:
            del sending[-2:]
        """,
        kind="lent",
    ),
    Mutant(
        "2.1",
        "waits only at the end",
        """
        if i >= 2:
            sending[i - 2].wait()  # the block before last has left this buffer
        """,
        "",
    ),
    Mutant(
        "2.1",
        "one buffer for all blocks, filled before it is free",
        """
        if i >= 2:
            sending[i - 2].wait()  # the block before last has left this buffer
        np.multiply(block, factor, out=buffer)
        """,
        """
        np.multiply(block, factor, out=buffers[0])
        if i >= 1:
            sending[i - 1].wait()
        """,
    ),
    Mutant(
        "2.1",
        "waits for every block at once",
        """
        sending.append(isend(buffer, right, group))
        """,
        """
        sending.append(isend(buffer, right, group))
        sending[-1].wait()
        """,
    ),
    Mutant(
        "2.1",
        "copies every block",
        """
        if i >= 2:
            sending[i - 2].wait()  # the block before last has left this buffer
        np.multiply(block, factor, out=buffer)
        """,
        "buffer = block * factor",
    ),
    # 2.2 exchange
    Mutant("2.2", "all send first: deadlock with large messages", "elif group.rank % 2 == 0:", "elif True:"),
    Mutant("2.2", "all receive first", "elif group.rank % 2 == 0:", "elif False:"),
    Mutant(
        "2.2",
        "left and right swapped",
        "right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size",
        "left, right = (group.rank + 1) % group.size, (group.rank - 1) % group.size",
    ),
    Mutant("2.2", "a single rank sends to itself", "if group.size == 1:", "if group.size == 0:"),
    Mutant("2.2", "the symmetry is broken in one place only", "group.rank % 2 == 0", "group.rank > 0"),
    Mutant(
        "2.2",
        "pairs swap: only for even numbers of ranks",
        WHOLE,
        """
        other = group.rank ^ 1
        if group.rank < other:
            send(outgoing, other, group)
            recv(incoming, other, group)
        else:
            recv(incoming, other, group)
            send(outgoing, other, group)
        """,
    ),
    Mutant(
        "2.2",
        "small messages rely on the queues",
        "elif group.rank % 2 == 0:",
        "elif group.rank % 2 == 0 or outgoing.nbytes < 10_000:",
    ),
    Mutant(
        "2.2",
        "sendrecv, which is not allowed",
        WHOLE,
        """
        right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
        if group.size == 1:
            incoming[:] = outgoing
        else:
            sendrecv(outgoing, right, incoming, left, group)
        """,
    ),
    Mutant(
        "2.2",
        "receives float64, then copies",
        """
        recv(incoming, left, group)
        send(outgoing, right, group)
        """,
        """
        new = np.empty(incoming.shape)
        recv(new, left, group)
        incoming[...] = new
        send(outgoing, right, group)
        """,
        kind="dtype",
    ),
    Mutant(
        "2.2",
        "keeps the neighbours of the first group",
        "right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size",
        'right, left = vars(exchange).setdefault("kept", ((group.rank + 1) % group.size, '
        "(group.rank - 1) % group.size))",
        kind="second call",
    ),
    Mutant(
        "2.2",
        "a single rank copies the first array again",
        "incoming[...] = outgoing",
        "incoming[...] = vars(exchange).setdefault((outgoing.shape, outgoing.dtype), outgoing)",
        kind="lent",
    ),
    # 2.3 ring_shift
    Mutant("2.3", "receives float64", "np.empty_like(array)", "np.empty(array.shape)", kind="dtype"),
    Mutant("2.3", "its own array as float32", "return array.copy()", "return array.astype(np.float32)", kind="dtype"),
    Mutant(
        "2.3",
        "rounds to float32",
        "return arrived",
        "return arrived.astype(np.float32).astype(arrived.dtype)",
        kind="dtype",
    ),
    Mutant(
        "2.3",
        "returns one buffer for each shape and dtype",
        "arrived = np.empty_like(array)",
        "arrived = vars(ring_shift).setdefault((array.shape, array.dtype), np.empty_like(array))",
        kind="second call",
    ),
    Mutant(
        "2.3",
        "keeps the copy of its own array",
        "return array.copy()",
        "return vars(ring_shift).setdefault((array.shape, array.dtype), array.copy())",
        kind="second call",
    ),
    Mutant("2.3", "returns a view of the argument", "return array.copy()", "return array[...]", kind="lent"),
    Mutant(
        "2.3",
        "the send is never waited for",
        "sendrecv(array, (group.rank + places) % group.size, arrived, (group.rank - places) % group.size, group)",
        "isend(array, (group.rank + places) % group.size, group); "
        "recv(arrived, (group.rank - places) % group.size, group)",
        kind="lent",
    ),
    Mutant(
        "2.3",
        "a hundred places at most",
        "if places % group.size == 0:",
        "if places % group.size == 0 or abs(places) > 100:",
        kind="edge",
    ),
    Mutant(
        "2.3",
        "flat arrays only",
        "arrived = np.empty_like(array)",
        "array = array.ravel(); arrived = np.empty_like(array)",
        kind="edge",
    ),
    Mutant("2.3", "sends to the left", "(group.rank + places)", "(group.rank - places)"),
    Mutant(
        "2.3",
        "the opposite direction",
        "(group.rank + places) % group.size, arrived, (group.rank - places) % group.size",
        "(group.rank - places) % group.size, arrived, (group.rank + places) % group.size",
    ),
    Mutant("2.3", "no message for 0 places only", "if places % group.size == 0:", "if places == 0:"),
    Mutant("2.3", "returns the argument itself", "return array.copy()", "return array"),
    Mutant("2.3", "receives into the argument", "np.empty_like(array)", "array"),
    Mutant(
        "2.3",
        "one place at a time",
        WHOLE,
        """
        array = array.copy()
        for _ in range(places % group.size):
            arrived = np.empty_like(array)
            sendrecv(array, (group.rank + 1) % group.size, arrived, (group.rank - 1) % group.size, group)
            array = arrived
        return array
        """,
    ),
    Mutant(
        "2.3",
        "send before receive: deadlock with large arrays",
        "sendrecv(array, (group.rank + places) % group.size, arrived, (group.rank - places) % group.size, group)",
        "send(array, (group.rank + places) % group.size, group); "
        "recv(arrived, (group.rank - places) % group.size, group)",
    ),
    # 2.4 deadlocks
    Mutant(
        "2.4",
        "adds to a set of all calls",
        'found = {"a"}',
        'found = vars(deadlocks).setdefault("found", {"a"})',
        kind="second call",
    ),
    Mutant(
        "2.4",
        "a message that just fits its queue waits",
        "if 2 * message > QUEUE:",
        "if 2 * message >= QUEUE:",
        kind="edge",
    ),
    Mutant("2.4", "takes a for safe, since odd ranks receive first", 'found = {"a"}', "found = set()"),
    Mutant(
        "2.4",
        "takes b for unsafe, since only rank 0 receives first",
        'found = {"a"}',
        'found = {"a", "b"} if message > QUEUE else {"a"}',
    ),
    Mutant("2.4", "both messages of c share a queue", "if message > QUEUE:", "if 2 * message > QUEUE:"),
    Mutant("2.4", "each message of d has a queue", "if 2 * message > QUEUE:", "if message > QUEUE:"),
    Mutant("2.4", "the header is not counted", "message = HEADER +", "message ="),
    Mutant("2.4", "elements taken as bytes", "-8 * n // LINE", "-n // LINE"),
    # 2.5 barrier
    Mutant("2.5", "one round too few", "while distance < group.size:", "while 2 * distance < group.size:"),
    Mutant("2.5", "one round too many", "while distance < group.size:", "while distance < 2 * group.size - 1:"),
    Mutant(
        "2.5",
        "a payload that no rank needs",
        "nothing, arrived = np.empty(0), np.empty(0)",
        "nothing, arrived = np.empty(1), np.empty(1)",
    ),
    Mutant("2.5", "the distance grows by one instead of doubling", "distance *= 2", "distance += 1"),
    Mutant("2.5", "a pause instead of messages", WHOLE, "import time; time.sleep(0.01)"),
    Mutant(
        "2.5",
        "the same rounds, but always to the right neighbour",
        "right, left = (group.rank + distance) % group.size, (group.rank - distance) % group.size",
        "right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size",
    ),
    Mutant(
        "2.5",
        "sends but does not wait",
        WHOLE,
        """
        distance = 1
        while distance < group.size:
            isend(np.empty(0), (group.rank + distance) % group.size, group)
            irecv(np.empty(0), (group.rank - distance) % group.size, group)
            distance *= 2
        """,
    ),
    Mutant(
        "2.5",
        "through rank 0",
        WHOLE,
        """
        nothing = np.empty(0)
        if group.rank == 0:
            for rank in range(1, group.size):
                recv(nothing, rank, group)
            for rank in range(1, group.size):
                send(nothing, rank, group)
        else:
            send(nothing, 0, group)
            recv(nothing, 0, group)
        """,
    ),
    Mutant("2.5", "calls the library's barrier", WHOLE, "import minidist; minidist.barrier(group)"),
    Mutant(
        "2.5",
        "the size of the first group",
        "while distance < group.size:",
        'while distance < vars(barrier).setdefault("size", group.size):',
        kind="second call",
    ),
    Mutant(
        "2.5",
        "only the first call waits",
        "distance = 1",
        'distance = vars(barrier).get("next", 1); vars(barrier)["next"] = group.size',
        kind="second call",
    ),
    Mutant(
        "2.5",
        "the sends are never waited for",
        "sendrecv(nothing, right, arrived, left, group)",
        "isend(nothing, right, group); recv(arrived, left, group)",
        kind="lent",
    ),
    Mutant(
        "2.5",
        "three rounds at most",
        "while distance < group.size:",
        "while distance < min(group.size, 8):",
        kind="edge",
    ),
]
