"""The lines of each algorithm, as comm/algorithms.py has them without their group, and those that a step runs."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Code:
    """Lines of Python, and (step, N) -> the numbers of those that this step runs."""

    lines: tuple[str, ...]
    lit: Callable[[int, int], tuple[int, ...]]

    def at(self, step: int, ranks: int) -> tuple[int, ...]:
        """The lines that light up; none before the first step."""
        return self.lit(step, ranks) if step else ()


REDUCE_SCATTER_RING = (
    "for step in range(size - 1):",
    "    outgoing = chunks[(rank-1-step) % size]",
    "    incoming = chunks[(rank-2-step) % size]",
    "    sendrecv(outgoing, right,",
    "             incoming, left, combine)",
)
ALL_GATHER_RING = (
    "for step in range(size - 1):",
    "    outgoing = chunks[(rank-step) % size]",
    "    incoming = chunks[(rank-1-step) % size]",
    "    sendrecv(outgoing, right,",
    "             incoming, left)",
)

CODE = {
    ("broadcast", "tree"): Code(
        (
            "while distance < size:",
            "    if (place < distance and",
            "            place + distance < size):",
            "        send(flat, (rank + distance) % size)",
            "    elif distance <= place < 2 * distance:",
            "        recv(flat, (rank - distance) % size)",
            "    distance *= 2",
        ),
        lambda step, n: (3, 5),
    ),
    ("broadcast", "naive"): Code(
        (
            "if rank == src:",
            "    for rank in range(size):",
            "        if rank != src:",
            "            send(flat, rank)",
            "else:",
            "    recv(flat, src)",
        ),
        lambda step, n: (3, 5),
    ),
    ("broadcast", "ring"): Code(
        (
            "if rank != src:",
            "    recv(piece, left)",
            "if right != src:",
            "    isend(piece, right)",
        ),
        lambda step, n: (1, 3),
    ),
    ("ring", "ring"): Code(
        REDUCE_SCATTER_RING + ALL_GATHER_RING, lambda step, n: (1, 2, 3, 4) if step < n else (6, 7, 8, 9)
    ),
    ("ring", "naive"): Code(
        (
            "if rank == dst:",
            "    for rank in range(size):",
            "        if rank != dst:",
            "            recv_reduce(flat, rank, combine)",
            "else:",
            "    send(flat, dst)",
            "broadcast_naive(flat, 0)",
        ),
        lambda step, n: (3, 5) if step < n else (6,),
    ),
    ("ring", "halving-doubling"): Code(
        (
            "while high - low > 1:",
            "    keep, give = (halves if rank < middle",
            "                  else halves[::-1])",
            "    sendrecv(given, partner,",
            "             kept, partner, combine)",
            "    low, high = keep",
            "for partner, kept, given in reversed(swaps):",
            "    sendrecv(kept, partner, given, partner)",
        ),
        lambda step, n: (1, 2, 3, 4, 5) if step < n.bit_length() else (7,),
    ),
    ("reduce-scatter", "ring"): Code(REDUCE_SCATTER_RING, lambda step, n: (1, 2, 3, 4)),
    ("all-gather", "ring"): Code(ALL_GATHER_RING, lambda step, n: (1, 2, 3, 4)),
    ("all-to-all", "pairwise"): Code(
        (
            "incoming[rank][:] = outgoing[rank]",
            "for step in range(1, size):",
            "    right, left = ((rank + step) % size,",
            "                   (rank - step) % size)",
            "    sendrecv(outgoing[right], right,",
            "             incoming[left], left)",
        ),
        lambda step, n: (2, 3, 4, 5),
    ),
}
