"""Challenge 8: the fewest recomputed operations in a given memory.

This file begins as the library's answer. Change whatever you like, and see what it brings: ``minidist challenge 8``.

A chain of n blocks goes forward, and backward from the last block to the first. A plan is a list of steps:

    F3   compute block 3 from its input; the result, the input of block 4, is at hand until the next F or B
    K4   keep the input of block 4, which is at hand
    D4   drop the input of block 4, which was kept
    B3   backward of block 3: needs its input, kept or at hand, and comes after B4. It runs the inside of block 3 again

At most ``slots`` inputs may be kept at once; that of block 0 is kept from the beginning. B of the last block needs no
F. The score is the operations of all F beyond one forward pass (F of each block but the last), in percent of the
model's forward pass: the mean over several models.
"""

from collections.abc import Sequence


def plan_recomputation(flops: Sequence[int], slots: int) -> list[str]:
    """A plan for one step.

    Args:
        flops: of each block's forward.
        slots: how many inputs fit, at least 2.

    Returns:
        The steps: B of every block from the last to the first, and before each whatever it needs.
    """
    distance = -(-len(flops) // slots)  # inputs are kept at equal distances, and nothing else ever is
    steps = []
    for block in range(len(flops) - 1):
        steps.append(f"F{block}")
        if (block + 1) % distance == 0:
            steps.append(f"K{block + 1}")
    for block in reversed(range(len(flops))):
        kept = block // distance * distance
        if block < len(flops) - 1:
            steps += [f"F{again}" for again in range(kept, block)]
        steps.append(f"B{block}")
    return steps
