"""Planted bugs of chapter 3."""

from minidist.course.authoring.mutants import WHOLE, Mutant

MUTANTS = [
    # 3.1 alpha-beta
    Mutant("3.1", "the ring sends the whole buffer in each step", "beta * nbytes / ranks)", "beta * nbytes)"),
    Mutant(
        "3.1", "half of the ring is forgotten", "2 * (ranks - 1) * (alpha + beta * nbytes / ranks)", "ranks * alpha"
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
    Mutant("3.2", "the source is taken to be rank 0", "place = (group.rank - src) % group.size", "place = group.rank"),
    Mutant("3.2", "the last step is left out", "while distance < group.size:", "while 2 * distance <= group.size:"),
    Mutant(
        "3.2",
        "sends to a place beyond the last",
        "place < distance and place + distance < group.size",
        "place < distance",
    ),
    Mutant(
        "3.2",
        "the source sends to everybody",
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
        "a chain: each passes it to the next",
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
    Mutant("3.3", "adds, whatever the operation", "combine(flat, arrived, out=flat)", "flat += arrived"),
    Mutant("3.3", "rank 0 receives over its own part", "recv(arrived, rank, group)", "recv(flat, rank, group)"),
    Mutant("3.3", "the combination goes nowhere", "combine(flat, arrived, out=flat)", "combine(flat, arrived)"),
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
        "everybody sends to everybody",
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
    Mutant("3.4", "one step too many: parts are counted twice", "range(size - 1)", "range(size)"),
    Mutant("3.4", "overwrites instead of combining", "combine(mine, arrived, out=mine)", "mine[:] = arrived"),
    Mutant("3.4", "adds, whatever the operation", "combine(mine, arrived, out=mine)", "mine += arrived"),
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
        "a send before the receive: deadlocks with large chunks",
        "sendrecv(outgoing, right, arrived, left, group)",
        "send(outgoing, right, group); recv(arrived, left, group)",
    ),
    Mutant(
        "3.4",
        "the sum is left in a new array",
        "combine(mine, arrived, out=mine)",
        "chunks[(rank - 2 - step) % size] = combine(mine, arrived)",
    ),
    Mutant(
        "3.4",
        "a ring that is none: straight to the owner",
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
        "works on a copy of the whole buffer",
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
    Mutant("3.4", "receives into float64, whatever the chunks are", "np.empty_like(mine)", "np.empty(len(mine))"),
    # 3.5 all_gather_ring
    Mutant(
        "3.5",
        "puts new arrays into the list",
        "sendrecv(outgoing, right, incoming, left, group)",
        "new = incoming.copy(); sendrecv(outgoing, right, new, left, group); chunks[(rank - 1 - step) % size] = new",
    ),
    Mutant(
        "3.5",
        "passes its own chunk on in every step",
        "outgoing = chunks[(rank - step) % size]",
        "outgoing = chunks[rank]",
    ),
    Mutant("3.5", "one step too few", "range(size - 1)", "range(size - 2)"),
    Mutant("3.5", "one step too many", "range(size - 1)", "range(size)"),
    Mutant(
        "3.5",
        "the wrong way round",
        "sendrecv(outgoing, right, incoming, left, group)",
        "sendrecv(outgoing, left, incoming, right, group)",
    ),
    Mutant(
        "3.5",
        "a send before the receive: deadlocks with large chunks",
        "sendrecv(outgoing, right, incoming, left, group)",
        "send(outgoing, right, group); recv(incoming, left, group)",
    ),
    Mutant(
        "3.5",
        "a ring that is none: everybody to everybody",
        WHOLE,
        """
        size, rank = group.size, group.rank
        for distance in range(1, size):
            to, source = (rank + distance) % size, (rank - distance) % size
            sendrecv(chunks[rank], to, chunks[source], source, group)
        """,
    ),
    # 3.6 all_reduce_ring
    Mutant("3.6", "the reduce-scatter is left out", "reduce_scatter_ring(chunks, combine, group)", "pass"),
    Mutant("3.6", "the all-gather is left out", "all_gather_ring(chunks, group)", "pass"),
    Mutant("3.6", "reduces twice", "all_gather_ring(chunks, group)", "reduce_scatter_ring(chunks, combine, group)"),
    Mutant(
        "3.6",
        "the sum ends in a copy, which nobody sees",
        "chunks_of(flat, group.size)",
        "chunks_of(flat.copy(), group.size)",
    ),
    Mutant("3.6", "adds, whatever the operation", "(chunks, combine, group)", "(chunks, np.add, group)"),
    Mutant("3.6", "by way of rank 0", WHOLE, "all_reduce_naive(flat, combine, group)"),
    Mutant(
        "3.6",
        "the rest that does not divide is dropped",
        "chunks_of(flat, group.size)",
        "list(flat[: flat.size // group.size * group.size].reshape(group.size, -1))",
    ),
    # 3.7 all_to_all_pairwise
    Mutant("3.7", "its own piece is forgotten", "incoming[rank][:] = outgoing[rank]", "pass"),
    Mutant("3.7", "sends to the right what belongs to the left", "sendrecv(outgoing[right]", "sendrecv(outgoing[left]"),
    Mutant("3.7", "the last rank is forgotten", "range(1, size)", "range(1, size - 1)"),
    Mutant(
        "3.7",
        "always to the same neighbour",
        "right, left = (rank + step) % size, (rank - step) % size",
        "right, left = (rank + 1) % size, (rank - 1) % size",
    ),
    Mutant(
        "3.7",
        "everything to everybody",
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
        "its own piece goes into the list, not into place",
        "incoming[rank][:] = outgoing[rank]",
        "incoming[rank] = outgoing[rank]",
    ),
    # 3.8 global_max
    Mutant("3.8", "the result goes round for ever", "group.rank != group.size - 2", "True"),
    Mutant(
        "3.8",
        "rank 0 does not get the result",
        "if group.rank < group.size - 1:",
        "if 0 < group.rank < group.size - 1:",
    ),
]
