"""Which pairs of settings met, and which one is to blame."""

from samples import SP_MEETS_RECOMPUTE

from minidist.analysis.pairs import DIFFERENT, IMPOSSIBLE, SAME, bad_and_all, suspicious_pairs, triangle

BLAMED = frozenset({("sp", 1), ("recompute", "full")})


def test_only_the_pair_that_is_always_bad():
    found = bad_and_all(SP_MEETS_RECOMPUTE)
    assert found[BLAMED] == (2, 2) and found[frozenset({("sp", 1), ("tp", 2)})] == (2, 4)
    assert suspicious_pairs(SP_MEETS_RECOMPUTE) == [BLAMED]
    assert suspicious_pairs(SP_MEETS_RECOMPUTE[2:]) == []


def test_one_bad_run_makes_a_pair_different():
    values, rows = triangle(SP_MEETS_RECOMPUTE)
    assert [len(row) for row in rows] == list(range(len(values)))

    def cell(one, other):
        first, second = sorted((values.index(one), values.index(other)))
        return rows[second][first]

    assert cell(("sp", 1), ("tp", 2)) == DIFFERENT and cell(("precision", "fp32"), ("precision", "bf16")) == IMPOSSIBLE
    assert (
        triangle(SP_MEETS_RECOMPUTE[2:])[1][-1].count(SAME)
        > 0
        == triangle(SP_MEETS_RECOMPUTE[2:])[1][-1].count(DIFFERENT)
    )
