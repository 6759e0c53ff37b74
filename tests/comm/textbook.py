"""The messages of every algorithm as its textbook lists them: (source, destination, bytes) -> how many.

Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH" (2005); for two trees
Sanders, Speck and Träff (2009); for several nodes the docstrings of two_level.py. N ranks, M bytes of the whole buffer.
"""

from collections import Counter
from itertools import pairwise
from math import ceil, log2

from minidist.comm.algorithms import SEGMENT_BYTES
from minidist.comm.double_tree import double_tree, trees_below


def ring(ranks, m, steps) -> Counter:
    """Return ``steps`` messages of m bytes from each rank to its right neighbour."""
    right = zip(ranks, [*ranks[1:], ranks[0]], strict=True)
    return Counter({(a, b, m): steps for a, b in right if a != b and steps})


def everyone(ranks, m) -> Counter:
    return Counter((a, b, m) for a in ranks for b in ranks if a != b)


def chain(ranks, m) -> Counter:
    """The pieces of a pipelined broadcast, from the first to the last."""
    pieces = max(1, -(-m // SEGMENT_BYTES))
    return Counter({(a, b, m // pieces): pieces for a, b in pairwise(ranks)})


def binomial(n, root, m, up: bool) -> Counter:
    """Down, a rank's parent lacks the highest bit of its place; up, the lowest."""
    found = Counter()
    for place in range(1, n):
        bit = place & -place if up else 1 << place.bit_length() - 1
        child, parent = (root + place) % n, (root + place - bit) % n
        found[(child, parent, m) if up else (parent, child, m)] += 1
    return found


def halving_doubling(n, m) -> Counter:
    """Twice with each partner as far away as a power of two; ranks beyond the largest power have a helper."""
    power, found = 1 << n.bit_length() - 1, Counter()
    for bit in range(power.bit_length() - 1):
        found += Counter({(a, a ^ 1 << bit, (m << bit) // power): 2 for a in range(power)})
    return found + Counter(pair for a in range(power, n) for pair in [(a, a - power, m), (a - power, a, m)])


def trees(both, m, up: bool) -> Counter:
    """Half of the buffer along each edge of each tree, in pieces."""
    pieces, found = max(1, -(-m // (2 * SEGMENT_BYTES))), Counter()
    for parents in both:
        for child, parent in enumerate(parents):
            if parent is not None:
                found[(child, parent, m // 2 // pieces) if up else (parent, child, m // 2 // pieces)] += pieces
    return found


def messages(collective: str, algorithm: str, nodes: int, each: int, m: int, root: int) -> Counter:
    """Return the messages of one call, on ``nodes`` nodes with ``each`` ranks each. Everything divides m."""
    n, nobody = nodes * each, Counter()
    ranks, one = [*range(n)], m // n  # a rank's part
    rows = [ranks[node * each : (node + 1) * each] for node in range(nodes)]
    columns = [ranks[local::each] for local in range(each)]
    if algorithm == "hierarchical" and collective == "all_to_all_single":  # colleagues tell each other sizes first
        inside = sum((everyone(row, 8 * nodes) + everyone(row, m // each) for row in rows), nobody)
        return sum((everyone(column, m // nodes) for column in columns), inside)
    if algorithm == "hierarchical":
        inside = sum((ring(row, m // each, each - 1) for row in rows), nobody)
        if collective == "broadcast":
            home = root // each
            scattered = Counter((root, rank, m // each) for rank in rows[home] if rank != root)
            return sum((chain(column[home:] + column[:home], m // each) for column in columns), scattered + inside)
        half = sum((ring(column, one, nodes - 1) for column in columns), inside)
        return half + half if collective == "all_reduce" else half
    if collective == "all_reduce" and algorithm in ("naive", "tree"):
        up, down = (messages(name, algorithm, nodes, each, m, 0) for name in ("reduce", "broadcast"))
        return up + down
    others, part = [rank for rank in ranks if rank != root], one if collective in ("scatter", "gather") else m
    return {
        ("all_reduce", "ring"): lambda: ring(ranks, one, 2 * (n - 1)),
        ("all_reduce", "two_shot"): lambda: everyone(ranks, one) + everyone(ranks, one),
        ("all_reduce", "direct"): lambda: everyone(ranks, m),
        ("all_reduce", "halving_doubling"): lambda: halving_doubling(n, m),
        ("all_reduce", "double_tree"): lambda: trees(double_tree(n), m, up=True) + trees(double_tree(n), m, up=False),
        ("broadcast", "ring"): lambda: chain(ranks[root:] + ranks[:root], m),
        ("broadcast", "double_tree"): lambda: trees(trees_below(root, n), m, up=False),
        ("broadcast", "tree"): lambda: binomial(n, root, m, up=False),
        ("reduce", "tree"): lambda: binomial(n, root, m, up=True),
    }.get((collective, algorithm), lambda: {
        "broadcast": Counter((root, rank, part) for rank in others),
        "reduce": Counter((rank, root, part) for rank in others),
        "scatter": Counter((root, rank, part) for rank in others),
        "gather": Counter((rank, root, part) for rank in others),
    }.get(collective) or (ring(ranks, one, n - 1) if algorithm == "ring" else everyone(ranks, one)))()  # fmt: skip


def seconds(n: int, a: float, b: float, pieces: int) -> dict[tuple[str, str], float]:
    """Return seconds on links that are all alike: a for a message, b for all bytes of the buffer (Thakur et al.).

    Two trees, each with half of the buffer in pieces, are as drawn by hand for two and three ranks.
    """
    parts, wholes, levels = (n - 1) * (a + b / n), (n - 1) * (a + b), ceil(log2(n)) * (a + b)
    found = {
        ("all_reduce", "ring"): 2 * parts, ("all_reduce", "two_shot"): 2 * parts, ("all_reduce", "tree"): 2 * levels,
        ("all_reduce", "naive"): 2 * wholes, ("all_reduce", "direct"): wholes,
        ("all_to_all_single", "pairwise"): parts, ("scatter", "direct"): parts, ("gather", "direct"): parts,
    }  # fmt: skip
    found |= {(name, "naive"): wholes for name in ("broadcast", "reduce")}
    found |= {(name, "tree"): levels for name in ("broadcast", "reduce")}
    for half in ("reduce_scatter_tensor", "all_gather_into_tensor"):
        found[half, "ring"] = found[half, "direct"] = parts
    piece = a + b / (2 * pieces)
    found |= {("all_reduce", "double_tree"): 2 * (n - 1) * pieces * piece} if n in (2, 3) else {}
    found |= {("broadcast", "double_tree"): (2 * pieces + n - 2) * piece} if n in (2, 3) else {}
    if n & (n - 1) == 0:
        found["all_reduce", "halving_doubling"] = 2 * log2(n) * a + 2 * (n - 1) / n * b
    return found
