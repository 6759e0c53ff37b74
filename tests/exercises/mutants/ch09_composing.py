"""Mutants of chapter 9."""

from minidist.course.authoring.mutants import WHOLE, Mutant

MUTANTS = [
    # 9.1 mesh_coordinate
    Mutant("9.1", "the first dimension changes fastest", "in reversed(mesh_shape):", "in mesh_shape:"),
    Mutant("9.1", "the coordinate in reverse order", "tuple(reversed(place))", "tuple(place)"),
    Mutant(
        "9.1",
        "correct only for up to two dimensions",
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
        "consecutive ranks along every dimension",
        WHOLE,
        """
        size = mesh_shape[dim]
        return [list(range(first, first + size)) for first in range(0, prod(mesh_shape), size)]
        """,
    ),
    Mutant(
        "9.2",
        "groups ranks with the same coordinate along the dimension",
        "others = place[:dim] + place[dim + 1 :]",
        "others = place[dim]",
    ),
    Mutant(
        "9.2",
        "ranks as far apart as possible along every dimension",
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
        "the stride of the previous dimension",
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
    Mutant("9.3", "ZeRO-3 all-gathers once per micro-batch", "3 * micro_batches)[zero]", "2 * micro_batches)[zero]"),
    Mutant("9.3", "ZeRO-3 communicates only once a step", "3 * micro_batches)[zero]", "3)[zero]"),
    Mutant("9.3", "an all-reduce of M sends M", "2 * (tp - 1) / tp * activation_bytes", "activation_bytes"),
    Mutant("9.3", "forward only", "return 4 * layers", "return 2 * layers"),
    Mutant("9.3", "each rank sends in one direction only", "min(pp - 1, 2) *", "min(pp - 1, 1) *"),
    Mutant("9.3", "sums all stage boundaries", "min(pp - 1, 2) *", "2 * (pp - 1) *"),
    Mutant(
        "9.3",
        "checks only the group of rank 0",
        "for ranks in mesh_groups(mesh_shape, dim))",
        "for ranks in mesh_groups(mesh_shape, dim)[:1])",
    ),
    Mutant(
        "9.3",
        "assumes that a group that fits into a node is within one",
        "return any(len({rank // in_machine for rank in ranks}) > 1 for ranks in mesh_groups(mesh_shape, dim))",
        "return mesh_shape[dim] > in_machine",
    ),
    Mutant(
        "9.3",
        "the axis that sends most changes fastest, whether or not it fits into a node",
        "return min(permutations(lengths), key=seconds)",
        "return tuple(sorted(sent, key=sent.get))",
    ),
    Mutant("9.3", "returns the slowest order", "return min(permutations", "return max(permutations"),
    # 9.4 choose_layout
    Mutant("9.4", "ZeRO-2 keeps all gradients", "(dp if zero >= 2 else 1)", "(dp if zero >= 3 else 1)"),
    Mutant("9.4", "ZeRO-3 keeps its optimizer state", "(dp if zero >= 1 else 1)", "(dp if zero in (1, 2) else 1)"),
    Mutant(
        "9.4", "GPipe: all micro-batches are in flight", "min(model.global_batch // dp, pp)", "model.global_batch // dp"
    ),
    Mutant(
        "9.4", "assumes as many micro-batches in flight as pipeline ranks", "min(model.global_batch // dp, pp)", "pp"
    ),
    Mutant("9.4", "every rank has the activations of all layers", "(model.layers // pp) * 34", "model.layers * 34"),
    Mutant("9.4", "ignores the bubble", "(micro_batches + pp - 1) * 6", "micro_batches * 6"),
    Mutant(
        "9.4",
        "the mesh in reverse order",
        "crosses_machines((pp, dp, tp), dim,",
        "crosses_machines((tp, dp, pp), 2 - dim,",
    ),
    Mutant(
        "9.4",
        "counts the messages of all layers on every GPU",
        "model.layers // pp, micro_batches)",
        "model.layers, micro_batches)",
    ),
    Mutant("9.4", "gradients of the full model", "dp_bytes(2 * mine,", "dp_bytes(2 * model.parameters,"),
    Mutant(
        "9.4",
        "counts the micro-batches of all replicas",
        "    micro_batches = model.global_batch // dp\n    mine = model.parameters / (tp * pp)\n",
        "    micro_batches = model.global_batch\n    mine = model.parameters / (tp * pp)\n",
    ),
    Mutant("9.4", "requires a free byte", "<= hardware.memory:", "< hardware.memory:"),
    Mutant(
        "9.4", "allows any ZeRO stage with a pipeline", "1 if dp == 1 else 2 if pp > 1 else 4", "1 if dp == 1 else 4"
    ),
    Mutant("9.4", "allows uneven layers", " or model.layers % pp", ""),
    Mutant("9.4", "allows uneven heads", "or model.heads % tp ", ""),
    Mutant("9.4", "allows uneven batches", " or model.global_batch % dp:", ":"),
    Mutant(
        "9.4",
        "any of the fastest, not the smallest of them",
        "return min(fastest, key=lambda layout: memory_bytes(model, *layout))",
        "return fastest[0]",
    ),
    Mutant(
        "9.4",
        "the smallest layout, not the fastest",
        "limit = min(seconds.values()) * (1 + 1e-6)",
        "limit = max(seconds.values())",
    ),
    Mutant(
        "9.4",
        "counts times within 5 per cent as equal",
        "(1 + 1e-6)",
        "1.05",
    ),
    Mutant(
        "9.4",
        "raises no ValueError of its own",
        """
        if not seconds:
            raise ValueError(f"no allowed layout fits on {hardware.gpus} GPUs of {hardware.memory:,.0f} bytes")
        """,
        "",
    ),
    Mutant(
        "9.4",
        "returns a layout that does not fit",
        """
        if not seconds:
            raise ValueError(f"no allowed layout fits on {hardware.gpus} GPUs of {hardware.memory:,.0f} bytes")
        """,
        """
        if not seconds:
            return (hardware.gpus, 1, 1, 3)
        """,
    ),
    # 9.5 covering
    Mutant("9.5", "ignores settings of 0", "if value is not None]", "if value]"),
    Mutant("9.5", "counts None as a setting", " if value is not None]", "]"),
    Mutant(
        "9.5",
        "pairs of values, without their keys",
        "known = [(key, value) for key, value in row.items() if value is not None]",
        "known = [value for value in row.values() if value is not None]",
    ),
    Mutant("9.5", "covers settings, not pairs", "combinations(known, 2)", "combinations(known, 1)"),
    Mutant("9.5", "covers triples, not pairs", "combinations(known, 2)", "combinations(known, 3)"),
    Mutant("9.5", "takes the last of equals", "max(range(len(rows)),", "max(reversed(range(len(rows))),"),
    Mutant(
        "9.5",
        "counts covered pairs too",
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
    Mutant("9.5", "returns all rows", "return chosen", "return list(range(len(rows)))"),
    Mutant("9.5", "stops one pair too early", "while missing:", "while len(missing) > 1:"),
    Mutant("9.5", "returns the choice in the order of the rows", "return chosen", "return sorted(chosen)"),
    Mutant(
        "9.5", "returns the rows instead of their indices", "return chosen", "return [dict(rows[i]) for i in chosen]"
    ),
    # 9.6 train_on_mesh
    Mutant("9.6", "sums the norm over dp", "ReduceOp.SUM, tp)", "ReduceOp.SUM, dp)"),
    Mutant("9.6", "each rank uses its own norm", "all_reduce(squares, ReduceOp.SUM, tp)", "pass"),
    Mutant("9.6", "averages the norm over all ranks", "ReduceOp.SUM, tp)", "ReduceOp.AVG, world)"),
    Mutant("9.6", "takes the largest part for the norm", "ReduceOp.SUM, tp)", "ReduceOp.MAX, tp)"),
]
