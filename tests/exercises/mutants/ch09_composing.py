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
    Mutant("9.1", "digits below ten only", "place.append(digit)", "place.append(int(str(digit)[-1]))", kind="edge"),
    Mutant(
        "9.1",
        "keeps its list of digits",
        """
        place = []
        """,
        """
        place = globals().setdefault("_place", [])
        del place[4:]
        """,
        kind="second call",
    ),
    Mutant(
        "9.1",
        "keeps the shape of the first mesh with as many dimensions",
        "in reversed(mesh_shape):",
        'in reversed(globals().setdefault("_shapes", {}).setdefault(len(mesh_shape), mesh_shape)):',
        kind="second call",
    ),
    Mutant(
        "9.1",
        "remembers a rank's coordinate by its number of dimensions",
        """
        return tuple(reversed(place))
        """,
        """
        known = globals().setdefault("_known", {})
        return known.setdefault((rank, len(place), mesh_shape[-1]), tuple(reversed(place)))
        """,
        kind="second call",
    ),
    Mutant(
        "9.1",
        "at most four dimensions",
        "return tuple(reversed(place))",
        "return tuple(reversed(place[:4]))",
        kind="edge",
    ),
    Mutant(
        "9.1",
        "ranks below 256",
        """
        place = []
        """,
        """
        place = []
        rank %= 256
        """,
        kind="edge",
    ),
    Mutant(
        "9.1",
        "8-bit integers",
        "place.append(digit)",
        "place.append(np.array(digit).astype(np.uint8)[()])",
        kind="dtype",
    ),
    Mutant(
        "9.1",
        "coordinates in float64",
        "return tuple(reversed(place))",
        "return tuple(map(float, reversed(place)))",
        kind="dtype",
    ),
    Mutant(
        "9.1",
        "leaves out dimensions of length 1",
        "in reversed(mesh_shape):",
        "in [n for n in reversed(mesh_shape) if n > 1]:",
        kind="edge",
    ),
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
    Mutant(
        "9.2",
        "returns the same lists for the same mesh",
        "return list(groups.values())",
        'return globals().setdefault("_known", {}).setdefault((mesh_shape, dim), list(groups.values()))',
        kind="second call",
    ),
    Mutant(
        "9.2",
        "new lists of the same groups",
        "return list(groups.values())",
        'return list(globals().setdefault("_known", {}).setdefault((mesh_shape, dim), list(groups.values())))',
        kind="second call",
    ),
    Mutant(
        "9.2",
        "remembers groups by the number of ranks",
        """
        return list(groups.values())
        """,
        """
        known = globals().setdefault("_known", {})
        known = known.setdefault((prod(mesh_shape), len(mesh_shape), dim), list(groups.values()))
        return [list(one) for one in known]
        """,
        kind="second call",
    ),
    Mutant(
        "9.2",
        "joins the digits of coordinates",
        "others = place[:dim] + place[dim + 1 :]",
        'others = "".join(map(str, place[:dim] + place[dim + 1 :]))',
        kind="edge",
    ),
    Mutant(
        "9.2",
        "orders ranks as text",
        "return list(groups.values())",
        "return [sorted(one, key=str) for one in groups.values()]",
        kind="edge",
    ),
    Mutant(
        "9.2",
        "a set of ranks, which is in order only while it is small",
        "return list(groups.values())",
        "return [list(set(one)) for one in groups.values()]",
        kind="edge",
    ),
    Mutant("9.2", "8-bit ranks", "append(rank)", "append(np.array(rank).astype(np.uint8)[()])", kind="dtype"),
    Mutant(
        "9.2",
        "one dict for all calls",
        "groups: dict[tuple[int, ...], list[int]] = {}",
        'groups = globals().setdefault("_groups", {})',
        kind="second call",
    ),
    Mutant(
        "9.2",
        "appends to the groups of an earlier call",
        """
        groups.setdefault(others, []).append(rank)
        """,
        """
        known = globals().setdefault("_known", {}).setdefault((mesh_shape, dim, others), [])
        groups.setdefault(others, known).append(rank)
        """,
        kind="second call",
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
    Mutant(
        "9.3",
        "rounds the share of a rank down",
        "return calls * (dp - 1) / dp * model_bytes",
        "return calls * (dp - 1) * (model_bytes // dp)",
        kind="edge",
    ),
    Mutant(
        "9.3",
        "rounds bytes down",
        "2 * (tp - 1) / tp * activation_bytes",
        "2 * (tp - 1) * activation_bytes // tp",
        kind="edge",
    ),
    Mutant(
        "9.3",
        "overflows 32 bits",
        "return min(pp - 1, 2) * micro_batches * activation_bytes",
        "return int(np.array(min(pp - 1, 2) * micro_batches * activation_bytes).astype(np.int32))",
        kind="dtype",
    ),
    Mutant(
        "9.3",
        "looks at the first and the last group only",
        "for ranks in mesh_groups(mesh_shape, dim))",
        "for ranks in [mesh_groups(mesh_shape, dim)[0], mesh_groups(mesh_shape, dim)[-1]])",
        kind="edge",
    ),
    Mutant(
        "9.3",
        "looks at every second group only",
        "for ranks in mesh_groups(mesh_shape, dim))",
        "for ranks in mesh_groups(mesh_shape, dim)[::2])",
        kind="edge",
    ),
    Mutant(
        "9.3",
        "looks at the first two ranks of a group only",
        "len({rank // in_machine for rank in ranks})",
        "len({rank // in_machine for rank in ranks[:2]})",
        kind="edge",
    ),
    Mutant(
        "9.3",
        "assumes that the axes occur in the same order in both dicts",
        """
        return sum(sent[axis] / link for axis, link in zip(order, links, strict=True))
        """,
        """
        known = dict(zip(lengths, sent.values(), strict=True))
        return sum(known[axis] / link for axis, link in zip(order, links, strict=True))
        """,
        kind="edge",
    ),
    Mutant(
        "9.3",
        "whole seconds",
        "return sum(sent[axis] / link for axis, link in zip(order, links, strict=True))",
        "return sum(sent[axis] // link for axis, link in zip(order, links, strict=True))",
        kind="edge",
    ),
    Mutant(
        "9.3",
        "knows only the usual axes",
        "min(permutations(lengths), key=seconds)",
        'min(permutations(sorted(lengths, key=["pp", "dp", "cp", "tp"].index)), key=seconds)',
        kind="edge",
    ),
    Mutant(
        "9.3",
        "remembers the order for the same lengths",
        """
        return min(permutations(lengths), key=seconds)
        """,
        """
        known = globals().setdefault("_orders", {})
        return known.setdefault(tuple(lengths.items()), min(permutations(lengths), key=seconds))
        """,
        kind="second call",
    ),
    Mutant(
        "9.3",
        "remembers which axes cross",
        """
        return any(len({rank // in_machine for rank in ranks}) > 1 for ranks in mesh_groups(mesh_shape, dim))
        """,
        """
        crosses = any(len({rank // in_machine for rank in ranks}) > 1 for ranks in mesh_groups(mesh_shape, dim))
        return globals().setdefault("_known", {}).setdefault((mesh_shape, dim), crosses)
        """,
        kind="second call",
    ),
    Mutant(
        "9.3",
        "tries four orders only",
        """
        return min(permutations(lengths), key=seconds)
        """,
        """
        orders = [list(lengths), sorted(lengths, key=sent.get), sorted(lengths, key=lengths.get)]
        return min(*map(tuple, orders), tuple(lengths)[::-1], key=seconds)
        """,
        kind="edge",
    ),
    Mutant(
        "9.3",
        "empties the lengths that it was lent",
        """
        return min(permutations(lengths), key=seconds)
        """,
        """
        best = min(permutations(lengths), key=seconds)
        for axis in best:
            lengths.pop(axis)
        return best
        """,
        kind="lent",
    ),
    Mutant(
        "9.3",
        "assumes that groups do not cross only if nodes are full",
        "return any(len({rank // in_machine for rank in ranks}) > 1 for ranks in mesh_groups(mesh_shape, dim))",
        "return mesh_shape[dim] > 1 and in_machine % prod(mesh_shape[dim:]) != 0",
        kind="edge",
    ),
    Mutant(
        "9.3",
        "empties the bytes that it was lent",
        "return min(permutations(lengths), key=seconds)",
        "best = min(permutations(lengths), key=seconds); sent.clear(); return best",
        kind="lent",
    ),
    Mutant(
        "9.3",
        "tries six orders only",
        "min(permutations(lengths), key=seconds)",
        "min([p for p in permutations(lengths)][:6], key=seconds)",
        kind="edge",
    ),
    # 9.4 train_on_mesh
    Mutant("9.4", "sums the norm over dp", "ReduceOp.SUM, tp)", "ReduceOp.SUM, dp)"),
    Mutant("9.4", "each rank uses its own norm", "all_reduce(squares, ReduceOp.SUM, tp)", "pass"),
    Mutant("9.4", "averages the norm over all ranks", "ReduceOp.SUM, tp)", "ReduceOp.AVG, world)"),
    Mutant("9.4", "takes the largest part for the norm", "ReduceOp.SUM, tp)", "ReduceOp.MAX, tp)"),
    Mutant(
        "9.4",
        "divides the sum over all ranks by two",
        "all_reduce(squares, ReduceOp.SUM, tp)",
        "all_reduce(squares, ReduceOp.SUM, world); squares /= 2 if dp.size > 1 else 1",
        kind="edge",
    ),
    Mutant(
        "9.4",
        "divides the sum over all ranks by their square root",
        "all_reduce(squares, ReduceOp.SUM, tp)",
        "all_reduce(squares, ReduceOp.SUM, world); squares /= world.size**0.5",
        kind="edge",
    ),
    Mutant(
        "9.4",
        "keeps the norm of the first step",
        "all_reduce(squares, ReduceOp.SUM, tp)",
        'all_reduce(squares, ReduceOp.SUM, tp); squares = globals().setdefault("_squares", squares)',
        kind="second call",
    ),
    Mutant(
        "9.4",
        "keeps the clipping of the first training",
        "all_reduce(squares, ReduceOp.SUM, tp)",
        'all_reduce(squares, ReduceOp.SUM, tp); clip = globals().setdefault("_clip", clip)',
        kind="second call",
    ),
    Mutant(
        "9.4",
        "sums in float32",
        "all_reduce(squares, ReduceOp.SUM, tp)",
        "squares = squares.astype(np.float32); all_reduce(squares, ReduceOp.SUM, tp)",
        kind="dtype",
    ),
    Mutant(
        "9.4",
        "adds up the norms of the parts",
        "all_reduce(squares, ReduceOp.SUM, tp)",
        "squares = np.sqrt(squares); all_reduce(squares, ReduceOp.SUM, tp); squares **= 2",
    ),
    Mutant(
        "9.4",
        "changes the targets that it was lent",
        "all_reduce(squares, ReduceOp.SUM, tp)",
        "all_reduce(squares, ReduceOp.SUM, tp); targets[...] = 0 if len(losses) == steps else targets",
        kind="lent",
    ),
    Mutant(
        "9.4",
        "returns losses of NumPy for many ranks",
        "all_reduce(squares, ReduceOp.SUM, tp)",
        "all_reduce(squares, ReduceOp.SUM, tp); weight = weight.astype(np.float32) if len(losses) == steps else weight",
        kind="dtype",
    ),
    Mutant(
        "9.4",
        "changes the samples that it was lent",
        "all_reduce(squares, ReduceOp.SUM, tp)",
        "all_reduce(squares, ReduceOp.SUM, tp); samples *= 1.0001",
        kind="lent",
    ),
    # 9.5 choose_layout
    Mutant("9.5", "ZeRO-2 keeps all gradients", "(dp if zero >= 2 else 1)", "(dp if zero >= 3 else 1)"),
    Mutant("9.5", "ZeRO-3 keeps its optimizer state", "(dp if zero >= 1 else 1)", "(dp if zero in (1, 2) else 1)"),
    Mutant(
        "9.5", "GPipe: all micro-batches are in flight", "min(model.global_batch // dp, pp)", "model.global_batch // dp"
    ),
    Mutant(
        "9.5", "assumes as many micro-batches in flight as pipeline ranks", "min(model.global_batch // dp, pp)", "pp"
    ),
    Mutant("9.5", "every rank has the activations of all layers", "(model.layers // pp) * 34", "model.layers * 34"),
    Mutant("9.5", "ignores the bubble", "(micro_batches + pp - 1) * 6", "micro_batches * 6"),
    Mutant(
        "9.5",
        "the mesh in reverse order",
        "crosses_machines((pp, dp, tp), dim,",
        "crosses_machines((tp, dp, pp), 2 - dim,",
    ),
    Mutant(
        "9.5",
        "counts the messages of all layers on every GPU",
        "model.layers // pp, micro_batches)",
        "model.layers, micro_batches)",
    ),
    Mutant("9.5", "gradients of the full model", "dp_bytes(2 * mine,", "dp_bytes(2 * model.parameters,"),
    Mutant(
        "9.5",
        "counts the micro-batches of all replicas",
        "    micro_batches = model.global_batch // dp\n    mine = model.parameters / (tp * pp)\n",
        "    micro_batches = model.global_batch\n    mine = model.parameters / (tp * pp)\n",
    ),
    Mutant("9.5", "requires a free byte", "<= hardware.memory:", "< hardware.memory:"),
    Mutant(
        "9.5", "allows any ZeRO stage with a pipeline", "1 if dp == 1 else 2 if pp > 1 else 4", "1 if dp == 1 else 4"
    ),
    Mutant("9.5", "allows uneven layers", " or model.layers % pp", ""),
    Mutant("9.5", "allows uneven heads", "or model.heads % tp ", ""),
    Mutant("9.5", "allows uneven batches", " or model.global_batch % dp:", ":"),
    Mutant(
        "9.5",
        "any of the fastest, not the smallest of them",
        "return min(fastest, key=lambda layout: memory_bytes(model, *layout))",
        "return fastest[0]",
    ),
    Mutant(
        "9.5",
        "the smallest layout, not the fastest",
        "limit = min(seconds.values()) * (1 + 1e-6)",
        "limit = max(seconds.values())",
    ),
    Mutant(
        "9.5",
        "counts times within 5 per cent as equal",
        "(1 + 1e-6)",
        "1.05",
    ),
    Mutant(
        "9.5",
        "raises no ValueError of its own",
        """
        if not seconds:
            raise ValueError(f"no allowed layout fits on {hardware.gpus} GPUs of {hardware.memory:,.0f} bytes")
        """,
        "",
    ),
    Mutant(
        "9.5",
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
    Mutant("9.5", "times that differ by rounding are not equal", "(1 + 1e-6)", "1", kind="edge"),
    Mutant("9.5", "times within one part in ten million count as equal", "(1 + 1e-6)", "(1 + 1e-7)", kind="edge"),
    Mutant("9.5", "times within one part in 100,000 count as equal", "(1 + 1e-6)", "(1 + 1e-5)", kind="edge"),
    Mutant(
        "9.5",
        "times within a microsecond count as equal",
        "limit = min(seconds.values()) * (1 + 1e-6)",
        "limit = min(seconds.values()) + 1e-6",
        kind="edge",
    ),
    Mutant(
        "9.5",
        "powers of two only",
        "if hardware.gpus % n == 0]",
        "if hardware.gpus % n == 0 and n & (n - 1) == 0]",
        kind="edge",
    ),
    Mutant(
        "9.5",
        "tensor parallelism within a node only",
        "if rest or model.heads % tp",
        "if rest or tp > hardware.in_machine or model.heads % tp",
        kind="edge",
    ),
    Mutant(
        "9.5",
        "pipelines of at most 16 ranks",
        "if rest or model.heads % tp",
        "if rest or pp > 16 or model.heads % tp",
        kind="edge",
    ),
    Mutant(
        "9.5",
        "at least as many micro-batches as pipeline ranks",
        "if rest or model.heads % tp",
        "if rest or model.global_batch // dp < pp or model.heads % tp",
        kind="edge",
    ),
    Mutant(
        "9.5",
        "keeps the seconds of earlier calls",
        "seconds: dict[tuple[int, int, int, int], float] = {}",
        'seconds = globals().setdefault("_seconds", {})',
        kind="second call",
    ),
    Mutant(
        "9.5",
        "remembers seconds by the layout",
        """
        seconds[dp, tp, pp, zero] = step_seconds(model, hardware, dp, tp, pp, zero)
        """,
        """
        known, key = globals().setdefault("_known", {}), (model, hardware.gpus, dp, tp, pp, zero)
        seconds[key[2:]] = known.setdefault(key, step_seconds(model, hardware, dp, tp, pp, zero))
        """,
        kind="second call",
    ),
    Mutant(
        "9.5",
        "remembers the memory of a layout",
        """
        if memory_bytes(model, dp, tp, pp, zero) <= hardware.memory:
        """,
        """
        known, key = globals().setdefault("_memory", {}), (model.layers, dp, tp, pp, zero)
        if known.setdefault(key, memory_bytes(model, dp, tp, pp, zero)) <= hardware.memory:
        """,
        kind="second call",
    ),
    Mutant(
        "9.5",
        "rounds memory down to the gigabyte",
        "if memory_bytes(model, dp, tp, pp, zero) <= hardware.memory:",
        "if memory_bytes(model, dp, tp, pp, zero) // 1e9 <= hardware.memory // 1e9:",
        kind="edge",
    ),
    Mutant(
        "9.5",
        "32-bit floats",
        "return parameters + gradients + optimizer + activations",
        "return np.float32(parameters + gradients + optimizer + activations)",
        kind="dtype",
    ),
    Mutant(
        "9.5",
        "half of the largest stages",
        "stages = 1 if dp == 1 else 2 if pp > 1 else 4",
        "stages = 1 if dp == 1 else 2 if pp > 1 else 3",
        kind="edge",
    ),
    Mutant(
        "9.5",
        "takes the smallest layout of all within the tolerance of the smallest",
        "return min(fastest, key=lambda layout: memory_bytes(model, *layout))",
        "return min(sorted(fastest, key=seconds.get)[:2], key=lambda layout: memory_bytes(model, *layout))",
        kind="edge",
    ),
    Mutant(
        "9.5",
        "two replicas use stage 1 at most",
        "stages = 1 if dp == 1 else 2 if pp > 1 else 4",
        "stages = 1 if dp == 1 else 2 if pp > 1 or dp == 2 else 4",
        kind="edge",
    ),
    Mutant(
        "9.5",
        "rounds times to microseconds",
        "limit = min(seconds.values()) * (1 + 1e-6)",
        "seconds = {k: round(v, 6) for k, v in seconds.items()}; limit = min(seconds.values())",
        kind="edge",
    ),
    Mutant(
        "9.5",
        "times in float32",
        "limit = min(seconds.values()) * (1 + 1e-6)",
        "seconds = {k: float(np.float32(v)) for k, v in seconds.items()}; limit = min(seconds.values())",
        kind="dtype",
    ),
    # 9.6 covering
    Mutant("9.6", "ignores settings of 0", "if value is not None]", "if value]"),
    Mutant("9.6", "counts None as a setting", " if value is not None]", "]"),
    Mutant(
        "9.6",
        "pairs of values, without their keys",
        "known = [(key, value) for key, value in row.items() if value is not None]",
        "known = [value for value in row.values() if value is not None]",
    ),
    Mutant("9.6", "covers settings, not pairs", "combinations(known, 2)", "combinations(known, 1)"),
    Mutant("9.6", "covers triples, not pairs", "combinations(known, 2)", "combinations(known, 3)"),
    Mutant("9.6", "takes the last of equals", "max(range(len(rows)),", "max(reversed(range(len(rows))),"),
    Mutant(
        "9.6",
        "counts covered pairs too",
        "key=lambda i: len(pairs[i] & missing))",
        "key=lambda i: len(pairs[i]) * bool(pairs[i] & missing))",
    ),
    Mutant(
        "9.6",
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
    Mutant("9.6", "returns all rows", "return chosen", "return list(range(len(rows)))"),
    Mutant("9.6", "stops one pair too early", "while missing:", "while len(missing) > 1:"),
    Mutant("9.6", "returns the choice in the order of the rows", "return chosen", "return sorted(chosen)"),
    Mutant(
        "9.6", "returns the rows instead of their indices", "return chosen", "return [dict(rows[i]) for i in chosen]"
    ),
    Mutant(
        "9.6",
        "a text and a number that look the same are the same",
        "known = [(key, value) for",
        "known = [(key, str(value)) for",
        kind="dtype",
    ),
    Mutant(
        "9.6",
        "an empty text is no setting",
        "if value is not None]",
        'if value is not None and value != ""]',
        kind="edge",
    ),
    Mutant(
        "9.6",
        "pairs in the order of the keys of the row",
        "{frozenset(pair) for pair in combinations(known, 2)}",
        "set(combinations(known, 2))",
        kind="edge",
    ),
    Mutant(
        "9.6",
        "sorts settings, which may have different types",
        "combinations(known, 2)",
        "combinations(sorted((value, key) for key, value in known), 2)",
        kind="dtype",
    ),
    Mutant(
        "9.6",
        "whole numbers only",
        "known = [(key, value) for",
        "known = [(key, int(value) if isinstance(value, float) else value) for",
        kind="dtype",
    ),
    Mutant(
        "9.6",
        "negative values do not apply",
        "if value is not None]",
        "if value is not None and not (isinstance(value, int | float) and value < 0)]",
        kind="edge",
    ),
    Mutant(
        "9.6",
        "keeps its list of chosen rows",
        """
        chosen = []
        """,
        """
        chosen = globals().setdefault("_chosen", [])
        """,
        kind="second call",
    ),
    Mutant(
        "9.6",
        "empties and returns the same list",
        """
        chosen = []
        """,
        """
        chosen = globals().setdefault("_chosen", [])
        chosen.clear()
        """,
        kind="second call",
    ),
    Mutant(
        "9.6",
        "remembers the choice by the number of rows and keys",
        """
        return chosen
        """,
        """
        known, key = globals().setdefault("_known", {}), (len(rows), len(rows[0]) if rows else 0)
        return list(known.setdefault(key, chosen))
        """,
        kind="second call",
    ),
    Mutant(
        "9.6",
        "removes settings that do not apply from the rows that it was lent",
        "known = [(key, value) for key, value in row.items() if value is not None]",
        "[row.pop(key) for key in list(row) if row[key] is None]; known = list(row.items())",
        kind="lent",
    ),
    Mutant(
        "9.6",
        "removes the chosen rows from the list that it was lent",
        "missing -= pairs[best]",
        "missing -= pairs[best]; rows[best] = {}",
        kind="lent",
    ),
    Mutant(
        "9.6",
        "removes duplicates first",
        """
        pairs.append({frozenset(pair) for pair in combinations(known, 2)})
        """,
        """
        of_row = {frozenset(pair) for pair in combinations(known, 2)}
        if of_row not in pairs:
            pairs.append(of_row)
        """,
        kind="edge",
    ),
    Mutant(
        "9.6",
        "stops after a fixed number of rows",
        "while missing:",
        "while missing and len(chosen) < 20:",
        kind="edge",
    ),
    Mutant(
        "9.6",
        "remembers the choice from a list, whatever it holds by now",
        """
        return chosen
        """,
        """
        known = globals().setdefault("_known", [])
        known.append((rows, chosen))
        return list(next(chosen for earlier, chosen in known if earlier is rows))
        """,
        kind="second call",
    ),
    Mutant(
        "9.6", "fails without rows", "missing = set().union(*pairs)", "missing = pairs[0].union(*pairs)", kind="edge"
    ),
    Mutant(
        "9.6",
        "compares settings as text",
        "{frozenset(pair) for pair in combinations(known, 2)}",
        "{frozenset(f'{k}={v}' for k, v in pair) for pair in combinations(known, 2)}",
        kind="dtype",
    ),
]
