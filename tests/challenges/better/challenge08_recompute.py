"""Keep inputs again while recomputing: dynamic programming over the block that is kept first."""

from functools import cache
from itertools import accumulate


def plan_recomputation(flops, slots):
    sums = [0, *accumulate(flops)]

    @cache
    def best(first, last, free):
        """(operations, the block kept first): backward of first..last, with the input of first kept, and free slots."""
        if first == last:
            return 0, None
        if free == 0:
            return sum(sums[block] - sums[first] for block in range(first + 1, last + 1)), None
        return min(
            (sums[k] - sums[first] + best(k, last, free - 1)[0] + best(first, k - 1, free)[0], k)
            for k in range(first + 1, last + 1)
        )

    steps = []

    def run(first, last, free):
        kept = best(first, last, free)[1]
        if kept is None:
            for block in range(last, first - 1, -1):
                steps.extend(f"F{again}" for again in range(first, block))
                steps.append(f"B{block}")
            return
        steps.extend(f"F{block}" for block in range(first, kept))
        steps.append(f"K{kept}")
        run(kept, last, free - 1)
        steps.append(f"D{kept}")
        run(first, kept - 1, free)

    run(0, len(flops) - 1, slots - 1)
    return steps
