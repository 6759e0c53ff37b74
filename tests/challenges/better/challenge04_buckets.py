"""The best cut of the gradients, in the order in which they are complete: dynamic programming over its last bucket."""


def choose_buckets(nbytes, completed, ranks, alpha, beta):
    order = sorted(range(len(nbytes)), key=lambda number: completed[number])
    ends, begins = [0.0], [0]  # of the first n gradients: when the last all-reduce ends, and where its bucket begins
    for n in range(1, len(order) + 1):
        full, size, best = completed[order[n - 1]], 0, (float("inf"), 0)
        for first in reversed(range(n)):
            size += nbytes[order[first]]
            seconds = 2 * (ranks - 1) * (alpha + beta * size / ranks)
            best = min(best, (max(full, ends[first]) + seconds, first))
        ends.append(best[0])
        begins.append(best[1])
    buckets, n = [], len(order)
    while n:
        buckets.append(order[begins[n] : n])
        n = begins[n]
    return buckets[::-1]
