"""Mutants of chapter 13. A bug that a real system had is followed by its issue."""

from minidist.course.authoring.mutants import WHOLE, Mutant

RANKS_OF_NODE = "mine = [rank for rank in range(group.size) if nodes[rank] == nodes[group.rank]]"
ACROSS = "group.part([row[local] for row in rows.values()])"
ALL_REDUCE = "all_reduce_ring(parts[inside.rank], combine, across)"
SHARING = "sharing = {edge: [message for message in waiting if edge in routes[message]] for edge in left}"

MUTANTS = [
    # 13.1 the peak
    Mutant("13.1", "a multiply-add counts once", "return 2 * m * k * n", "return m * k * n"),
    Mutant("13.1", "additions of a product: one less", "return 2 * m * k * n", "return (2 * k - 1) * m * n"),
    Mutant("13.1", "the elements that go in", "return 2 * m * k * n", "return 2 * (m * k + k * n)"),
    Mutant("13.1", "one core in each SM", "return sms * cores * flops_per_cycle", "return sms * flops_per_cycle"),
    Mutant("13.1", "per cycle", "flops_per_cycle * clock", "flops_per_cycle"),
    Mutant("13.1", "sparse is dense", "return printed / 2 if sparse else printed", "return printed"),
    Mutant("13.1", "the wrong way round", "printed / 2 if sparse else printed", "printed if sparse else printed / 2"),
    Mutant("13.1", "a quarter", "printed / 2 if", "printed / 4 if"),
    Mutant("13.1", "all of the bandwidth for one SM", "bandwidth / clock / sms", "bandwidth / clock"),
    Mutant("13.1", "bytes per second", "bandwidth / clock / sms", "bandwidth / sms"),
    Mutant(
        "13.1", "bytes per FLOP", "return flops_per_cycle / bytes_per_cycle", "return bytes_per_cycle / flops_per_cycle"
    ),
    # 13.2 prefill and decode
    Mutant("13.2", "every token attends to all", "tokens * (tokens + 1) // 2", "tokens * tokens"),
    Mutant(
        "13.2", "no token attends to itself", "tokens * (tokens + 1) // 2", "tokens * (tokens - 1) // 2", kind="edge"
    ),
    Mutant("13.2", "attention of one layer", "4 * layers * width * attended", "4 * width * attended"),
    Mutant("13.2", "keys alone", "4 * layers * width * attended", "2 * layers * width * attended"),
    Mutant("13.2", "a multiply-add counts once", "return 2 * parameters * tokens +", "return parameters * tokens +"),
    Mutant("13.2", "backward too", "return 2 * parameters * tokens +", "return 6 * parameters * tokens +"),
    Mutant(
        "13.2",
        "one sequence's attention",
        "return batch * (2 * parameters + 4 * layers * width * context)",
        "return batch * 2 * parameters + 4 * layers * width * context",
    ),
    Mutant(
        "13.2",
        "decode without attention",
        "return batch * (2 * parameters + 4 * layers * width * context)",
        "return batch * 2 * parameters",
    ),
    Mutant(
        "13.2",
        "keys without values",
        "cache = 2 * layers * kv_width * context  #",
        "cache = layers * kv_width * context  #",
    ),
    Mutant("13.2", "weights for each sequence", "(parameters + batch * cache)", "batch * (parameters + cache)"),
    Mutant("13.2", "one cache for all", "(parameters + batch * cache)", "(parameters + cache)"),
    Mutant("13.2", "elements", "return itemsize * (parameters", "return (parameters"),
    Mutant(
        "13.2", "2 bytes, whatever the dtype", "return itemsize * (parameters", "return 2 * (parameters", kind="dtype"
    ),
    Mutant(
        "13.2",
        "one after the other",
        "batch / max(flops / peak, nbytes / bandwidth)",
        "batch / (flops / peak + nbytes / bandwidth)",
    ),
    Mutant("13.2", "what is faster decides", "batch / max(flops", "batch / min(flops"),
    Mutant("13.2", "steps per second", "return batch / max(", "return 1 / max("),
    Mutant(
        "13.2",
        "without the KV cache",
        "ceil(weights / (arithmetic - cache)) if arithmetic > cache else inf",
        "ceil(weights / arithmetic)",
    ),
    Mutant("13.2", "a batch for any context", "if arithmetic > cache else inf", "", kind="edge"),
    Mutant("13.2", "rounded down", "return ceil(weights /", "return int(weights /", kind="edge"),
    Mutant(
        "13.2",
        "one too many",
        "return ceil(weights / (arithmetic - cache))",
        "return 1 + ceil(weights / (arithmetic - cache))",
    ),
    Mutant(
        "13.2",
        "not a whole number",
        "return ceil(weights / (arithmetic - cache))",
        "return weights / (arithmetic - cache)",
    ),
    Mutant(
        "13.2",
        "attention takes no time",
        "arithmetic = decode_flops(parameters, layers, width, 1, context) / peak",
        "arithmetic = decode_flops(parameters, layers, width, 1, 0) / peak",
        kind="edge",
    ),
    # 13.3 bisection
    Mutant(
        "13.3", "the first half of the chips", "for half in combinations(chips, count):", "for half in [chips[:count]]:"
    ),
    Mutant(
        "13.3",
        "neighbours alone",
        "for half in combinations(chips, count):",
        "for half in [(chips * 2)[i : i + count] for i in range(len(chips))]:",
    ),
    Mutant(
        "13.3",
        "any cut, not halves",
        "for count in {len(chips) // 2, len(chips) - len(chips) // 2}:",
        "for count in range(1, len(chips)):",
    ),
    Mutant(
        "13.3",
        "rounded down alone",
        "for count in {len(chips) // 2, len(chips) - len(chips) // 2}:",
        "for count in {len(chips) // 2}:",
        kind="edge",
    ),
    Mutant(
        "13.3",
        "switches stay on the other side",
        "product((False, True), repeat=len(switches))",
        "[(False,) * len(switches)]",
    ),
    Mutant(
        "13.3",
        "switches all on one side",
        "product((False, True), repeat=len(switches))",
        "[(side,) * len(switches) for side in (False, True)]",
    ),
    Mutant(
        "13.3",
        "half of the switches too",
        "least = min(least, sum(crossing))",
        "least = min(least, sum(crossing)) if len(first) * 2 == len(chips) + len(switches) else least",
    ),
    Mutant(
        "13.3",
        "both directions",
        "edge[0] in first and edge[1] not in first]",
        "(edge[0] in first) != (edge[1] in first)]",
    ),
    Mutant(
        "13.3",
        "links between chips alone",
        "least = min(least, sum(crossing))",
        "least = min(least, sum(crossing)) if crossing else least",
        kind="edge",
    ),
    Mutant(
        "13.3",
        "the narrowest link",
        "least = min(least, sum(crossing))",
        "least = min(least, min(crossing, default=0.0))",
    ),
    Mutant("13.3", "the number of links", "least = min(least, sum(crossing))", "least = min(least, len(crossing))"),
    Mutant(
        "13.3",
        "the widest cut",
        "least = min(least, sum(crossing))",
        "least = max(least if least < inf else 0.0, sum(crossing))",
    ),
    Mutant(
        "13.3",
        "one direction alone: the half has the first chip",
        "for half in combinations(chips, count):",
        "for half in (half for half in combinations(chips, count) if chips[0] in half):",
        kind="edge",
    ),
    Mutant("13.3", "all uplinks", "nodes // 2 * per_node", "nodes * per_node"),
    Mutant("13.3", "oversubscription does not matter", "* bandwidth / oversubscription", "* bandwidth"),
    Mutant("13.3", "oversubscription multiplies", "* bandwidth / oversubscription", "* bandwidth * oversubscription"),
    Mutant("13.3", "one GPU in each node", "nodes // 2 * per_node", "nodes // 2"),
    Mutant("13.3", "a mesh: nothing goes around", "return 2 * prod(shape) //", "return prod(shape) //"),
    Mutant("13.3", "across the shortest side", "// max(shape)", "// min(shape)"),
    Mutant("13.3", "across the first side", "// max(shape)", "// shape[0]", kind="edge"),
    Mutant("13.3", "half of the chips", "2 * prod(shape) // max(shape)", "prod(shape) // 2"),
    # 13.4 fair_rates
    Mutant(
        "13.4",
        "an equal share of each link, and no more",
        WHOLE,
        """
        counts = {edge: sum(edge in route for route in routes) for edge in bandwidths}
        return [min(bandwidths[edge] / counts[edge] for edge in route) for route in routes]
        """,
    ),
    Mutant(
        "13.4",
        "the narrowest link of its way",
        WHOLE,
        "return [min(bandwidths[edge] for edge in route) for route in routes]",
    ),
    Mutant(
        "13.4",
        "first come, first served",
        WHOLE,
        """
        left, rates = dict(bandwidths), []
        for route in routes:
            rates.append(min(left[edge] for edge in route))
            for edge in route:
                left[edge] -= rates[-1]
        return rates
        """,
    ),
    Mutant(
        "13.4",
        "the widest link first",
        "fullest = min(shares, key=shares.get)",
        "fullest = max(shares, key=shares.get)",
    ),
    Mutant(
        "13.4", "the slowest link first", "fullest = min(shares, key=shares.get)", "fullest = min(shares, key=left.get)"
    ),
    Mutant("13.4", "nothing is taken from links", "left[edge] -= shares[fullest]", "pass"),
    Mutant(
        "13.4",
        "taken from the full link alone",
        "for edge in routes[message]:\n    left[edge] -= shares[fullest]",
        "left[fullest] -= shares[fullest]",
    ),
    Mutant(
        "13.4",
        "taken once, whoever is on it",
        "for edge in routes[message]:\n    left[edge] -= shares[fullest]",
        "for edge in routes[message] if message == sharing[fullest][0] else ():\n    left[edge] -= shares[fullest]",
    ),
    Mutant(
        "13.4",
        "all messages count, also those that are done",
        "shares = {edge: left[edge] / len(messages) for edge, messages in sharing.items() if messages}",
        "counts = {edge: sum(edge in route for route in routes) for edge in left}\n"
        "        shares = {edge: left[edge] / counts[edge] for edge, messages in sharing.items() if messages}",
    ),
    Mutant(
        "13.4",
        "whole bytes",
        "rates[message] = shares[fullest]",
        "rates[message] = float(int(shares[fullest]))",
        kind="edge",
    ),
    Mutant(
        "13.4",
        "changes the bandwidths",
        "left = {edge: bandwidths[edge] for route in routes for edge in route}",
        "left = bandwidths",
        kind="lent",
    ),
    Mutant(
        "13.4",
        "by the number of messages, not by what is left",
        "fullest = min(shares, key=shares.get)",
        "fullest = max(shares, key=lambda edge: len(sharing[edge]))",
    ),
    Mutant(
        "13.4",
        "links must be pairs of names",
        "left = {edge: bandwidths[edge] for route in routes for edge in route}",
        "left = {(a, b): bandwidths[a, b] for route in routes for a, b in route}",
        kind="edge",
    ),
    Mutant("13.4", "a dict", "return rates\n", "return dict(enumerate(rates))\n"),
    Mutant(
        "13.4",
        "rates of the call before",
        "rates = [0.0] * len(routes)",
        "rates = vars(fair_rates).setdefault(len(routes), [0.0] * len(routes))",
        kind="second call",
    ),
    Mutant(
        "13.4",
        "the last link alone",
        SHARING,
        "sharing = {edge: [message for message in waiting if edge == routes[message][-1]] for edge in left}",
    ),
    # 13.5 bytes between nodes
    Mutant(
        "13.5",
        "a ring on one node crosses",
        """
        if nodes == 1:
            return 0.0, 0.0
        ranks = nodes * per_node
        one = 2 * (ranks - 1) / ranks * nbytes  # what each rank sends, all of it to its right neighbour
        """,
        """
        ranks = nodes * per_node
        one = 2 * (ranks - 1) / ranks * nbytes  # what each rank sends, all of it to its right neighbour
        """,
        kind="edge",
    ),
    Mutant("13.5", "all links of the ring cross", "return nodes * one, one", "return nodes * per_node * one, one"),
    Mutant("13.5", "a node less, as in a line", "return nodes * one, one", "return (nodes - 1) * one, one"),
    Mutant("13.5", "shared by the ranks of a node", "return nodes * one, one", "return nodes * one, one / per_node"),
    Mutant(
        "13.5",
        "nodes in place of ranks",
        "one = 2 * (ranks - 1) / ranks * nbytes  # what",
        "one = 2 * (nodes - 1) / nodes * nbytes  # what",
    ),
    Mutant(
        "13.5",
        "the reduce-scatter alone",
        "one = 2 * (ranks - 1) / ranks * nbytes  # what",
        "one = (ranks - 1) / ranks * nbytes  # what",
    ),
    Mutant("13.5", "own colleagues too", "2 * (ranks - per_node) * nbytes / ranks", "2 * (ranks - 1) * nbytes / ranks"),
    Mutant(
        "13.5",
        "whole arrays to everybody",
        "2 * (ranks - per_node) * nbytes / ranks",
        "2 * (ranks - per_node) * nbytes",
    ),
    Mutant(
        "13.5", "one direct phase", "2 * (ranks - per_node) * nbytes / ranks", "(ranks - per_node) * nbytes / ranks"
    ),
    Mutant(
        "13.5",
        "one message to each node on the way down",
        "(nodes - 1) * per_node  # messages",
        "nodes - 1  # messages",
    ),
    Mutant(
        "13.5",
        "all ranks of other nodes on the way up",
        "up, down = nodes - 1, (nodes",
        "up, down = (nodes - 1) * per_node, (nodes",
    ),
    Mutant("13.5", "rank 0 sends to each node", "log2(nodes) * nbytes", "(nodes - 1) * nbytes"),
    Mutant("13.5", "depth of the whole tree", "log2(nodes) * nbytes", "log2(nodes * per_node) * nbytes"),
    Mutant(
        "13.5",
        "the whole array across",
        "one = 2 * (nodes - 1) / nodes * nbytes / per_node",
        "one = 2 * (nodes - 1) / nodes * nbytes",
    ),
    Mutant("13.5", "leaders alone", "return nodes * per_node * one, one", "return nodes * one, one"),
    Mutant(
        "13.5",
        "a ring of all ranks across",
        "one = 2 * (nodes - 1) / nodes * nbytes / per_node",
        "one = 2 * (nodes * per_node - 1) / nodes * nbytes / per_node",
    ),
    Mutant("13.5", "a reduce-scatter and no all-gather", "phases = 2 * (per_node - 1)", "phases = (per_node - 1)"),
    Mutant("13.5", "the whole array in each step", "(near + per_near_byte * part)", "(near + per_near_byte * nbytes)"),
    Mutant("13.5", "a part in each step across", "(far + per_far_byte * part / nodes)", "(far + per_far_byte * part)"),
    Mutant(
        "13.5",
        "one latency for each phase",
        "return phases + 2 * (nodes - 1) * (far + per_far_byte * part / nodes)",
        "return phases + 2 * far + 2 * (nodes - 1) * per_far_byte * part / nodes",
    ),
    Mutant(
        "13.5",
        "links exchanged",
        "(near, per_near_byte), (far, per_far_byte) = inside, between",
        "(near, per_near_byte), (far, per_far_byte) = between, inside",
    ),
    # 13.6 all_reduce_hierarchical
    Mutant(
        "13.6",
        "leaders alone sum across: the others keep their node's part",
        ALL_REDUCE,
        f"if local == 0:\n        {ALL_REDUCE}",
    ),
    Mutant("13.6", "no sum across", ALL_REDUCE, "pass"),
    Mutant(
        "13.6",
        "sums across the whole array, each rank a part of another node",
        ALL_REDUCE,
        "all_reduce_ring(flat, combine, across)",
    ),
    Mutant("13.6", "across without the parts", WHOLE, "all_reduce_ring(flat, combine, group)"),
    Mutant(
        "13.6",
        "all-reduce inside, then across with the whole array: L times the bytes between nodes",
        WHOLE,
        """
        nodes = group.nodes
        mine = [rank for rank in range(group.size) if nodes[rank] == nodes[group.rank]]
        local = mine.index(group.rank)
        rows = {node: [rank for rank in range(group.size) if nodes[rank] == node] for node in nodes}
        all_reduce_ring(flat, combine, group.part(mine))
        all_reduce_ring(flat, combine, group.part([row[local] for row in rows.values()]))
        """,
    ),
    Mutant(
        "13.6",
        "reduce to a leader, all-reduce of leaders, broadcast",
        WHOLE,
        """
        nodes = group.nodes
        mine = [rank for rank in range(group.size) if nodes[rank] == nodes[group.rank]]
        rows = {node: [rank for rank in range(group.size) if nodes[rank] == node] for node in nodes}
        inside = group.part(mine)
        all_reduce_ring(flat, combine, inside)
        if inside.rank == 0:
            all_reduce_ring(flat, combine, group.part([row[0] for row in rows.values()]))
        from minidist.comm.algorithms import broadcast_tree
        broadcast_tree(flat, 0, inside)
        """,
    ),
    Mutant(
        "13.6",
        "communicators exchanged (locality_aware #74)",
        "inside, across = group.part(mine), " + ACROSS,
        "across, inside = group.part(mine), " + ACROSS,
    ),
    Mutant(
        "13.6",
        "nodes taken to be blocks of ranks",
        RANKS_OF_NODE,
        "per = nodes.count(nodes[group.rank])\n"
        "    mine = [rank for rank in range(group.size) if rank // per == group.rank // per]",
        kind="edge",
    ),
    Mutant(
        "13.6",
        "places in the world, not in the group",
        RANKS_OF_NODE,
        "mine = [r for r in group.ranks if group.transport.nodes[r] == nodes[group.rank]]",
        kind="edge",
    ),
    Mutant(
        "13.6",
        "parts cut by nodes",
        "parts = np.array_split(flat, inside.size)",
        "parts = np.array_split(flat, max(inside.size, across.size))",
    ),
    Mutant(
        "13.6",
        "elements that do not divide are left out",
        "parts = np.array_split(flat, inside.size)",
        "each = flat.size // inside.size\n    parts = [flat[i * each : (i + 1) * each] for i in range(inside.size)]",
        kind="edge",
    ),
    Mutant(
        "13.6",
        "another local index's part",
        ALL_REDUCE,
        "all_reduce_ring(parts[across.rank % inside.size], combine, across)",
    ),
    Mutant(
        "13.6",
        "the node's number in place of the local index",
        "local = mine.index(group.rank)",
        "local = list(dict.fromkeys(nodes)).index(nodes[group.rank]) % len(mine)",
    ),
    Mutant(
        "13.6",
        "always a sum",
        "reduce_scatter_ring(parts, combine, inside)",
        "reduce_scatter_ring(parts, np.add, inside)",
    ),
    Mutant("13.6", "a sum across", ALL_REDUCE, "all_reduce_ring(parts[inside.rank], np.add, across)"),
    Mutant("13.6", "no all-gather", "all_gather_ring(parts, inside)", "pass"),
    Mutant(
        "13.6",
        "a copy of the array is reduced",
        "parts = np.array_split(flat, inside.size)",
        "parts = np.array_split(flat.copy(), inside.size)",
    ),
    Mutant(
        "13.6",
        "copied and copied back",
        "all_gather_ring(parts, inside)",
        "whole = [part.copy() for part in parts]; all_gather_ring(whole, inside); flat[:] = np.concatenate(whole)",
        kind="edge",
    ),
    Mutant(
        "13.6",
        "through float32",
        "all_gather_ring(parts, inside)",
        "flat[:] = flat if flat.dtype.kind in 'bc' else flat.astype(np.float32)\n    all_gather_ring(parts, inside)",
        kind="dtype",
    ),
    Mutant(
        "13.6",
        "divides: a mean",
        "all_gather_ring(parts, inside)",
        "all_gather_ring(parts, inside)\n    flat[:] = (flat / inside.size).astype(flat.dtype)",
    ),
    Mutant(
        "13.6",
        "groups of the first call",
        "inside, across = group.part(mine), " + ACROSS,
        "inside, across = vars(all_reduce_hierarchical).setdefault(group.rank, (group.part(mine), " + ACROSS + "))",
        kind="second call",
    ),
    # 13.7 double_tree
    Mutant("13.7", "the same tree twice", "return first, second", "return first, list(first)"),
    Mutant("13.7", "mirrored, also where N is odd", "(place + 1) % size", "size - 1 - place", kind="edge"),
    Mutant("13.7", "shifted by two", "(place + 1) % size", "(place + 2) % size", kind="edge"),
    Mutant(
        "13.7",
        "parents beyond the last rank",
        "first[rank] = parent if parent < size else rank ^ bit",
        "first[rank] = parent",
        kind="edge",
    ),
    Mutant(
        "13.7",
        "parents beyond the last rank become the root",
        "first[rank] = parent if parent < size else rank ^ bit",
        "first[rank] = parent if parent < size else 0",
        kind="edge",
    ),
    Mutant(
        "13.7",
        "a binomial tree: log2 N children",
        "first[rank] = parent if parent < size else rank ^ bit",
        "first[rank] = rank ^ bit",
    ),
    Mutant(
        "13.7",
        "a heap: its inner ranks are the first half",
        "first[rank] = parent if parent < size else rank ^ bit",
        "first[rank] = (rank - 1) // 2",
    ),
    Mutant("13.7", "a chain", "first[rank] = parent if parent < size else rank ^ bit", "first[rank] = rank - 1"),
    Mutant("13.7", "a star", "first[rank] = parent if parent < size else rank ^ bit", "first[rank] = 0"),
    Mutant(
        "13.7",
        "parents are not renamed",
        "second[names[place]] = None if parent is None else names[parent]",
        "second[names[place]] = parent",
    ),
    Mutant(
        "13.7",
        "ranks are not renamed",
        "second[names[place]] = None if parent is None else names[parent]",
        "second[place] = None if parent is None else names[parent]",
    ),
    Mutant("13.7", "the root is its own parent", "first: Parents = [None] * size", "first: Parents = [0] * size"),
    Mutant(
        "13.7",
        "-1 for the root",
        "return first, second",
        "return [-1 if p is None else p for p in first], [-1 if p is None else p for p in second]",
    ),
    Mutant(
        "13.7",
        "NumPy's integers",
        "return first, second",
        "return tuple([None if p is None else np.int64(p) for p in tree] for tree in (first, second))",
        kind="dtype",
    ),
    Mutant(
        "13.7",
        "one rank at least",
        "first: Parents = [None] * size",
        "size = max(size, 1)\n    first: Parents = [None] * size",
        kind="edge",
    ),
    Mutant("13.7", "the second highest bit", "(rank ^ bit) | (bit << 1)", "(rank ^ bit) | (bit << 2)"),
    # 13.8 placing a mesh
    Mutant("13.8", "row by row", "return grid.transpose(order).reshape(", "return grid.reshape("),
    Mutant(
        "13.8",
        "GPUs dealt out to nodes",
        "reshape(*across, *inside)",
        "reshape(*inside, *across).transpose(*range(len(inside), 2 * len(inside)), *range(len(inside)))",
    ),
    Mutant(
        "13.8",
        "blocks inside out",
        "zip(range(dims), range(dims, 2 * dims), strict=True)",
        "zip(range(dims, 2 * dims), range(dims), strict=True)",
    ),
    Mutant("13.8", "first dimension fastest", "reshape(*across, *inside)", "reshape(*across, *inside, order='F')"),
    Mutant(
        "13.8",
        "floats",
        "np.arange(prod(across) * prod(inside))",
        "np.arange(float(prod(across) * prod(inside)))",
        kind="dtype",
    ),
    Mutant("13.8", "flat", "reshape([a * b for a, b in zip(across, inside, strict=True)])", "ravel()"),
    Mutant("13.8", "the whole array across", "nbytes / inside / slow", "nbytes / slow"),
    Mutant(
        "13.8",
        "one phase inside",
        "return 2 * (inside - 1) / inside * nbytes / fast",
        "return (inside - 1) / inside * nbytes / fast",
    ),
    Mutant("13.8", "one phase across", "+ 2 * (nodes - 1) / nodes", "+ (nodes - 1) / nodes"),
    Mutant(
        "13.8",
        "a ring over all ranks",
        "2 * (nodes - 1) / nodes * nbytes / inside / slow",
        "2 * (size - 1) / size * nbytes / slow * (nodes > 1)",
    ),
    Mutant("13.8", "links exchanged", "nbytes / inside / slow", "nbytes / inside / fast"),
    Mutant(
        "13.8",
        "the last dimensions inside",
        "return min(blocks, key=seconds)",
        "return max(blocks, key=lambda block: block[::-1])",
    ),
    Mutant("13.8", "the slowest block", "return min(blocks, key=seconds)", "return max(blocks, key=seconds)"),
    Mutant("13.8", "the first block", "return min(blocks, key=seconds)", "return blocks[0]"),
    Mutant(
        "13.8",
        "the axis with the most bytes inside, as far as it goes",
        "return min(blocks, key=seconds)",
        "return max(blocks, key=lambda block: max((count, one) for count, one in zip(nbytes, block)))",
    ),
    Mutant("13.8", "the slowest axis decides", "return sum(axis_seconds", "return max(axis_seconds"),
    Mutant(
        "13.8",
        "blocks that do not divide the mesh",
        "all(size % one == 0 for size, one in zip(shape, block, strict=True))",
        "True",
        kind="edge",
    ),
    Mutant("13.8", "nodes that are not full", "if prod(block) == node_size and", "if prod(block) <= node_size and"),
    Mutant(
        "13.8",
        "None where nothing fits",
        'raise ValueError(f"no block of a mesh of shape {shape} fills a node of {node_size}")',
        "return None",
        kind="edge",
    ),
    Mutant("13.8", "a whole axis or nothing", "range(1, size + 1) for size", "{1, size} for size", kind="edge"),
    Mutant(
        "13.8",
        "powers of two",
        "range(1, size + 1) for size",
        "[1 << n for n in range(size.bit_length())] for size",
        kind="edge",
    ),
    # 13.9 sync_shard
    Mutant(
        "13.9",
        "the groups are right, the norm counts each replica (VeOmni #862)",
        "all_reduce_ring(squares, np.add, inside)",
        "all_reduce_ring(squares, np.add, group)",
    ),
    Mutant(
        "13.9",
        "the norm is right, the groups are not",
        "across = group.part(range(local, group.size, per_node))",
        "across = group.part(range(group.rank % nodes, group.size, nodes))",
    ),
    Mutant(
        "13.9",
        "the node's number in place of the local index",
        "range(local, group.size, per_node)",
        "range(node % per_node, group.size, per_node)",
    ),
    Mutant("13.9", "a shard's norm", "all_reduce_ring(squares, np.add, inside)", "pass", kind="edge"),
    Mutant(
        "13.9",
        "squares summed across",
        "all_reduce_ring(squares, np.add, inside)",
        "all_reduce_ring(squares, np.add, across)",
    ),
    Mutant(
        "13.9",
        "divided by the nodes: a mean of norms",
        "all_reduce_ring(squares, np.add, inside)",
        "all_reduce_ring(squares, np.add, inside); squares /= nodes",
        kind="edge",
    ),
    Mutant(
        "13.9",
        "summed over all, divided by the ranks",
        "all_reduce_ring(squares, np.add, inside)",
        "all_reduce_ring(squares, np.add, group); squares /= group.size",
    ),
    Mutant(
        "13.9",
        "right, with bytes that are not needed",
        "all_reduce_ring(squares, np.add, inside)",
        "all_reduce_ring(squares, np.add, group); squares /= nodes",
        kind="edge",
    ),
    Mutant(
        "13.9",
        "divided once more",
        "all_reduce_ring(squares, np.add, inside)",
        "shard /= per_node; squares /= per_node**2; all_reduce_ring(squares, np.add, inside)",
    ),
    Mutant(
        "13.9",
        "the next node alone",
        "range(local, group.size, per_node)",
        "sorted({group.rank, (group.rank + per_node) % group.size})",
        kind="edge",
    ),
    # 13.10 MFU
    Mutant("13.10", "forward alone", "return 6 * parameters + 12 * layers", "return 2 * parameters + 4 * layers"),
    Mutant(
        "13.10", "attention is free", "return 6 * parameters + 12 * layers * width * length", "return 6 * parameters"
    ),
    Mutant("13.10", "with the causal mask", "12 * layers * width * length", "6 * layers * width * length"),
    Mutant(
        "13.10",
        "recomputation counts as the model's",
        "return 6 * parameters + 12 * layers",
        "return 8 * parameters + 16 * layers",
    ),
    Mutant("13.10", "a third more, always", "+ again[recompute]", "* 4 // 3"),
    Mutant("13.10", "attention again: forward and backward", '"attention": 4 * layers', '"attention": 12 * layers'),
    Mutant(
        "13.10",
        "full without attention",
        '"full": 2 * parameters + 4 * layers * width * length',
        '"full": 2 * parameters',
    ),
    Mutant("13.10", "full without weights", '"full": 2 * parameters + 4 * layers', '"full": 4 * layers'),
    Mutant("13.10", "one GPU", "(seconds * gpus * peak)", "(seconds * peak)"),
    Mutant("13.10", "steps of a second", "(seconds * gpus * peak)", "(gpus * peak)"),
    Mutant(
        "13.10",
        "seconds multiply",
        "tokens * flops_per_token / (seconds * gpus * peak)",
        "tokens * flops_per_token * seconds / (gpus * peak)",
    ),
    Mutant("13.10", "percent", "return tokens * flops_per_token /", "return 100 * tokens * flops_per_token /"),
    Mutant(
        "13.10", "corrected the wrong way", "claimed * claimed_peak / dense_peak", "claimed * dense_peak / claimed_peak"
    ),
    Mutant("13.10", "always a factor of two", "claimed * claimed_peak / dense_peak", "claimed * 2", kind="edge"),
    Mutant("13.10", "all communication counts", "communication * (1 - hidden)", "communication"),
    Mutant("13.10", "what is hidden counts", "communication * (1 - hidden)", "communication * hidden"),
    Mutant("13.10", "other things are free", "(1 - hidden) + other)", "(1 - hidden))"),
    Mutant("13.10", "products at full speed", "return efficiency * products /", "return products /"),
]
