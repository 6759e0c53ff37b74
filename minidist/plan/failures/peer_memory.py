"""How likely peers still hold what failed machines had in memory: arithmetic alone.

GEMINI (Wang et al., SOSP 2023) keeps each machine's checkpoint in the memory of m machines: the N machines form groups
of m, and each machine of a group holds the state of all of it. A run restarts from memory unless a whole group has
failed; else it goes back to slower storage.
"""

from math import comb


def recoverable_probability(machines: int, copies: int, failed: int) -> float:
    """The probability that no group of ``copies`` has failed as a whole, when any ``failed`` machines did at once.

    Counted exactly. Of all choices of k machines, those that hold j given groups are C(N - jm, k - jm); inclusion and
    exclusion over the groups leaves the choices that hold none.

    Raises:
        ValueError: if the groups do not divide the machines, or more failed than there are.
    """
    if copies < 1 or machines < 1 or machines % copies:
        raise ValueError(f"groups of {copies} do not divide {machines} machines: choose a divisor for the copies")
    if not 0 <= failed <= machines:
        raise ValueError(f"0 to {machines} machines can fail, not {failed}")
    groups = machines // copies
    recoverable = sum(
        (-1) ** lost * comb(groups, lost) * comb(machines - lost * copies, failed - lost * copies)
        for lost in range(failed // copies + 1)
    )
    return recoverable / comb(machines, failed)
