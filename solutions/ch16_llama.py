"""Chapter 16: what a Llama changes: other parts in the same places, and what they mean for every axis.

**Shapes.** C is the width of the model, H the number of its query heads, G that of its heads of keys and values. G
divides H: H / G consecutive query heads share one. D = C / H values of a token belong to one head; D is even.

Forward functions come with a backward, as in chapter 1: it takes the gradient of the output and returns the gradient of
the input. These functions, ``groups_of`` and ``read_slice`` have the names and arguments of minidist's own, so the
library can train with them:

    minidist verify --impl exercises --arch llama --kv-heads 2 tp=4 cp=2,cp_kind=zigzag --steps 5

Any order of operations passes, but that command compares *bits*. To match the library's, take the operations in the
order of the formulas, from left to right, and do what a task says about sums. (With ``--products exact`` the library
has sums and exponentials of its own, and so other bits.)

You may use the imports below, NumPy, and what you write here. ``minidist check 16`` grades this file,
``minidist check --hint 16.1`` gives a hint.
"""

import json
from math import lcm, prod, sqrt
from pathlib import Path

import numpy as np

from minidist import ProcessGroup, all_gather_into_tensor

# 16.1  RMSNorm


def rms_norm_forward(x: np.ndarray, gain: np.ndarray, eps: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """16.1  RMSNorm computes, for the C values of each token:

        inverse = 1 / sqrt(mean of x^2 + eps)
        normal = x inverse
        y = normal gain

    The library takes the sum of squares with ``np.einsum("...c,...c->...", x, x)``. To get its bits, do the same, and
    divide by C.

    Args:
        x: (..., C), float32 or float64, with zero or more leading axes; not modified.
        gain: (C,), of the same dtype.
        eps: as above.

    Returns:
        y (..., C), normal (..., C) and inverse (..., 1), in the dtype of x. Backward needs the last two.
    """
    # >>> 16.1
    squares = np.einsum("...c,...c->...", x, x)[..., None]  # (..., 1)
    inverse = 1 / np.sqrt(squares / x.shape[-1] + eps)  # (..., 1)
    normal = x * inverse
    return normal * gain, normal, inverse
    # <<<


def rms_norm_backward(
    gradient: np.ndarray, normal: np.ndarray, inverse: np.ndarray, gain: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """16.1  The gradients of x and of the gain. All values of a token share ``inverse``, which depends on each of them.

    For the library's bits: first take the gradient of ``normal``; its product with ``normal``, summed over C with
    ``np.einsum`` and divided by C, is what one token needs; multiply by ``inverse`` last. The gradient of the gain is a
    float64 sum of products in the dtype of ``gradient``.

    Args:
        gradient: of y, (..., C); not modified, like all that follow.
        normal, inverse: as ``rms_norm_forward`` returned them.
        gain: (C,)

    Returns:
        The gradient of x (..., C), in the dtype of ``gradient``, and that of the gain (C,): float64, summed in float64
        and not rounded, since other ranks and micro-batches add theirs.
    """
    # >>> 16.1
    width = gradient.shape[-1]
    grad_normal = gradient * gain
    projection = np.einsum("...c,...c->...", grad_normal, normal)[..., None]  # (..., 1)
    grad_x = (grad_normal - normal * (projection / width)) * inverse
    return grad_x, (gradient * normal).reshape(-1, width).sum(axis=0, dtype=np.float64)
    # <<<


# 16.2  Rotary positions
#
# Queries and keys of a head are turned, pair by pair, by an angle that grows with the position. Value i of D is paired
# with value i + D / 2. So the product of a query and a key depends on the distance of their tokens alone.


def rotary_table(first: int, count: int, width: int, base: float) -> tuple[np.ndarray, np.ndarray]:
    """16.2  The cosines and sines of the angles of the positions ``first`` to ``first + count - 1``.

    Position p turns pair i by p base^(-2 i / D), in radians. A float32 has 24 bits: at position 100,000 an angle would
    have no more than seven of them after the binary point. So angles are float64, and only cosines and sines are
    rounded.

    Args:
        first, count: the first position, from the beginning of the sequence, and how many there are.
        width: D, even.
        base: a number, 1 or more.

    Returns:
        Two float32 arrays (count, D / 2).
    """
    # >>> 16.2
    frequencies = float(base) ** (-2 * np.arange(width // 2) / width)  # (D / 2,)
    angles = np.arange(first, first + count)[:, None] * frequencies  # (count, D / 2)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    # <<<


def rotate_forward(x: np.ndarray, cosines: np.ndarray, sines: np.ndarray) -> np.ndarray:
    """16.2  Turn each pair of values: (a, b) becomes (a cos - b sin, b cos + a sin).

    Args:
        x: (..., T, W), float32 or float64; not modified. The first D values of a token are turned, the others are kept:
            the keys come with the values after them, W = 2 D. Queries come alone, W = D.
        cosines, sines: (T, D / 2) float32, of the tokens' positions.

    Returns:
        A new array (..., T, W), of the dtype of x.
    """
    # >>> 16.2
    half = cosines.shape[-1]
    a, b, rest = np.split(x, [half, 2 * half], axis=-1)
    return np.concatenate((a * cosines - b * sines, b * cosines + a * sines, rest), axis=-1)
    # <<<


def rotate_backward(gradient: np.ndarray, cosines: np.ndarray, sines: np.ndarray) -> np.ndarray:
    """16.2  The gradient of x.

    Args:
        gradient: of the output, (..., T, W); not modified.
        cosines, sines: as for ``rotate_forward``.

    Returns:
        A new array (..., T, W), of the dtype of ``gradient``.
    """
    # >>> 16.2
    return rotate_forward(gradient, cosines, -sines)
    # <<<


# 16.3  SwiGLU
#
# Where GPT-2's MLP is two matrices with GELU between them, a Llama has three: x is multiplied by two of them, into a
# *gate* and *up*, F hidden units each. The product gate sigmoid(gate) up goes through the third.


def silu_gate_forward(x: np.ndarray) -> np.ndarray:
    """16.3  gate s up, where s = sigmoid(gate) = 1 / (1 + e^-gate).

    No intermediate result may overflow: e^1000 does. For the library's bits compute s from e^-|gate|, which is s's
    numerator for a negative gate.

    Args:
        x: gate and up, side by side: (..., 2 F), float32 or float64; not modified. Values may be as large as 1e4.

    Returns:
        (..., F), of the dtype of x.
    """
    # >>> 16.3
    gate, up = np.split(x, 2, axis=-1)
    return gate * sigmoid(gate) * up
    # <<<


def sigmoid(x: np.ndarray) -> np.ndarray:
    """16.3  1 / (1 + e^-x), for x of any size, in its dtype."""
    # >>> 16.3
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, small) / (1 + small)
    # <<<


def silu_gate_backward(gradient: np.ndarray, x: np.ndarray) -> np.ndarray:
    """16.3  The gradient of x: the gate's is gradient up (s (1 + gate (1 - s))), that of up is gradient (gate s).

    Derive the first one, and see that it is the derivative of gate sigmoid(gate).

    Args:
        gradient: of the output, (..., F); not modified.
        x: as for ``silu_gate_forward``.

    Returns:
        (..., 2 F), of the dtype of x.
    """
    # >>> 16.3
    gate, up = np.split(x, 2, axis=-1)
    share = sigmoid(gate)
    grad_gate = gradient * up * (share * (1 + gate * (1 - share)))
    return np.concatenate((grad_gate, gradient * (gate * share)), axis=-1)
    # <<<


def gated_hidden(width: int, heads: int) -> int:
    """16.3  F, with which three matrices of C x F have about as many parameters as GPT-2's two of C x 4 C.

    They have no fewer, and F is the least such multiple of the heads: tensor parallelism splits the units by heads,
    evenly.
    """
    # >>> 16.3
    return -(-8 * width // (3 * heads)) * heads
    # <<<


def gpt2_block_parameters(width: int) -> int:
    """16.3  All parameters of a block of GPT-2: four matrices and their biases, two LayerNorms.

    The matrices lead from C to 3 C (queries, keys and values), from C to C, from C to 4 C and back.
    """
    # >>> 16.3
    return 12 * width**2 + 13 * width
    # <<<


def llama_block_parameters(width: int, heads: int, kv_heads: int, hidden: int) -> int:
    """16.3  All parameters of a block of a Llama, without biases: attention, SwiGLU with F = ``hidden``, two RMSNorms.

    There are keys and values for G = ``kv_heads`` heads, of C / H values each.
    """
    # >>> 16.3
    return 2 * width**2 + 2 * width * kv_heads * (width // heads) + 3 * width * hidden + 2 * width
    # <<<


# 16.4  Grouped queries


def groups_of(rank: int, ranks: int, groups: int) -> range:
    """16.4  The key-value heads that a tensor-parallel rank holds.

    Each rank has as many query heads as any other, rank 0 the first ones, and needs the keys and values of these. Where
    the ranks divide the key-value heads, each rank holds equally many. Where there are more ranks than key-value heads,
    and a multiple of them, several consecutive ranks hold the same one.

    Args:
        rank, ranks: this rank, and how many there are.
        groups: G.

    Returns:
        A ``range`` of key-value heads.

    Raises:
        ValueError: for any other number of ranks, with which a rank would need parts of several.
    """
    # >>> 16.4
    if ranks > groups and ranks % groups == 0:
        mine = rank // (ranks // groups)
        return range(mine, mine + 1)
    if groups % ranks:
        raise ValueError(f"{ranks} ranks cannot share {groups} key-value heads")
    each = groups // ranks
    return range(rank * each, (rank + 1) * each)
    # <<<


def shared_gradient(gradient: np.ndarray, kv_heads: int) -> np.ndarray:
    """16.4  The gradient of keys or values that heads share, from the gradients that each of these heads has computed.

    It is a sum over heads that may be on several ranks. It is rounded once, where it is complete: so do not round here.

    Args:
        gradient: (H, ...), float32 or float64, of each head's keys, say; there may be no tokens; not modified.
        kv_heads: G. Heads 0 to H / G - 1 share the first one, and so on.

    Returns:
        (G, ...) float64, summed in float64.
    """
    # >>> 16.4
    heads, *shape = gradient.shape
    return gradient.reshape(kv_heads, heads // kv_heads, *shape).sum(axis=1, dtype=np.float64)
    # <<<


def kv_parameters(width: int, heads: int, kv_heads: int) -> int:
    """16.4  The parameters of the matrices that lead to keys and to values, in one layer, without biases."""
    # >>> 16.4
    return 2 * width * kv_heads * (width // heads)
    # <<<


def ring_bytes(ranks: int, batch: int, length: int, kv_heads: int, head_width: int, itemsize: int) -> int:
    """16.4  The bytes that a context-parallel rank sends around the ring in forward, in one layer.

    Each of N ranks has the keys and values of T / N tokens of B sequences (``batch``, of T = ``length`` tokens), once
    for each key-value head, and all ranks see them. Numbers have ``itemsize`` bytes.
    """
    # >>> 16.4
    return (ranks - 1) * 2 * batch * (length // ranks) * kv_heads * head_width * itemsize
    # <<<


def tensor_ranks(heads: int, kv_heads: int) -> list[int]:
    """16.4  All numbers of tensor-parallel ranks that a layer can have, ascending.

    All ranks have equally many query heads, and ``groups_of`` accepts the number.
    """
    # >>> 16.4
    return [n for n in range(1, heads + 1) if heads % n == 0 and (kv_heads % n == 0 or n % kv_heads == 0)]
    # <<<


def ulysses_kv_heads(ranks: int, kv_heads: int) -> int:
    """16.4  The number of key-value heads, repeated ones included, for which Ulysses' all-to-all sends keys and values.

    It deals out heads, equally many to each of N ranks. If N does not divide G, all key-value heads are repeated
    equally often, and as rarely as possible, so that N divides their number.
    """
    # >>> 16.4
    return lcm(ranks, kv_heads)
    # <<<


def read_slice(folder: Path, tensor: str, rows: range, columns: range) -> np.ndarray:
    """16.5  Some rows and columns of a tensor in a Hugging Face folder, without reading the others.

    So a tensor-parallel rank reads its heads of a matrix of gigabytes, and no more. A folder has one file,
    ``model.safetensors``, or several, and ``model.safetensors.index.json``, in which ``weight_map`` says in which file
    of the folder each tensor is. A file has three parts:

        8 bytes    n, an unsigned integer, little-endian: the lowest byte first
        n bytes    JSON: {"NAME": {"dtype": "F32", "shape": [4, 3], "data_offsets": [0, 48]}, ...}
        the rest   the numbers of all tensors, little-endian, row by row

    ``data_offsets`` are where a tensor begins and ends in the third part. The JSON may have other entries, such as
    ``__metadata__``, and spaces at its end. Numbers are F32, F16 or BF16: a float32 without its lower 16 bits.

    Args:
        folder: the folder.
        tensor: the name of a tensor with one or more axes.
        rows: the rows, places along its first axis: from ``rows.start`` to before ``rows.stop``. There may be none.
        columns: the columns, places along its other axes, all of them flattened into one. A tensor with one axis has
            one column.

    Returns:
        (rows, columns) float32.

    Cost: reads only these numbers of the third part, apart from what Python reads ahead. Use nothing but Python and
    NumPy.
    """
    # >>> 16.5
    path = folder / "model.safetensors"
    if not path.exists():
        path = folder / json.loads((folder / "model.safetensors.index.json").read_bytes())["weight_map"][tensor]
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        entry = json.loads(file.read(length))[tensor]
        values = np.empty((len(rows), len(columns)), {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}[entry["dtype"]])
        width = prod(entry["shape"][1:])
        for place, row in enumerate(rows):
            file.seek(8 + length + entry["data_offsets"][0] + (row * width + columns.start) * values.itemsize)
            values[place] = np.frombuffer(file.read(len(columns) * values.itemsize), values.dtype)
    if entry["dtype"] == "BF16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32)
    # <<<


def turned(x: np.ndarray, positions: np.ndarray, base: float) -> np.ndarray:
    """Given, for 16.6: queries or keys (T, D) of tokens at these positions (T,), turned by their angles."""
    angles = positions[:, None] * float(base) ** (-2 * np.arange(x.shape[1] // 2) / x.shape[1])
    a, b = np.split(x, 2, axis=1)
    return np.concatenate((a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)), axis=1)


def attend_here(q: np.ndarray, k: np.ndarray, v: np.ndarray, base: float, group: ProcessGroup) -> np.ndarray:
    """16.6  Debugging: one head's causal attention with rotary positions, by context-parallel ranks.

    The sequence is cut into 2 N chunks. With *zigzag* rank r has chunks r and 2 N - 1 - r, so all have the same work.
    Each rank turns its queries and keys, and gathers all keys and values.

    The authors tested it on one rank. On more ranks a model trains with it, all ranks agree, and the loss falls. But it
    is not the loss of one process. Find out why, and fix it.

    Args:
        q, k, v: (T, D) float64, of the whole sequence, the same on every rank; not modified. 2 N divides T, D is even.
        base: of the rotary angles.
        group: the N ranks.

    Returns:
        (T/N, D): the output for the tokens of this rank, those of its first chunk first.
    """
    each = len(q) // (2 * group.size)  # tokens in a chunk
    chunks = [(rank, 2 * group.size - 1 - rank) for rank in range(group.size)]
    tokens = [np.concatenate([np.arange(chunk * each, (chunk + 1) * each) for chunk in pair]) for pair in chunks]
    here = tokens[group.rank]
    q, k, v = q[here], k[here], v[here]

    # >>> 16.6
    positions = here
    # === given to the learner
    # positions = np.arange(here[0], here[0] + len(here))
    # <<<
    q, k = turned(q, positions, base), turned(k, positions, base)
    gathered = np.empty((group.size, 2, *k.shape))
    all_gather_into_tensor(gathered, np.stack((k, v)), group)
    k, v = np.concatenate(list(gathered), axis=1)  # (T, D) each, one rank's tokens after the other's

    scores = q @ k.T / sqrt(q.shape[1])
    scores[here[:, None] < np.concatenate(tokens)] = -np.inf  # a query sees no later keys
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True) @ v
