"""Planted bugs of chapter 9."""

from minidist.course.authoring.mutants import WHOLE, Mutant

MUTANTS = [
    # 9.1 mesh_coordinate
    Mutant("9.1", "the first dimension changes fastest", "in reversed(mesh_shape):", "in mesh_shape:"),
    Mutant("9.1", "the last dimension's place comes first", "tuple(reversed(place))", "tuple(place)"),
    Mutant(
        "9.1",
        "right for two dimensions only",
        WHOLE,
        """
        if len(mesh_shape) == 1:
            return (rank,)
        return (rank // mesh_shape[-1], rank % mesh_shape[-1], *[0] * (len(mesh_shape) - 2))
        """,
    ),
    Mutant(
        "9.1",
        "divides by the length of the wrong dimension",
        WHOLE,
        """
        place = []
        for length in mesh_shape:
            rank, digit = divmod(rank, length)
            place.append(digit)
        return tuple(reversed(place))
        """,
    ),
    Mutant("9.1", "returns a list", "return tuple(reversed(place))", "return list(reversed(place))"),
    # 9.2 mesh_groups
    Mutant(
        "9.2",
        "neighbours by number, along every dimension",
        WHOLE,
        """
        size = mesh_shape[dim]
        return [list(range(first, first + size)) for first in range(0, prod(mesh_shape), size)]
        """,
    ),
    Mutant(
        "9.2",
        "ranks with the same place form a group: the dimensions are mixed up",
        "others = place[:dim] + place[dim + 1 :]",
        "others = place[dim]",
    ),
    Mutant(
        "9.2",
        "as far apart as possible, along every dimension",
        WHOLE,
        """
        stride = prod(mesh_shape) // mesh_shape[dim]
        return [list(range(first, prod(mesh_shape), stride)) for first in range(stride)]
        """,
    ),
    Mutant(
        "9.2",
        "only the group of rank 0",
        "return list(groups.values())",
        "return list(groups.values())[:1]",
    ),
    Mutant(
        "9.2",
        "the last rank comes first",
        "groups.setdefault(others, []).append(rank)",
        "groups.setdefault(others, []).insert(0, rank)",
    ),
    Mutant(
        "9.2",
        "the stride of the dimension before",
        WHOLE,
        """
        stride = prod(mesh_shape[dim:]) // mesh_shape[-1]
        size = mesh_shape[dim]
        firsts = [rank for rank in range(prod(mesh_shape)) if rank // stride % size == 0]
        return [list(range(first, first + size * stride, stride)) for first in firsts]
        """,
    ),
    # 9.3 worksheet
    Mutant("9.3", "ZeRO-2 reduce-scatters once a step", "(2, 2, micro_batches + 1,", "(2, 2, 2,"),
    Mutant("9.3", "ZeRO-3 gathers once in a micro-batch", "3 * micro_batches)[zero]", "2 * micro_batches)[zero]"),
    Mutant("9.3", "ZeRO-3 does it all once a step", "3 * micro_batches)[zero]", "3)[zero]"),
    Mutant("9.3", "an all-reduce of M sends M", "2 * (tp - 1) / tp * activation_bytes", "activation_bytes"),
    Mutant("9.3", "forward only", "return 4 * layers", "return 2 * layers"),
    Mutant("9.3", "as if each rank sent to one side", "min(pp - 1, 2) *", "min(pp - 1, 1) *"),
    Mutant("9.3", "all borders together", "min(pp - 1, 2) *", "2 * (pp - 1) *"),
    Mutant(
        "9.3",
        "looks at the group of rank 0 alone",
        "for ranks in mesh_groups(mesh_shape, dim))",
        "for ranks in mesh_groups(mesh_shape, dim)[:1])",
    ),
    Mutant(
        "9.3",
        "a group that fits into a machine is in one",
        "return any(len({rank // in_machine for rank in ranks}) > 1 for ranks in mesh_groups(mesh_shape, dim))",
        "return mesh_shape[dim] > in_machine",
    ),
    Mutant(
        "9.3",
        "what sends most changes fastest, whatever fits",
        "return min(permutations(lengths), key=seconds)",
        "return tuple(sorted(sent, key=sent.get))",
    ),
    Mutant("9.3", "the slowest order", "return min(permutations", "return max(permutations"),
    # 9.4 choose_layout
    Mutant("9.4", "ZeRO-2 keeps all gradients", "(dp if zero >= 2 else 1)", "(dp if zero >= 3 else 1)"),
    Mutant("9.4", "ZeRO-3 keeps its optimizer state", "(dp if zero >= 1 else 1)", "(dp if zero in (1, 2) else 1)"),
    Mutant(
        "9.4", "GPipe: all micro-batches are in flight", "min(model.global_batch // dp, pp)", "model.global_batch // dp"
    ),
    Mutant("9.4", "as many in flight as ranks, though there are fewer", "min(model.global_batch // dp, pp)", "pp"),
    Mutant("9.4", "every rank has the activations of all layers", "(model.layers // pp) * 34", "model.layers * 34"),
    Mutant("9.4", "the bubble is left out", "(micro_batches + pp - 1) * 6", "micro_batches * 6"),
    Mutant(
        "9.4",
        "another order of the mesh",
        "crosses_machines((pp, dp, tp), dim,",
        "crosses_machines((tp, dp, pp), 2 - dim,",
    ),
    Mutant("9.4", "all layers on every GPU talk", "model.layers // pp, micro_batches)", "model.layers, micro_batches)"),
    Mutant("9.4", "gradients of the whole model", "dp_bytes(2 * mine,", "dp_bytes(2 * model.parameters,"),
    Mutant(
        "9.4",
        "micro-batches of all replicas",
        "    micro_batches = model.global_batch // dp\n    mine = model.parameters / (tp * pp)\n",
        "    micro_batches = model.global_batch\n    mine = model.parameters / (tp * pp)\n",
    ),
    Mutant("9.4", "has to leave a byte free", "<= hardware.memory:", "< hardware.memory:"),
    Mutant("9.4", "any pipeline with any stage of ZeRO", "1 if dp == 1 else 2 if pp > 1 else 4", "1 if dp == 1 else 4"),
    Mutant("9.4", "layers may be split unevenly", " or model.layers % pp", ""),
    Mutant("9.4", "heads may be split unevenly", "or model.heads % tp ", ""),
    Mutant("9.4", "replicas may have different batches", " or model.global_batch % dp:", ":"),
    Mutant(
        "9.4",
        "the fastest, but not the smallest of those",
        "return min(fastest, key=lambda layout: memory_bytes(model, *layout))",
        "return fastest[0]",
    ),
    Mutant(
        "9.4",
        "the smallest of all",
        "limit = min(seconds.values()) * (1 + 1e-6)",
        "limit = max(seconds.values())",
    ),
    Mutant(
        "9.4",
        "as fast as the fastest means within a twentieth",
        "(1 + 1e-6)",
        "1.05",
    ),
    Mutant(
        "9.4",
        "does not say that nothing fits",
        """
        if not seconds:
            raise ValueError(f"on {hardware.gpus} GPUs of {hardware.memory:,.0f} bytes no layout is allowed and fits")
        """,
        "",
    ),
    Mutant(
        "9.4",
        "takes what does not fit, where nothing does",
        """
        if not seconds:
            raise ValueError(f"on {hardware.gpus} GPUs of {hardware.memory:,.0f} bytes no layout is allowed and fits")
        """,
        """
        if not seconds:
            return (hardware.gpus, 1, 1, 3)
        """,
    ),
    # 9.5 covering
    Mutant("9.5", "a setting of 0 has no meaning", "if value is not None]", "if value]"),
    Mutant("9.5", "None is a setting like others", " if value is not None]", "]"),
    Mutant(
        "9.5",
        "pairs of values, whatever their keys",
        "known = [(key, value) for key, value in row.items() if value is not None]",
        "known = [value for value in row.values() if value is not None]",
    ),
    Mutant("9.5", "every setting once, not every pair", "combinations(known, 2)", "combinations(known, 1)"),
    Mutant("9.5", "every three settings", "combinations(known, 2)", "combinations(known, 3)"),
    Mutant("9.5", "of equals the last", "max(range(len(rows)),", "max(reversed(range(len(rows))),"),
    Mutant(
        "9.5",
        "counts the pairs that are there already, too",
        "key=lambda i: len(pairs[i] & missing))",
        "key=lambda i: len(pairs[i]) * bool(pairs[i] & missing))",
    ),
    Mutant(
        "9.5",
        "takes every row that adds something",
        """
        while missing:
            best = max(range(len(rows)), key=lambda i: len(pairs[i] & missing))  # max takes the first of equals
            chosen.append(best)
            missing -= pairs[best]
        """,
        """
        for i in range(len(rows)):
            if pairs[i] & missing:
                chosen.append(i)
                missing -= pairs[i]
        """,
    ),
    Mutant("9.5", "all rows", "return chosen", "return list(range(len(rows)))"),
    Mutant("9.5", "stops one pair too early", "while missing:", "while len(missing) > 1:"),
    Mutant("9.5", "in the order of the rows", "return chosen", "return sorted(chosen)"),
    Mutant("9.5", "returns the rows themselves", "return chosen", "return [dict(rows[i]) for i in chosen]"),
    # 9.6 train_on_mesh
    Mutant("9.6", "over the replicas instead", "ReduceOp.SUM, tp)", "ReduceOp.SUM, dp)"),
    Mutant("9.6", "over nobody: each rank has a norm of its own", "all_reduce(squares, ReduceOp.SUM, tp)", "pass"),
    Mutant("9.6", "the mean over all ranks", "ReduceOp.SUM, tp)", "ReduceOp.AVG, world)"),
    Mutant("9.6", "the largest part stands for all", "ReduceOp.SUM, tp)", "ReduceOp.MAX, tp)"),
]
