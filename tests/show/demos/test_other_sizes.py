"""Demonstrations with other numbers of ranks, sizes and seeds than those of lectures tell the truth, too."""

import pytest
from every_scene import EveryScene
from recorded import recorded

SIZES = [  # (name, ranks, size, seed)
    ("broadcast", 8, 5, 1), ("ring", 3, 5, 1), ("ring", 4, 1, 7), ("reduce-scatter", 2, 2, 3), ("all-gather", 2, 3, 2),
    ("all-to-all", 5, 5, 1), ("dp", 2, 13, 1), ("dp", 4, 8, 0), ("zero", 3, 12, 1), ("tp", 2, 9, 5), ("tp", 4, 8, 0),
    ("sp", 2, 9, 5), ("cp", 2, 8, 1), ("cp", 8, 3, 0), ("ep", 2, 1, 0), ("ep", 8, 4, 1), ("pp", 2, 2, 0),
    ("pp", 3, 3, 1), ("recompute", 3, 12, 1), ("bf16", 3, 16, 0), ("flash", 1, 12, 1), ("flash", 1, 21, 0),
    ("async", 3, 2, 0), ("async", 6, 6, 0), ("compress", 4, 8, 0), ("compress", 4, 24, 0), ("cluster", 4, 128, 0),
    ("cluster", 8, 512, 0), ("failure", 2, 2, 0),
]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("case", SIZES, ids=str)
def test_other_sizes_tell_the_truth_and_their_bugs_do_harm(case):
    shown, holds = recorded(*case), EveryScene()
    holds.test_right_runs_are_right_and_broken_ones_wrong_from_their_first_wrong_frame_on(shown)
    holds.test_every_fingerprint_is_that_of_a_single_process_and_every_difference_was_found(shown)
    holds.test_what_was_counted_is_what_the_formula_says(shown)
    holds.test_every_dial_changes_what_is_shown(shown)
