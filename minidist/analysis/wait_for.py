"""The wait-for graph: which rank waits for which. A cycle in it, none of whose ranks can act, is a deadlock."""

import re
from collections.abc import Mapping, Set

STUCK, PATIENT, RUNNING, FINISHED = "stuck", "patient", "running", "finished"


def edges(waiting: Mapping[int, str]) -> dict[int, int]:
    """Rank -> the rank that it waits for, from ``Deadlock.waiting``."""
    return {rank: int(re.search(r"waits for .*?rank (\d+)", text).group(1)) for rank, text in waiting.items()}


def state_of(rank: int, waits: Mapping[int, int], finished: Set[int]) -> str:
    """Whether a rank can go on: RUNNING; PATIENT, if it waits for one that can; FINISHED; else STUCK.

    Follow the edges: a rank that can act ends the wait, a cycle or a finished rank never does.
    """
    first, seen = rank, set()
    while rank in waits and rank not in seen:
        seen.add(rank)
        rank = waits[rank]
    if rank in waits or (rank in finished and rank != first):
        return STUCK
    if rank in finished:
        return FINISHED
    return RUNNING if rank == first else PATIENT
