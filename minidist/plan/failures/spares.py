"""What failed machines cost while they are being repaired, with spares or without: arithmetic alone.

A failure takes one machine out for a repair of T. A spare takes its place at once if there is one. If there is none,
the run waits for a repair, or goes on with fewer machines; in ``torchrun --nnodes=MIN:MAX``, MIN decides.

Machines in repair are a queue. All N machines together fail once in M on average, fewer of them less often, and those
that stand by or wait do not fail. All repairs go on side by side. So the number in repair is that of a loss system with
as many lines as machines can be missing (Erlang 1917; Engset 1918 where fewer fail less often). Its probabilities
depend on T/M alone, not on how repair times spread: p(n) is proportional to (T/M)^n / n!, times the speeds v(0) ...
v(n-1) of the run with fewer machines in repair.
"""

from math import exp, inf, log


def in_repair_probabilities(mtbf: float, repair: float, spares: int, machines: int, least: int) -> list[float]:
    """The share of all time in which 0, 1, ... machines are in repair. With the last of these numbers the run waits.

    Args:
        mtbf: between failures of the cluster, while all machines run.
        repair: mean repair time of a machine, in the same unit.
        spares: machines that stand by.
        machines: how many work at once.
        least: with how many the run goes on.

    Raises:
        ValueError: if these numbers cannot be.
    """
    if not (0 < mtbf < inf and 0 <= repair < inf):
        raise ValueError(f"mtbf must be positive and repair 0 or more, both finite; got {mtbf:g} and {repair:g}")
    if spares < 0:
        raise ValueError(f"spares must be 0 or more, got {spares}")
    if not 1 <= least <= machines:
        raise ValueError(f"the run needs 1 to all of its {machines} machines to go on, not {least}")
    waits = spares + machines - least + 1
    if repair == 0:
        return [1.0] + [0.0] * waits
    logs = [0.0]  # a power and a factorial of this size do not fit a float
    for n in range(1, waits + 1):
        logs.append(logs[-1] + log(repair / mtbf / n * _speed(n - 1, spares, machines)))
    largest = max(logs)
    weights = [exp(value - largest) for value in logs]
    total = sum(weights)
    return [weight / total for weight in weights]


def waiting_share(mtbf: float, repair: float, spares: int, machines: int, least: int) -> float:
    """The share of all time in which a run that needs ``least`` of its ``machines`` waits for a repair.

    With ``least == machines`` this is Erlang's B formula for ``spares + 1`` lines. A repair starts at the failure, so a
    run that takes time to detect it waits a little less.
    """
    return in_repair_probabilities(mtbf, repair, spares, machines, least)[-1]


def speed_with_spares(mtbf: float, repair: float, spares: int, machines: int, least: int) -> float:
    """The mean speed of the run, over all time: 1 with all machines at work, 0 while the run waits.

    The product with ``failures.goodput`` is the goodput of the run. It is exact for a run that waits (``least ==
    machines``) and detects failures at once. For a run that goes on smaller it is approximate: machines come back to it
    at once and without a restart (torchrun restarts for them), and the share of its time that failures cost is that of
    all machines, at any size.
    """
    shares = in_repair_probabilities(mtbf, repair, spares, machines, least)
    return sum(share * _speed(n, spares, machines) for n, share in enumerate(shares[:-1]))


def _speed(in_repair: int, spares: int, machines: int) -> float:
    """Speed of a run that goes on with this many machines in repair, as a share of full speed."""
    return 1 - max(0, in_repair - spares) / machines
