"""Which pairs of settings met, and which one is to blame."""

from minidist.analysis.pairs import DIFFERENT, IMPOSSIBLE, SAME, bad_and_all, suspicious_pairs, triangle
from minidist.train.layout import Layout
from minidist.verify.matrix import Combination, Outcome


def outcome(text: str, same: bool, precision: str = "fp32") -> Outcome:
    return Outcome(Combination(precision, Layout.parse(text)), same, 0.1, 1, 1)


RUNS = [
    outcome("tp=2,sp=1,recompute=full", False),
    outcome("tp=2,sp=1,recompute=full", False, "bf16"),
    outcome("tp=2,sp=1", True),
    outcome("tp=2,sp=1", True, "bf16"),
    outcome("tp=2,recompute=full", True),
    outcome("tp=2,recompute=full", True, "bf16"),
]
BLAMED = frozenset({("sp", 1), ("recompute", "full")})


def test_only_the_pair_that_is_always_bad():
    found = bad_and_all(RUNS)
    assert found[BLAMED] == (2, 2) and found[frozenset({("sp", 1), ("tp", 2)})] == (2, 4)
    assert suspicious_pairs(RUNS) == [BLAMED]
    assert suspicious_pairs(RUNS[2:]) == []


def test_one_bad_run_makes_a_pair_different():
    values, rows = triangle(RUNS)
    assert [len(row) for row in rows] == list(range(len(values)))

    def cell(one, other):
        first, second = sorted((values.index(one), values.index(other)))
        return rows[second][first]

    assert cell(("sp", 1), ("tp", 2)) == DIFFERENT and cell(("precision", "fp32"), ("precision", "bf16")) == IMPOSSIBLE
    assert triangle(RUNS[2:])[1][-1].count(SAME) > 0 == triangle(RUNS[2:])[1][-1].count(DIFFERENT)
