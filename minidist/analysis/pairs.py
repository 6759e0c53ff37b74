"""What many runs say about every pair of settings: which pairs were run together, and which one is to blame for a bug.

A bug that shows where two settings meet spoils every run in which they do, and each such run contains many other pairs.
Those other pairs have also met in good runs. So the pair to look for is one whose runs are *all* bad, while each of its
two settings has good runs without the other.
"""

from collections import Counter
from collections.abc import Sequence

from minidist.verify.matrix import KEYS, MODES, POLICIES, SCHEDULES, Combination, Outcome, Pair

NAMES = [*POLICIES, *SCHEDULES, *MODES]  # values that are not numbers, in their order
SAME, DIFFERENT, IMPOSSIBLE = "same", "different", "impossible"


def values_of(combinations: Sequence[Combination]) -> list[tuple[str, object]]:
    """Every (setting, value) that occurs, in the order of the settings."""
    found = {pair for combination in combinations for pair in combination.settings.items() if pair[1] is not None}
    return [
        (key, value)
        for key in KEYS
        for value in sorted((v for k, v in found if k == key), key=lambda v: NAMES.index(v) if v in NAMES else v)
    ]


def bad_and_all(outcomes: Sequence[Outcome]) -> dict[Pair, tuple[int, int]]:
    """Count, for every pair of settings that met, the runs with wrong bits and all runs."""
    met: Counter = Counter()
    bad: Counter = Counter()
    for outcome in outcomes:
        met.update(outcome.combination.pairs)
        if not outcome.same:
            bad.update(outcome.combination.pairs)
    return {pair: (bad[pair], count) for pair, count in met.items()}


def suspicious_pairs(outcomes: Sequence[Outcome]) -> list[Pair]:
    """The pairs without a good run; among them, those with the most bad ones."""
    always = {pair: bad for pair, (bad, met) in bad_and_all(outcomes).items() if bad == met}
    most = max(always.values(), default=0)
    return sorted((pair for pair, bad in always.items() if bad == most), key=lambda pair: sorted(map(str, pair)))


def triangle(outcomes: Sequence[Outcome]) -> tuple[list[tuple[str, object]], list[list[str]]]:
    """All (setting, value), and for each of them a row: with each one before it, SAME, DIFFERENT or IMPOSSIBLE."""
    values, met = values_of([outcome.combination for outcome in outcomes]), bad_and_all(outcomes)

    def verdict(pair: Pair) -> str:
        bad, count = met.get(pair, (0, 0))
        return IMPOSSIBLE if not count else DIFFERENT if bad else SAME

    return values, [[verdict(frozenset((row, one))) for one in values[:place]] for place, row in enumerate(values)]
