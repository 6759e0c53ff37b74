import pytest
from figures.ch12 import array_slices

WROTE, WANTS = [((0, 6),), ((6, 12),)], [((0, 5),), ((5, 8),), ((8, 12),)]


def test_every_element_is_read_once_by_one_and_written_by_one():
    reads = array_slices.reads(WROTE, WANTS)
    assert reads == [(0, 0, 5), (1, 0, 1), (1, 1, 2), (2, 1, 4)]


def test_a_rank_may_hold_several_runs():
    assert array_slices.reads([((0, 2), (4, 6))], [((1, 5),)]) == [(0, 0, 2)]


def test_a_band_for_each_run_to_copy():
    figure = array_slices.draw(12, ["head 0", "head 1"], WROTE, WANTS, ("tp=2", "dp=3"))
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert {"5", "1", "2", "4", "head 1", "dp=3", "rank 1 reads\n5 to 8"} <= set(texts)


def test_bands_are_where_the_elements_are():
    from matplotlib.patches import Polygon

    figure = array_slices.draw(8, ["head 0"], [((0, 2), (4, 6)), ((2, 4), (6, 8))], [((1, 5),)], ("", ""))
    bands = [patch for patch in figure.axes[0].patches if type(patch) is Polygon]
    places = sorted((min(x), max(x)) for x in (band.get_xy()[:, 0].tolist() for band in bands))
    assert places == [(1, 2), (2, 4), (4, 5)]


def test_an_element_outside_of_the_part_is_an_error():
    with pytest.raises(ValueError, match="fewer elements"):
        array_slices._place(((0, 2),), 2)
