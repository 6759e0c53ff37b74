"""Move what is smallest: activations (tokens), weights, or partial sums of the hidden layer."""

import numpy as np

from minidist import all_gather_into_tensor, all_to_all_single, reduce_scatter_tensor


def layout(tokens, width, hidden, ranks):
    elements = {
        "tokens": 2 * tokens * width,
        "weights": 2 * width * hidden,
        "hidden": 2 * tokens * hidden + 2 * tokens * width // ranks,
    }
    return min(elements, key=elements.get)


def place_weights(a, b, tokens, rank, ranks):
    way = layout(tokens, *a.shape, ranks)
    if way == "tokens":
        mine = np.array_split(np.arange(a.shape[1]), ranks)[rank]
        return [a[:, mine], b[mine]]
    mine = np.array_split(np.arange(a.shape[0]), ranks)[rank]
    return [a[mine], b[:, mine]]


def gathered(mine, group):
    """The arrays of all ranks, one after the other."""
    whole = np.empty((group.size, *mine.shape), mine.dtype)
    all_gather_into_tensor(whole, np.ascontiguousarray(mine), group)
    return whole


def transposed(pieces, group):
    """(N, ...): piece r goes to rank r."""
    arrived = np.empty_like(pieces)
    all_to_all_single(arrived, np.ascontiguousarray(pieces), group=group)
    return arrived


def mlp(x, placed, tokens, width, hidden, group):
    a, b = placed
    ranks, rows = group.size, len(x)
    way = layout(tokens, width, hidden, ranks)
    if way == "tokens":
        partial = np.maximum(gathered(x, group).reshape(tokens, width) @ a, 0) @ b
        y = np.empty_like(x)
        reduce_scatter_tensor(y, partial, group=group)
        return y
    if way == "weights":
        a = gathered(a, group).reshape(width, hidden)
        b = np.concatenate(list(gathered(b, group)), axis=1)
        return np.maximum(x @ a, 0) @ b
    mine = transposed(x.reshape(rows, ranks, -1).swapaxes(0, 1).copy(), group).reshape(tokens, -1)  # my columns of x
    sums = np.empty((rows, hidden), np.int64)
    reduce_scatter_tensor(sums, mine @ a, group=group)
    h = gathered(np.maximum(sums, 0), group).reshape(tokens, hidden)
    y = transposed((h @ b).reshape(ranks, rows, -1), group)
    return np.concatenate(list(y), axis=1)
