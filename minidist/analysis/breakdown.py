"""Where the time of a step goes: computing, communicating, or waiting for other ranks to reach the collective.

A collective begins when the last rank of its group calls it. Until then, a rank that called it earlier waits; from then
on it communicates. Everything else counts as compute, including the Python code around the matrix products.
"""

from collections.abc import Sequence

from minidist.analysis.steps import last_step


def seconds(logs: Sequence[list]) -> list[dict[str, float]]:
    """For each rank, the seconds of compute, communication and waiting in its last step.

    Args:
        logs: one for each rank. All ranks make the same collectives in the same order, none of them asynchronous.

    Raises:
        ValueError: if the ranks made different collectives, or a log holds no step.
    """
    steps = last_step(logs)
    calls = [[event for event in step if event.track == "communication"] for step in steps]
    if len({tuple(call.name for call in rank) for rank in calls}) != 1:
        raise ValueError("these ranks did not make the same collectives in the same order")
    begins = [max(call.start for call in same) for same in zip(*calls, strict=True)]
    found = []
    for step, mine in zip(steps, calls, strict=True):
        (whole,) = (event for event in step if event.track == "step")
        waiting = sum(begin - call.start for begin, call in zip(begins, mine, strict=True))
        communication = sum(call.end - begin for begin, call in zip(begins, mine, strict=True))
        compute = whole.end - whole.start - waiting - communication
        found.append({"compute": compute / 1e9, "communication": communication / 1e9, "waiting": waiting / 1e9})
    return found
