"""Mutants of chapter 10."""

from minidist.course.authoring.mutants import WHOLE, Mutant

MUTANTS = [
    # 10.1 the wall
    Mutant("10.1", "one head only", "return batch * heads * length**2", "return batch * length**2"),
    Mutant("10.1", "half of the scores, as if the mask were free", "length**2 * itemsize", "length**2 * itemsize // 2"),
    Mutant("10.1", "all tiles, without the mask", "count * (count + 1) // 2", "count * count"),
    Mutant("10.1", "without the tiles on the diagonal", "count * (count + 1) // 2", "count * (count - 1) // 2"),
    Mutant(
        "10.1", "leaves out a shorter last tile", "count = ceil(length / tile)", "count = length // tile", kind="edge"
    ),
    Mutant("10.1", "two passes over the scores", "return 4 * length**2", "return 2 * length**2"),
    Mutant("10.1", "leaves out q, k, v and the output", "+ 4 * length * width", ""),
    Mutant("10.1", "keys and not values", "+ 2 * read * width", "+ read * width"),
    Mutant("10.1", "the number for each query is not written", "+ length + 2", "+ 2"),
    Mutant("10.1", "whole tiles only", "min(start + tile, length) for", "start + tile for", kind="edge"),
    Mutant("10.1", "reads all keys", "min(start + tile, length) for", "length for"),
    # 10.2 tiled_forward
    Mutant("10.2", "no rescaling of the values", "values_so_far * rescale + scores", "values_so_far + scores"),
    Mutant("10.2", "no rescaling of the weights", "weight * rescale + scores.sum", "weight + scores.sum"),
    Mutant(
        "10.2",
        "no running maximum",
        "scores[...] = np.exp(scores - largest)",
        "scores[...] = np.exp(scores); largest[...] = 0; before[...] = 0",
    ),
    Mutant(
        "10.2",
        "the maximum of the tile alone",
        "np.maximum(largest, scores.max(axis=1, keepdims=True), out=largest)",
        "largest[...] = scores.max(axis=1, keepdims=True)",
        kind="edge",
    ),
    Mutant("10.2", "later keys of the diagonal count", "if first == start:", "if False:"),
    Mutant("10.2", "the diagonal itself is hidden", "np.triu_indices(count, 1)", "np.triu_indices(count, 0)"),
    Mutant(
        "10.2", "all tiles of keys", "for first in range(0, rows.stop, tile):", "for first in range(0, length, tile):"
    ),
    Mutant("10.2", "no scale", "queries @ keys.T / np.sqrt(width)", "queries @ keys.T"),
    Mutant(
        "10.2",
        "divides after every tile",
        "values_so_far[...] = values_so_far * rescale + scores @ values",
        "values_so_far[...] = (values_so_far * rescale + scores @ values) / weight",
    ),
    Mutant("10.2", "takes the keys without loading them", "queries @ keys.T", "queries @ k[columns].T"),
    Mutant(
        "10.2",
        "loads the queries again for each tile of keys",
        "scores[...] = queries @ keys.T",
        "with memory.load(q, slice(0, 0)): memory.reads += queries.size\n"
        "                    scores[...] = queries @ keys.T",
    ),
    Mutant(
        "10.2",
        "whole tiles only",
        "rows = slice(start, min(start + tile, length))",
        "rows = slice(start, min(start + tile, length // tile * tile or length))",
        kind="edge",
    ),
    Mutant(
        "10.2",
        "all scores at once, beside the tiles",
        "output = np.empty((length, width))",
        "output = np.empty((length, width)); everything = np.zeros((length, length))",
    ),
    Mutant(
        "10.2",
        "returns one output for each shape",
        "output = np.empty((length, width))",
        "output = vars(tiled_forward).setdefault((length, width), np.empty((length, width)))",
        kind="second call",
    ),
    # 10.3 merge
    Mutant("10.3", "rescales neither sum", "shift.astype(np.int32)", "0 * shift.astype(np.int32)"),
    Mutant("10.3", "the wrong way", "shift.astype(np.int32)", "-np.maximum(shift, -400).astype(np.int32)"),
    Mutant(
        "10.3",
        "rescales the values alone",
        "np.ldexp(part[field], shift.astype(np.int32))",
        "np.ldexp(part[field], shift.astype(np.int32) * (field == 2))",
    ),
    Mutant("10.3", "keeps the first exponent", "return exponent, weight", "return first[0].copy(), weight"),
    Mutant(
        "10.3",
        "one exponent for all queries",
        "exponent = np.maximum(first[0], second[0])",
        "exponent = np.full_like(first[0], max(first[0].max(), second[0].max()))",
    ),
    Mutant(
        "10.3",
        "nothing is smaller than 2^-40",
        "np.ldexp(part[field], shift.astype(np.int32))",
        "part[field] * np.exp2(np.maximum(shift, -40).astype(np.float32))",
    ),
    Mutant("10.3", "divides too early", "return exponent, weight, value", "return exponent, weight, value / weight"),
    Mutant("10.3", "exponents in eight bits", "shift.astype(np.int32)", "shift.astype(np.int8)", kind="edge"),
    Mutant(
        "10.3",
        "exponents in sixteen bits of a float",
        "np.maximum(part[0] - exponent, -3000)",
        "np.maximum((part[0] - exponent).astype(np.float16), -40)",
        kind="edge",
    ),
    Mutant(
        "10.3",
        "adds into the first partial",
        "return exponent, weight, value",
        "first[1][...] = weight; return exponent, weight, value",
        kind="lent",
    ),
    Mutant(
        "10.3",
        "returns the first one's exponent where it is the larger",
        "return exponent, weight",
        "return (first[0] if (first[0] >= second[0]).all() else exponent), weight",
        kind="lent",
    ),
    Mutant(
        "10.3",
        "keeps its exponents",
        "exponent = np.maximum(first[0], second[0])",
        "exponent = vars(merge).setdefault(first[0].shape, np.maximum(first[0], second[0]))",
        kind="second call",
    ),
    # 10.4 ring_forward
    Mutant(
        "10.4",
        "the other way round",
        "irecv(following, left, group), isend(keys_values, right, group)",
        "irecv(following, right, group), isend(keys_values, left, group)",
    ),
    Mutant("10.4", "counts the ranks the wrong way", "visit((group.rank - step)", "visit((group.rank + step)"),
    Mutant("10.4", "always its own keys and values", "keys_values = following", "pass"),
    Mutant(
        "10.4",
        "waits before it visits",
        "works = [irecv(following, left, group), isend(keys_values, right, group)]",
        "works = [irecv(following, left, group), isend(keys_values, right, group)]; [w.wait() for w in works]",
    ),
    Mutant("10.4", "one hop too many", "last = step == group.size - 1", "last = group.size == 1"),
    Mutant(
        "10.4",
        "does not visit itself",
        "visit((group.rank - step) % group.size, keys_values)",
        "step and visit((group.rank - step) % group.size, keys_values)",
    ),
    Mutant(
        "10.4",
        "receives into what it sends",
        "following = np.empty_like(keys_values)",
        "following = keys_values if step else np.empty_like(keys_values)",
    ),
    Mutant(
        "10.4",
        "receives into what it was lent",
        "following = np.empty_like(keys_values)",
        "following = keys_values",
        kind="lent",
    ),
    Mutant("10.4", "receives float64", "np.empty_like(keys_values)", "np.empty(keys_values.shape)", kind="dtype"),
    Mutant(
        "10.4",
        "one buffer for each shape, in every call",
        "following = np.empty_like(keys_values)",
        "following = vars(ring_forward).setdefault((keys_values.shape, keys_values.dtype), np.empty_like(keys_values))",
        kind="second call",
    ),
    Mutant(
        "10.4",
        "its last send is never waited for",
        """
            for work in works:
                work.wait()
           """,
        """
            works[0].wait()
           """,
        kind="lent",
    ),
    Mutant(
        "10.4",
        "seven hops at most",
        "last = step == group.size - 1",
        "last = step == group.size - 1\n        if step == 7:\n            break",
        kind="edge",
    ),
    # 10.5 sequence_chunks_of
    Mutant(
        "10.5",
        "striped: every N-th part",
        "mine = [rank, parts - 1 - rank] if paired else [rank]",
        "mine = [rank, rank + ranks] if paired else [rank]",
    ),
    Mutant("10.5", "the late part first", "[rank, parts - 1 - rank]", "[parts - 1 - rank, rank]"),
    Mutant("10.5", "one chunk of each part", "for chunk in range(each)", "for chunk in range(1)", kind="edge"),
    Mutant("10.5", "all kinds contiguous", 'paired = kind in ("zigzag", "all-gather")', "paired = False"),
    Mutant("10.5", "all-gather is contiguous", 'kind in ("zigzag", "all-gather")', 'kind == "zigzag"'),
    Mutant("10.5", "off by one part", "parts - 1 - rank", "parts - rank - (rank > 0)"),
    Mutant("10.5", "refuses nothing", "if chunks % parts:", "if False:"),
    Mutant("10.5", "refuses by the number of ranks alone", "if chunks % parts:", "if chunks % ranks:", kind="edge"),
    Mutant("10.5", "ranks in reverse order", "mine = [rank, parts", "mine = [ranks - 1 - rank, parts - ranks +"),
    Mutant(
        "10.5",
        "returns a tuple",
        "return [part * each + chunk for part in mine for chunk in range(each)]",
        "return tuple(part * each + chunk for part in mine for chunk in range(each))",
    ),
    Mutant(
        "10.5",
        "keeps the parts of the first kind",
        "parts = 2 * ranks if paired else ranks",
        "paired, parts = vars(sequence_chunks_of).setdefault(ranks, (paired, 2 * ranks if paired else ranks))",
        kind="second call",
    ),
    # 10.6 ring_backward
    Mutant("10.6", "stale keys and values: always its own", "keys_values = wait_for(ahead)", "wait_for(ahead)"),
    Mutant(
        "10.6", "one hop short of home", "return gradients.of(wait_for(behind))", "wait_for(behind); return gradients"
    ),
    Mutant("10.6", "loses what was behind", "gradients.merge(gradients.of(wait_for(behind)))", "wait_for(behind)"),
    Mutant(
        "10.6",
        "keys the other way round",
        "return arriving, [irecv(arriving, left, group, tag), isend(array, right, group, tag)]",
        "a, b = (left, right) if tag else (right, left); "
        "return arriving, [irecv(arriving, a, group, tag), isend(array, b, group, tag)]",
    ),
    Mutant(
        "10.6",
        "merges its own part twice",
        "behind = pass_on(gradients.arrays(), 1)",
        "gradients.merge(gradients.of(gradients.arrays())); behind = pass_on(gradients.arrays(), 1)",
    ),
    Mutant(
        "10.6",
        "waits for the keys before it visits",
        "ahead = None if last else pass_on(keys_values, 0)",
        "ahead = None if last else pass_on(keys_values, 0); last or [w.wait() for w in ahead[1]]",
    ),
    Mutant(
        "10.6",
        "never waits for what it sends",
        """
            for work in works:
                work.wait()
        """,
        """
            works[0].wait()
        """,
        kind="lent",
    ),
    Mutant(
        "10.6",
        "gradients in float64",
        "arriving = np.empty_like(array)",
        "arriving = np.empty(array.shape)",
        kind="dtype",
    ),
    Mutant(
        "10.6",
        "gradients as large as keys and values",
        "arriving = np.empty_like(array)",
        "arriving = np.empty_like(keys_values)",
        kind="edge",
    ),
    Mutant(
        "10.6",
        "keeps the neighbours of the first group",
        "right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size",
        'right, left = vars(ring_backward).setdefault("kept", ((group.rank + 1) % group.size, '
        "(group.rank - 1) % group.size))",
        kind="second call",
    ),
    Mutant(
        "10.6", "the keys of the last hop go round once more", "last = step == group.size - 1", "last = group.size == 1"
    ),
    # 10.7 bytes
    Mutant("10.7", "keys and not values", "* 2 * kv_width * itemsize", "* kv_width * itemsize"),
    Mutant("10.7", "N steps", "return (ranks - 1) * (length", "return ranks * (length"),
    Mutant("10.7", "all tokens in each step", "(length / ranks) * 2 * kv_width", "length * 2 * kv_width"),
    Mutant("10.7", "a number has four bytes", "2 * kv_width * itemsize", "2 * kv_width * 4"),
    Mutant("10.7", "the output does not travel back", "(2 * width + 2 * kv_width)", "(width + 2 * kv_width)"),
    Mutant("10.7", "keys as wide as queries", "(2 * width + 2 * kv_width)", "(4 * width)"),
    Mutant("10.7", "a rank keeps nothing", "return (ranks - 1) / ranks * (length", "return (length"),
    Mutant("10.7", "half, however many ranks", "return (ranks + 1) / (2 * ranks)", "return 0.5 + 0 * ranks"),
    Mutant(
        "10.7",
        "the work of the mean rank without its own keys",
        "(ranks + 1) / (2 * ranks)",
        "max(ranks - 1, 1) / (2 * ranks)",
    ),
    Mutant("10.7", "one product a step", "/ (2 * width * bandwidth)", "/ (width * bandwidth)"),
    Mutant(
        "10.7", "an operation is a multiplication and an addition", "itemsize * flops / (2", "itemsize * flops / (1"
    ),
    Mutant("10.7", "without the bytes of a number", "kv_width * itemsize * flops", "kv_width * flops"),
    # 10.8 heads_from_tokens
    Mutant(
        "10.8",
        "tokens and heads exchanged",
        WHOLE,
        """
        heads, tokens, width = x.shape
        outgoing = np.ascontiguousarray(x)
        arrived = np.empty_like(outgoing)
        all_to_all_single(arrived, outgoing, group=group)
        return arrived.reshape(heads // group.size, tokens * group.size, width)
        """,
    ),
    Mutant(
        "10.8",
        "every N-th head",
        "outgoing = x.reshape(group.size, heads // group.size, tokens, width)",
        "outgoing = x.reshape(heads // group.size, group.size, tokens, width).swapaxes(0, 1)",
    ),
    Mutant(
        "10.8",
        "joins along the heads",
        "np.concatenate(list(arrived), axis=1)",
        "np.concatenate(list(arrived), axis=0)",
    ),
    Mutant("10.8", "tokens in reverse order of the ranks", "list(arrived)", "list(arrived)[::-1]"),
    Mutant(
        "10.8",
        "sends memory as it lies",
        "np.ascontiguousarray(outgoing)",
        'outgoing.ravel(order="K").reshape(outgoing.shape)',
        kind="edge",
    ),
    Mutant("10.8", "receives float64", 'np.empty_like(outgoing, order="C")', "np.empty(outgoing.shape)", kind="dtype"),
    Mutant(
        "10.8",
        "one rank returns what it was lent",
        "heads, tokens, width = x.shape",
        "heads, tokens, width = x.shape\n    if group.size == 1:\n        return x",
        kind="lent",
    ),
    Mutant(
        "10.8",
        "one buffer for each shape",
        "return np.concatenate(list(arrived), axis=1)",
        "return np.concatenate(list(arrived), axis=1, out=vars(heads_from_tokens).setdefault("
        "(x.shape, x.dtype, group.size), np.empty((heads // group.size, tokens * group.size, width), x.dtype)))",
        kind="second call",
    ),
    Mutant(
        "10.8",
        "an all-gather in disguise",
        WHOLE,
        """
        heads = x.shape[0] // group.size
        outgoing = np.ascontiguousarray(np.stack([x] * group.size))
        arrived = np.empty_like(outgoing)
        all_to_all_single(arrived, outgoing, group=group)
        mine = slice(group.rank * heads, (group.rank + 1) * heads)
        return np.concatenate([part[mine] for part in arrived], axis=1)
        """,
    ),
    # 10.9 train_on_chunks
    Mutant(
        "10.9",
        "targets shifted after the cut",
        "x, y = (np.array_split(array, group.size, axis=1)[group.rank] for array in (inputs, targets))",
        "x = np.array_split(inputs, group.size, axis=1)[group.rank]; y = np.roll(x, -1, axis=1)",
    ),
    Mutant(
        "10.9",
        "the last target of each chunk is its own input",
        "count = inputs.size",
        "count = inputs.size; y = y if group.rank == group.size - 1 else np.concatenate([y[:, :-1], x[:, -1:]], 1)",
    ),
    Mutant(
        "10.9",
        "positions from zero on every rank",
        "np.array_split(np.arange(inputs.shape[1]), group.size)[group.rank] / inputs.shape[1]",
        "np.arange(x.shape[1]) / inputs.shape[1]",
    ),
    Mutant(
        "10.9",
        "positions relative to the chunk",
        "[group.rank] / inputs.shape[1]",
        "[group.rank] / x.shape[1]",
    ),
    Mutant("10.9", "the mean over the local tokens", "count = inputs.size", "count = x.size"),
    Mutant(
        "10.9",
        "the mean of the ranks' means",
        "count = inputs.size",
        "count = x.size * group.size",
        kind="edge",
    ),
    Mutant("10.9", "one target too many counts", "count = inputs.size", "count = sequences.size"),
]
