"""A list scheduler on stages placed in a V: each rank takes the most urgent action that is ready and fits."""

from itertools import product

from minidist.parallel.tools.schedules import schedule


def choose_schedule(ranks, micro_batches, limit):
    naive = [[str(action) for action in actions] for actions in schedule("naive", ranks, micro_batches)]
    ways = product(range(0, 2 * limit, max(1, limit // 4)), (False, True))
    found = [planned(ranks, micro_batches, 2 * limit, spare, eager) for spare, eager in ways]
    return min(filter(None, found), default=(0, naive))[1]


def planned(ranks, micro_batches, room, spare, eager):
    """(slots, actions of each rank), if it ends: a rank has room for so many activations of a stage, the first stage's
    forwards spare some of them, and eager forwards are more urgent than backwards."""
    rank_of = [*range(ranks), *reversed(range(ranks))]  # of each stage: the first rank has the first and the last
    stages = len(rank_of)
    ended = {}
    done = [[] for _ in range(ranks)]
    free = [0] * ranks
    held = [0] * ranks
    counts = {(kind, stage): 0 for kind in "FIW" for stage in range(stages)}
    total, now = 3 * stages * micro_batches, 0

    def ready(kind, stage):
        i = counts[kind, stage]
        if i == micro_batches:
            return False
        if kind == "W":
            return counts["I", stage] > i
        needed = [("F", stage - 1, i)] if stage else []
        if kind == "I":
            needed = [("F", stage, i)] + ([("I", stage + 1, i)] if stage + 1 < stages else [])
        return all(ended.get(one, now + 1) <= now for one in needed)

    while total:
        moved = False
        for rank in range(ranks):
            if free[rank] > now:
                continue
            mine = [stage for stage in range(stages) if rank_of[stage] == rank]
            forwards = [("F", s) for s in reversed(mine) if held[rank] < room - (spare if s < ranks else 0)]
            backwards = [("I", s) for s in mine]
            urgent = forwards + backwards if eager else backwards + forwards
            chosen = next((one for one in [*urgent, *(("W", s) for s in mine)] if ready(*one)), None)
            if chosen is None:
                continue
            kind, stage = chosen
            i = counts[chosen]
            counts[chosen] += 1
            ended[kind, stage, i] = free[rank] = now + 1
            held[rank] += (kind == "F") - (kind == "W")
            done[rank].append(f"{stage}{kind}{i}")
            total, moved = total - 1, True
        if not moved and max(free) <= now:
            return None  # stuck: nothing fits
        now += 1
    return now, done
