"""What failed machines cost while they are being repaired, with spares or without: arithmetic alone.

A failure takes one machine out for a repair of T. A spare takes its place at once if there is one. If there is none,
the run waits for a repair, or goes on with fewer machines; in ``torchrun --nnodes=MIN:MAX``, MIN decides.

Machines in repair are a queue. Failures arrive at random, one every M on average, and all repairs go on side by side.
While the run waits, no machine fails. So the number in repair is that of Erlang's loss system (Erlang 1917), whose
probabilities depend on a = T/M alone, not on how repair times spread: p(n) is proportional to a^n / n!, up to the n at
which the run waits.
"""

from math import exp, inf, lgamma, log


def in_repair_probabilities(mtbf: float, repair: float, most: int) -> list[float]:
    """The share of time in which 0, 1, ... ``most`` machines are in repair; at ``most`` the run waits.

    Args:
        mtbf: between failures of the cluster, while it runs.
        repair: mean repair time of a machine, in the same unit.
        most: one more than the number of machines that may be missing, spares included.
    """
    if not (0 < mtbf < inf and 0 <= repair < inf):
        raise ValueError(f"mtbf must be positive and repair 0 or more, both finite; got {mtbf:g} and {repair:g}")
    if repair == 0:
        return [1.0] + [0.0] * most
    logs = [n * log(repair / mtbf) - lgamma(n + 1) for n in range(most + 1)]  # a^n and n! do not fit a float
    weights = [exp(value - max(logs)) for value in logs]
    return [weight / sum(weights) for weight in weights]


def waiting_share(mtbf: float, repair: float, spares: int, machines: int, least: int) -> float:
    """The share of all time in which a run that needs ``least`` of its ``machines`` waits for a repair.

    With ``least == machines`` this is Erlang's B formula for ``spares + 1`` lines. A repair starts at the failure, so a
    run that takes time to detect it waits a little less.
    """
    return in_repair_probabilities(mtbf, repair, most_in_repair(spares, machines, least))[-1]


def speed_with_spares(mtbf: float, repair: float, spares: int, machines: int, least: int) -> float:
    """The mean speed of the machines, over all time: 1 with all at work, 0 while the run waits.

    The product with ``failures.goodput`` is the goodput of the run. It is exact for a run that waits (``least ==
    machines``) and detects failures at once. For a run that goes on smaller it is approximate: machines come back to it
    at once and without a restart (torchrun restarts for them), its speed is taken as independent of whether it trains or
    recovers, and fewer machines fail as often as all.
    """
    shares = in_repair_probabilities(mtbf, repair, most_in_repair(spares, machines, least))
    return sum(share * (1 - max(0, n - spares) / machines) for n, share in enumerate(shares[:-1]))


def most_in_repair(spares: int, machines: int, least: int) -> int:
    """How many machines are in repair when the run has to wait.

    Raises:
        ValueError: if these numbers cannot be.
    """
    if spares < 0:
        raise ValueError(f"spares must be 0 or more, got {spares}")
    if not 1 <= least <= machines:
        raise ValueError(f"the run needs 1 to all of its {machines} machines to go on, not {least}")
    return spares + machines - least + 1
