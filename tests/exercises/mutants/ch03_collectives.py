"""Mutants of chapter 3."""

from minidist.course.authoring.mutants import WHOLE, Mutant

MUTANTS = [
    # 3.1 alpha-beta
    Mutant("3.1", "the ring sends the whole buffer in each step", "beta * nbytes / ranks)", "beta * nbytes)"),
    Mutant(
        "3.1",
        "the ring's bytes and half of its steps are not counted",
        "2 * (ranks - 1) * (alpha + beta * nbytes / ranks)",
        "ranks * alpha",
    ),
    Mutant(
        "3.1",
        "the tree's depth is rounded down",
        """
        steps = 2 * int(np.ceil(np.log2(ranks)))
        return steps * (alpha + beta * nbytes)
        """,
        """
        steps = 2 * int(np.log2(ranks))
        return steps * (alpha + beta * nbytes)
        """,
    ),
    Mutant(
        "3.1",
        "the crossover in elements of 4 bytes",
        "return (ring_steps - tree_steps)",
        "return 0.25 * (ring_steps - tree_steps)",
    ),
    # 3.2 broadcast_tree
    Mutant("3.2", "takes rank 0 for the source", "place = (group.rank - src) % group.size", "place = group.rank"),
    Mutant("3.2", "one step too few", "while distance < group.size:", "while 2 * distance <= group.size:"),
    Mutant(
        "3.2",
        "sends to a place beyond the last",
        "place < distance and place + distance < group.size",
        "place < distance",
    ),
    Mutant(
        "3.2",
        "the source sends to every rank",
        WHOLE,
        """
        if group.rank == src:
            for rank in range(group.size):
                if rank != src:
                    send(flat, rank, group)
        else:
            recv(flat, src, group)
        """,
    ),
    Mutant(
        "3.2",
        "a chain: each rank sends it to the next",
        WHOLE,
        """
        place = (group.rank - src) % group.size
        if place > 0:
            recv(flat, (group.rank - 1) % group.size, group)
        if place < group.size - 1:
            send(flat, (group.rank + 1) % group.size, group)
        """,
    ),
    # 3.3 all_reduce_naive
    Mutant("3.3", "always adds", "combine(flat, arrived, out=flat)", "flat += arrived"),
    Mutant("3.3", "rank 0 overwrites its own part", "recv(arrived, rank, group)", "recv(flat, rank, group)"),
    Mutant("3.3", "the combination is not stored", "combine(flat, arrived, out=flat)", "combine(flat, arrived)"),
    Mutant(
        "3.3",
        "the result is not sent back",
        """
        for rank in range(1, group.size):
            send(flat, rank, group)
        """,
        "",
    ),
    Mutant(
        "3.3",
        "every rank sends to every rank",
        WHOLE,
        """
        mine, arrived = flat.copy(), np.empty_like(flat)
        for step in range(1, group.size):
            right, left = (group.rank + step) % group.size, (group.rank - step) % group.size
            sendrecv(mine, right, arrived, left, group)
            combine(flat, arrived, out=flat)
        """,
    ),
    # 3.4 reduce_scatter_ring
    Mutant("3.4", "one step too few", "range(size - 1)", "range(size - 2)"),
    Mutant("3.4", "one step too many: parts count twice", "range(size - 1)", "range(size)"),
    Mutant("3.4", "overwrites instead of combining", "combine(mine, arrived, out=mine)", "mine[:] = arrived"),
    Mutant("3.4", "always adds", "combine(mine, arrived, out=mine)", "mine += arrived"),
    Mutant(
        "3.4",
        "each chunk ends one rank too early",
        """
        outgoing = chunks[(rank - 1 - step) % size]
        mine = chunks[(rank - 2 - step) % size]
        """,
        """
        outgoing = chunks[(rank - step) % size]
        mine = chunks[(rank - 1 - step) % size]
        """,
    ),
    Mutant(
        "3.4",
        "send before receive: deadlock with large chunks",
        "sendrecv(outgoing, right, arrived, left, group)",
        "send(outgoing, right, group); recv(arrived, left, group)",
    ),
    Mutant(
        "3.4",
        "the sum ends in a new array",
        "combine(mine, arrived, out=mine)",
        "chunks[(rank - 2 - step) % size] = combine(mine, arrived)",
    ),
    Mutant(
        "3.4",
        "no ring: directly to the owner",
        WHOLE,
        """
        size, rank = group.size, group.rank
        arrived = np.empty_like(chunks[rank])
        for distance in range(1, size):
            to, source = (rank + distance) % size, (rank - distance) % size
            sendrecv(chunks[to], to, arrived, source, group)
            combine(chunks[rank], arrived, out=chunks[rank])
        """,
    ),
    Mutant(
        "3.4",
        "copies the whole buffer",
        WHOLE,
        """
        size, rank = group.size, group.rank
        copies = [chunk.copy() for chunk in chunks]
        for step in range(size - 1):
            mine = copies[(rank - 2 - step) % size]
            arrived = np.empty_like(mine)
            outgoing = copies[(rank - 1 - step) % size]
            sendrecv(outgoing, (rank + 1) % size, arrived, (rank - 1) % size, group)
            combine(mine, arrived, out=mine)
        chunks[rank][:] = copies[rank]
        """,
    ),
    Mutant("3.4", "always receives into float64", "np.empty_like(mine)", "np.empty(len(mine))"),
    # 3.5 all_gather_ring
    Mutant(
        "3.5",
        "puts new arrays into the list",
        "sendrecv(outgoing, right, incoming, left, group)",
        "new = incoming.copy(); sendrecv(outgoing, right, new, left, group); chunks[(rank - 1 - step) % size] = new",
    ),
    Mutant(
        "3.5",
        "sends its own chunk in every step",
        "outgoing = chunks[(rank - step) % size]",
        "outgoing = chunks[rank]",
    ),
    Mutant("3.5", "one step too few", "range(size - 1)", "range(size - 2)"),
    Mutant("3.5", "one step too many", "range(size - 1)", "range(size)"),
    Mutant(
        "3.5",
        "left and right swapped",
        "sendrecv(outgoing, right, incoming, left, group)",
        "sendrecv(outgoing, left, incoming, right, group)",
    ),
    Mutant(
        "3.5",
        "send before receive: deadlock with large chunks",
        "sendrecv(outgoing, right, incoming, left, group)",
        "send(outgoing, right, group); recv(incoming, left, group)",
    ),
    Mutant(
        "3.5",
        "no ring: every rank to every rank",
        WHOLE,
        """
        size, rank = group.size, group.rank
        for distance in range(1, size):
            to, source = (rank + distance) % size, (rank - distance) % size
            sendrecv(chunks[rank], to, chunks[source], source, group)
        """,
    ),
    # 3.6 all_reduce_ring
    Mutant("3.6", "no reduce-scatter", "reduce_scatter_ring(chunks, combine, group)", "pass"),
    Mutant("3.6", "no all-gather", "all_gather_ring(chunks, group)", "pass"),
    Mutant("3.6", "reduces twice", "all_gather_ring(chunks, group)", "reduce_scatter_ring(chunks, combine, group)"),
    Mutant(
        "3.6",
        "the sum ends in a copy",
        "chunks_of(flat, group.size)",
        "chunks_of(flat.copy(), group.size)",
    ),
    Mutant("3.6", "always adds", "(chunks, combine, group)", "(chunks, np.add, group)"),
    Mutant("3.6", "through rank 0", WHOLE, "all_reduce_naive(flat, combine, group)"),
    Mutant(
        "3.6",
        "drops the remainder that does not divide",
        "chunks_of(flat, group.size)",
        "list(flat[: flat.size // group.size * group.size].reshape(group.size, -1))",
    ),
    # 3.7 all_to_all_pairwise
    Mutant("3.7", "does not copy its own piece", "incoming[rank][:] = outgoing[rank]", "pass"),
    Mutant(
        "3.7", "sends the left neighbour's piece to the right", "sendrecv(outgoing[right]", "sendrecv(outgoing[left]"
    ),
    Mutant("3.7", "one step too few", "range(1, size)", "range(1, size - 1)"),
    Mutant(
        "3.7",
        "always to the same neighbour",
        "right, left = (rank + step) % size, (rank - step) % size",
        "right, left = (rank + 1) % size, (rank - 1) % size",
    ),
    Mutant(
        "3.7",
        "all pieces to all ranks",
        WHOLE,
        """
        size, rank = group.size, group.rank
        sizes = np.zeros((size, size), int)
        sizes[rank] = [len(piece) for piece in outgoing]
        for other in range(size):
            broadcast_tree(sizes[other], other, group)
        for source in range(size):
            everything = np.concatenate(outgoing) if source == rank else np.empty(sizes[source].sum())
            broadcast_tree(everything, source, group)
            start = sizes[source, :rank].sum()
            incoming[source][:] = everything[start : start + sizes[source, rank]]
        """,
    ),
    Mutant(
        "3.7",
        "its own piece goes into the list, not into the array",
        "incoming[rank][:] = outgoing[rank]",
        "incoming[rank] = outgoing[rank]",
    ),
    # 3.8 global_max
    Mutant("3.8", "the result travels on forever", "group.rank != group.size - 2", "True"),
    Mutant(
        "3.8",
        "rank 0 does not get the result",
        "if group.rank < group.size - 1:",
        "if 0 < group.rank < group.size - 1:",
    ),
]
