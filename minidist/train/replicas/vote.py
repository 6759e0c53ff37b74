"""The vote: ranks that must hold the same bits compare digests, and the majority is believed.

Replicas that data parallelism keeps in step are copies of each other, which no memory error changes together. Two that
differ say that one is wrong; three or more say which.

**What a vote cannot see.** A number that is wrong before it is summed over the replicas is in all of them afterwards:
they agree. A rank that receives a wrong number from another is the odd one out, not the sender. And what only one
rank holds has nothing to compare with. The replay (replay.py) finds those.
"""

from collections import Counter
from dataclasses import dataclass

from minidist.overrides import overridable
from minidist.train.replicas.notes import Noted
from minidist.train.replicas.parts import GRADIENT, Key

NAMING = 3  # voters, of whom one can be outvoted


@overridable
def odd_ones_out(digests: list[str]) -> list[int] | None:
    """Who disagrees with the majority.

    Args:
        digests: of each voter.

    Returns:
        The places in the list of those that have another digest than more than half of all voters; [] if all agree.
        None if no digest has more than half: then nobody can be named.
    """
    ((digest, count),) = Counter(digests).most_common(1)
    if 2 * count <= len(digests):
        return None
    return [place for place, other in enumerate(digests) if other != digest]


@dataclass(frozen=True)
class Disagreement:
    """Ranks that hold the same part, in other bits.

    Attributes:
        voters: all ranks that hold it.
        odd: those among them that are wrong; None if that cannot be told.
    """

    key: Key
    voters: list[int]
    odd: list[int] | None


def voters(keys: list[list[Key]]) -> dict[Key, list[tuple[int, int]]]:
    """Return who holds each part that ranks must agree on: pairs of a rank and the place in its list of keys."""
    found: dict[Key, list[tuple[int, int]]] = {}
    for rank, mine in enumerate(keys):
        for place, key in enumerate(mine):
            if key.kind != GRADIENT:  # of other samples on each rank
                found.setdefault(key, []).append((rank, place))
    return found


def vote(keys: list[list[Key]], noted: list[Noted]) -> tuple[int, list[Disagreement]]:
    """Compare what ranks noted.

    Args:
        keys: of each rank, what it noted.
        noted: of each rank, the digests.

    Returns:
        The first place in the notes at which ranks disagree, and about what. (-1, []) if they agree throughout.
    """
    holders = voters(keys)
    for time in range(len(noted[0])):
        found = []
        for key, places in holders.items():
            ranks = [rank for rank, _ in places]
            odd = odd_ones_out([noted[rank][time][place] for rank, place in places])
            if odd is None or odd:
                found.append(Disagreement(key, ranks, None if odd is None else [ranks[place] for place in odd]))
        if found:
            return time, found
    return -1, []


def outvoted(found: list[Disagreement]) -> int | None:
    """The one rank that all these disagreements are about; None if there is no such rank."""
    named = {rank for disagreement in found for rank in disagreement.odd or ()}
    if len(named) != 1:
        return None
    (rank,) = named
    return rank if all(rank in disagreement.voters for disagreement in found) else None
