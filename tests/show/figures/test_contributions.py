"""Sums of marks are sets of contributions."""

import numpy as np
import pytest

from minidist.show.figures import contributions as show

pytestmark = pytest.mark.usefixtures("readable_figures")
N = 4


def test_marks_are_all_different_powers_of_two():
    marks = np.concatenate([show.marked(rank, N) for rank in range(N)])
    assert len(set(marks.tolist())) == N * N and all(int(mark).bit_count() == 1 for mark in marks)


def test_a_sum_shows_whose_contributions_it_holds():
    arrays = [show.marked(rank, N) for rank in range(N)]
    assert show.held(arrays[2][1], N) == [(2, 1)]
    some = arrays[0] + arrays[1] + arrays[3]
    assert show.held(some[1], N) == [(0, 1), (1, 1), (3, 1)]
    assert [show.name(value, N) for value in (arrays[2][1], some[1], sum(arrays)[3], 0)] == ["b2", "b013", "Σd", ""]


def test_the_largest_group_that_fits():
    assert int(show.marked(6, 7)[6]) == 1 << 48
    everything = sum(show.marked(rank, 8).sum() for rank in range(8))
    assert int(everything) == 2**64 - 1 and len(show.held(everything, 8)) == 64
    with pytest.raises(ValueError, match="at most 8"):
        show.marked(0, 9)


def test_a_stripe_for_each_contribution_and_a_frame_around_what_changed():
    first = np.stack([show.marked(rank, 2) for rank in range(2)])  # (ranks, chunks)
    second = first.copy()
    second[1, 0] += first[0, 0]
    figure = show.draw([("before", first), ("after", second)], 2, outline_changes=True)
    stripes = [[p for p in axes.patches if p.get_fill()] for axes in figure.axes]
    frames = [[p.get_xy() for p in axes.patches if p.get_linewidth() > 2] for axes in figure.axes]
    assert [len(each) for each in stripes] == [4, 5]
    assert sorted(p.get_width() for p in stripes[1]) == [0.5, 0.5, 1, 1, 1]
    assert frames == [[], [(0, 1)]]
