"""A knapsack for each limit on the largest unit that is gathered and the largest that is reduced."""


def choose_shards(parameters, ranks, micro_batches, memory):
    sizes = sorted({0, *parameters})
    best = (float("inf"), None)
    for gathered in sizes:  # the largest unit whose weights are sharded
        for unreduced in sizes:  # the largest whose gradients are
            room = memory - 2 * gathered - 2 * unreduced
            if room > 0:
                best = min(best, knapsack(parameters, ranks, micro_batches, room, gathered, unreduced))
    return best[1]


def knapsack(parameters, ranks, micro_batches, room, gathered, unreduced):
    """(traffic, pairs): from everything sharded, make whole what saves the most traffic for its memory."""
    weights = [int(size <= gathered) for size in parameters]
    gradients = [int(size <= unreduced) for size in parameters]
    held = 0.0
    choices = []
    for unit, size in enumerate(parameters):
        held += 12 * size / ranks
        for flags, saved in ((weights, 2 * micro_batches - 1), (gradients, micro_batches - 1)):
            held += 2 * size / ranks if flags[unit] else 2 * size
            if flags[unit]:
                choices.append((saved, size, unit, flags))
    if held > room:
        return float("inf"), None
    for saved, size, unit, flags in sorted(choices, key=lambda choice: (-choice[0], -choice[1])):
        more = 2 * size * (1 - 1 / ranks)
        if saved > 0 and held + more <= room:
            held += more
            flags[unit] = 0
    traffic = sum(
        size * ((2 * micro_batches if w else 1) + (micro_batches if g else 1))
        for size, w, g in zip(parameters, weights, gradients, strict=True)
    )
    return traffic, list(zip(weights, gradients, strict=True))
