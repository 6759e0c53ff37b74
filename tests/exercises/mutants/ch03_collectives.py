"""Mutants of chapter 3."""

from minidist.course.authoring.mutants import WHOLE, Mutant

MUTANTS = [
    # 3.1 broadcast_tree
    Mutant("3.1", "takes rank 0 for the source", "place = (group.rank - src) % group.size", "place = group.rank"),
    Mutant("3.1", "one step too few", "while distance < group.size:", "while 2 * distance <= group.size:"),
    Mutant(
        "3.1",
        "sends to a place beyond the last",
        "place < distance and place + distance < group.size",
        "place < distance",
    ),
    Mutant(
        "3.1",
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
        "3.1",
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
    Mutant(
        "3.1",
        "receives float64",
        "recv(flat, (group.rank - distance) % group.size, group)",
        "new = np.empty(flat.shape); recv(new, (group.rank - distance) % group.size, group); flat[:] = new",
        kind="dtype",
    ),
    Mutant(
        "3.1",
        "sends float32",
        "recv(flat, (group.rank - distance) % group.size, group)",
        "recv(flat, (group.rank - distance) % group.size, group); flat[:] = flat.astype(np.float32)",
        kind="dtype",
    ),
    Mutant(
        "3.1",
        "counts places from the first call's source",
        "place = (group.rank - src) % group.size",
        'place = vars(broadcast_tree).setdefault("place", (group.rank - src) % group.size)',
        kind="second call",
    ),
    Mutant(
        "3.1",
        "the size of the first group",
        "while distance < group.size:",
        'while distance < vars(broadcast_tree).setdefault("size", group.size):',
        kind="second call",
    ),
    Mutant(
        "3.1",
        "sends the first call's array again",
        "send(flat, (group.rank + distance) % group.size, group)",
        "send(vars(broadcast_tree).setdefault(flat.shape, flat), (group.rank + distance) % group.size, group)",
        kind="lent",
    ),
    Mutant(
        "3.1",
        "the sends are never waited for",
        "send(flat, (group.rank + distance) % group.size, group)",
        "isend(flat, (group.rank + distance) % group.size, group)",
        kind="lent",
    ),
    Mutant(
        "3.1", "at most three steps", "while distance < group.size:", "while distance < min(group.size, 8):", "edge"
    ),
    # 3.2 all_reduce_naive
    Mutant("3.2", "receives into float64", "np.empty_like(flat)", "np.empty(flat.shape)", kind="dtype"),
    Mutant(
        "3.2",
        "adds in float32",
        "combine(flat, arrived, out=flat)",
        "flat[:] = np.float64(1) * combine(flat.astype(np.float32), arrived)",
        kind="dtype",
    ),
    Mutant(
        "3.2",
        "keeps the first call's buffer for all sizes",
        "arrived = np.empty_like(flat)",
        'arrived = vars(all_reduce_naive).setdefault("kept", np.empty_like(flat))',
        kind="second call",
    ),
    Mutant(
        "3.2",
        "adds to the sum of the call before",
        "arrived = np.empty_like(flat)",
        "arrived = np.empty_like(flat); flat += vars(all_reduce_naive).setdefault(flat.shape + (flat.dtype,), 0); "
        "vars(all_reduce_naive)[flat.shape + (flat.dtype,)] = 1",
        kind="second call",
    ),
    Mutant(
        "3.2",
        "the results are never waited for",
        """
        for rank in range(1, group.size):
            send(flat, rank, group)
        """,
        """
        for rank in range(1, group.size):
            isend(flat, rank, group)
        """,
        kind="lent",
    ),
    Mutant(
        "3.2",
        "a result for seven other ranks at most",
        """
        for rank in range(1, group.size):
            send(flat, rank, group)
        """,
        """
        for rank in range(1, min(group.size, 8)):
            send(flat, rank, group)
        """,
        kind="edge",
    ),
    Mutant("3.2", "always adds", "combine(flat, arrived, out=flat)", "flat += arrived"),
    Mutant("3.2", "rank 0 overwrites its own part", "recv(arrived, rank, group)", "recv(flat, rank, group)"),
    Mutant("3.2", "the combination is not stored", "combine(flat, arrived, out=flat)", "combine(flat, arrived)"),
    Mutant(
        "3.2",
        "the result is not sent back",
        """
        for rank in range(1, group.size):
            send(flat, rank, group)
        """,
        "",
    ),
    Mutant(
        "3.2",
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
    # 3.3 reduce_scatter_ring
    Mutant("3.3", "one step too few", "range(size - 1)", "range(size - 2)"),
    Mutant("3.3", "one step too many: parts count twice", "range(size - 1)", "range(size)"),
    Mutant("3.3", "overwrites instead of combining", "combine(mine, arrived, out=mine)", "mine[:] = arrived"),
    Mutant("3.3", "always adds", "combine(mine, arrived, out=mine)", "mine += arrived"),
    Mutant(
        "3.3",
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
        "3.3",
        "send before receive: deadlock with large chunks",
        "sendrecv(outgoing, right, arrived, left, group)",
        "send(outgoing, right, group); recv(arrived, left, group)",
    ),
    Mutant(
        "3.3",
        "the sum ends in a new array",
        "combine(mine, arrived, out=mine)",
        "chunks[(rank - 2 - step) % size] = combine(mine, arrived)",
    ),
    Mutant(
        "3.3",
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
        "3.3",
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
    Mutant("3.3", "always receives into float64", "np.empty_like(mine)", "np.empty(len(mine))", kind="dtype"),
    Mutant(
        "3.3",
        "adds in float32",
        "combine(mine, arrived, out=mine)",
        "mine[:] = combine(mine.astype(np.float32), arrived)",
        kind="dtype",
    ),
    Mutant(
        "3.3",
        "keeps the first call's buffer, with that call's size",
        "arrived = np.empty_like(mine)",
        'arrived = vars(reduce_scatter_ring).setdefault("kept", np.empty_like(mine))',
        kind="second call",
    ),
    Mutant(
        "3.3",
        "keeps the neighbours of the first group",
        "size, rank = group.size, group.rank",
        'size, rank = vars(reduce_scatter_ring).setdefault("place", (group.size, group.rank))',
        kind="second call",
    ),
    Mutant(
        "3.3",
        "the sends are never waited for",
        "sendrecv(outgoing, right, arrived, left, group)",
        "isend(outgoing, right, group); recv(arrived, left, group)",
        kind="lent",
    ),
    Mutant(
        "3.3",
        "empty chunks are skipped, by their receivers too",
        "sendrecv(outgoing, right, arrived, left, group)",
        "outgoing.size and mine.size and sendrecv(outgoing, right, arrived, left, group)",
        kind="edge",
    ),
    Mutant(
        "3.3",
        "a table of neighbours for at most 8 ranks",
        "right, left = (rank + 1) % size, (rank - 1) % size",
        "right, left = [*range(size)][(rank + 1) % min(size, 8)], [*range(size)][(rank - 1) % min(size, 8)]",
        kind="edge",
    ),
    # 3.4 all_gather_ring
    Mutant(
        "3.4",
        "puts new arrays into the list",
        "sendrecv(outgoing, right, incoming, left, group)",
        "new = incoming.copy(); sendrecv(outgoing, right, new, left, group); chunks[(rank - 1 - step) % size] = new",
    ),
    Mutant(
        "3.4",
        "sends its own chunk in every step",
        "outgoing = chunks[(rank - step) % size]",
        "outgoing = chunks[rank]",
    ),
    Mutant("3.4", "one step too few", "range(size - 1)", "range(size - 2)"),
    Mutant("3.4", "one step too many", "range(size - 1)", "range(size)"),
    Mutant(
        "3.4",
        "left and right swapped",
        "sendrecv(outgoing, right, incoming, left, group)",
        "sendrecv(outgoing, left, incoming, right, group)",
    ),
    Mutant(
        "3.4",
        "send before receive: deadlock with large chunks",
        "sendrecv(outgoing, right, incoming, left, group)",
        "send(outgoing, right, group); recv(incoming, left, group)",
    ),
    Mutant(
        "3.4",
        "no ring: every rank to every rank",
        WHOLE,
        """
        size, rank = group.size, group.rank
        for distance in range(1, size):
            to, source = (rank + distance) % size, (rank - distance) % size
            sendrecv(chunks[rank], to, chunks[source], source, group)
        """,
    ),
    Mutant(
        "3.4",
        "receives float64, then copies",
        "sendrecv(outgoing, right, incoming, left, group)",
        "new = np.empty(incoming.shape); sendrecv(outgoing, right, new, left, group); incoming[:] = new",
        kind="dtype",
    ),
    Mutant(
        "3.4",
        "keeps the neighbours of the first group",
        "size, rank = group.size, group.rank",
        'size, rank = vars(all_gather_ring).setdefault("place", (group.size, group.rank))',
        kind="second call",
    ),
    Mutant(
        "3.4",
        "sends the own chunk of the first call",
        "outgoing = chunks[(rank - step) % size]",
        "outgoing = chunks[(rank - step) % size]\n        if step == 0:\n"
        "            outgoing = vars(all_gather_ring).setdefault(outgoing.shape + (outgoing.dtype,), outgoing)",
        kind="lent",
    ),
    Mutant(
        "3.4",
        "the sends are never waited for",
        "sendrecv(outgoing, right, incoming, left, group)",
        "isend(outgoing, right, group); recv(incoming, left, group)",
        kind="lent",
    ),
    Mutant(
        "3.4",
        "all chunks as large as its own",
        "incoming = chunks[(rank - 1 - step) % size]",
        "incoming = chunks[(rank - 1 - step) % size][: len(chunks[rank])]",
        kind="edge",
    ),
    Mutant("3.4", "at most eight ranks", "range(size - 1)", "range(min(size, 8) - 1)", kind="edge"),
    # 3.5 all_reduce_ring
    Mutant(
        "3.5",
        "combines in float32",
        "chunks = chunks_of(flat, group.size)",
        "flat[:] = flat.astype(np.float32); chunks = chunks_of(flat, group.size)",
        kind="dtype",
    ),
    Mutant(
        "3.5",
        "a buffer of float64",
        WHOLE,
        """
        buffer = np.array(flat, np.float64)
        chunks = chunks_of(buffer, group.size)
        reduce_scatter_ring(chunks, combine, group)
        all_gather_ring(chunks, group)
        flat[:] = buffer
        """,
        kind="dtype",
    ),
    Mutant(
        "3.5",
        "keeps the chunks of the first array of that size",
        "chunks = chunks_of(flat, group.size)",
        "chunks = vars(all_reduce_ring).setdefault((flat.size, flat.dtype, group.size), chunks_of(flat, group.size))",
        kind="lent",
    ),
    Mutant(
        "3.5",
        "cuts into as many chunks as the first group has ranks",
        "chunks_of(flat, group.size)",
        'chunks_of(flat, vars(all_reduce_ring).setdefault("size", group.size))',
        kind="second call",
    ),
    Mutant(
        "3.5",
        "fewer elements than ranks: only the first chunk counts",
        "chunks = chunks_of(flat, group.size)",
        "chunks = chunks_of(flat[:0] if flat.size == 1 else flat, group.size)",
        kind="edge",
    ),
    Mutant("3.5", "no reduce-scatter", "reduce_scatter_ring(chunks, combine, group)", "pass"),
    Mutant("3.5", "no all-gather", "all_gather_ring(chunks, group)", "pass"),
    Mutant("3.5", "reduces twice", "all_gather_ring(chunks, group)", "reduce_scatter_ring(chunks, combine, group)"),
    Mutant(
        "3.5",
        "the sum ends in a copy",
        "chunks_of(flat, group.size)",
        "chunks_of(flat.copy(), group.size)",
    ),
    Mutant("3.5", "always adds", "(chunks, combine, group)", "(chunks, np.add, group)"),
    Mutant("3.5", "through rank 0", WHOLE, "all_reduce_naive(flat, combine, group)"),
    Mutant(
        "3.5",
        "drops the remainder that does not divide",
        "chunks_of(flat, group.size)",
        "list(flat[: flat.size // group.size * group.size].reshape(group.size, -1))",
    ),
    # 3.6 global_max
    *[
        Mutant(
            "3.6",
            bug,
            WHOLE,
            f"""
            {setup}
            if group.rank < group.size - 1:
                recv(best, left, group)
            if group.rank != group.size - 2:
                send(best, right, group)
            {end}
            """,
            kind=kind,
        )
        for kind, bug, setup, end in (
            ("dtype", "returns float64", "pass", "best = np.maximum(best, np.full(best.shape, -np.inf))"),
            ("dtype", "rounds to float32", "best[:] = best.astype(np.float32)", "pass"),
            (
                "second call",
                "the maximum of all calls",
                "pass",
                'best = vars(global_max)["all"] = np.maximum(best, vars(global_max).get("all", best)) '
                'if best.shape == np.shape(vars(global_max).get("all")) else best; vars(global_max)["all"] = best',
            ),
            (
                "second call",
                "returns the array of the first call of that size",
                "pass",
                "kept = vars(global_max).setdefault((best.shape, best.dtype), best); kept[:] = best; best = kept",
            ),
            (
                "lent",
                "returns its argument, overwritten",
                "pass",
                "values[:] = best; best = values",
            ),
            ("edge", "no number below 0", "pass", "np.maximum(best, 0, out=best)"),
            ("edge", "no number below -10^9", "pass", "np.maximum(best, best.dtype.type(-(10**9)), out=best)"),
        )
    ],
    Mutant("3.6", "the result travels on forever", "group.rank != group.size - 2", "True"),
    Mutant(
        "3.6",
        "rank 0 does not get the result",
        "if group.rank < group.size - 1:",
        "if 0 < group.rank < group.size - 1:",
    ),
    # 3.7 alpha-beta
    Mutant("3.7", "the ring sends the whole buffer in each step", "beta * nbytes / ranks)", "beta * nbytes)"),
    Mutant(
        "3.7",
        "the ring's bytes and half of its steps are not counted",
        "2 * (ranks - 1) * (alpha + beta * nbytes / ranks)",
        "ranks * alpha",
    ),
    Mutant(
        "3.7",
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
        "3.7",
        "the crossover in elements of 4 bytes",
        "return (ring_steps - tree_steps)",
        "return 0.25 * (ring_steps - tree_steps)",
    ),
    # 3.8 all_to_all_pairwise
    Mutant("3.8", "does not copy its own piece", "incoming[rank][:] = outgoing[rank]", "pass"),
    Mutant(
        "3.8", "sends the left neighbour's piece to the right", "sendrecv(outgoing[right]", "sendrecv(outgoing[left]"
    ),
    Mutant("3.8", "one step too few", "range(1, size)", "range(1, size - 1)"),
    Mutant(
        "3.8",
        "always to the same neighbour",
        "right, left = (rank + step) % size, (rank - step) % size",
        "right, left = (rank + 1) % size, (rank - 1) % size",
    ),
    Mutant(
        "3.8",
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
        "3.8",
        "its own piece goes into the list, not into the array",
        "incoming[rank][:] = outgoing[rank]",
        "incoming[rank] = outgoing[rank]",
    ),
    Mutant(
        "3.8",
        "receives float64, then copies",
        "sendrecv(outgoing[right], right, incoming[left], left, group)",
        "new = np.empty(len(incoming[left])); sendrecv(outgoing[right], right, new, left, group); "
        "incoming[left][:] = new",
        kind="dtype",
    ),
    Mutant(
        "3.8",
        "keeps the place in the first group",
        "size, rank = group.size, group.rank",
        'size, rank = vars(all_to_all_pairwise).setdefault("place", (group.size, group.rank))',
        kind="second call",
    ),
    Mutant(
        "3.8",
        "sends the first pieces of that size again",
        "sendrecv(outgoing[right], right, incoming[left], left, group)",
        "old = vars(all_to_all_pairwise).setdefault((right, len(outgoing[right]), outgoing[right].dtype), "
        "outgoing[right]); sendrecv(old, right, incoming[left], left, group)",
        kind="lent",
    ),
    Mutant(
        "3.8",
        "the sends are never waited for",
        "sendrecv(outgoing[right], right, incoming[left], left, group)",
        "isend(outgoing[right], right, group); recv(incoming[left], left, group)",
        kind="lent",
    ),
    Mutant(
        "3.8",
        "changes what it sends",
        "incoming[rank][:] = outgoing[rank]",
        "outgoing[rank][:] *= 1; incoming[rank][:] = outgoing[rank]; outgoing[rank][:] = 0",
        kind="lent",
    ),
    Mutant(
        "3.8",
        "all pieces as large as its own",
        "sendrecv(outgoing[right], right, incoming[left], left, group)",
        "n = len(outgoing[rank]); sendrecv(outgoing[right][:n], right, incoming[left][:n], left, group)",
        kind="edge",
    ),
    Mutant("3.8", "at most eight ranks", "range(1, size)", "range(1, min(size, 8))", kind="edge"),
]
