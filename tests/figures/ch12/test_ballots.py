import pytest
from figures.ch12 import ballots
from figures.ch12.ballots import AGREED, ODD, SPLIT


@pytest.mark.parametrize(
    ("votes", "colours"),
    [
        ("aaa", [AGREED] * 3),
        ("aba", [AGREED, ODD, AGREED]),
        ("ab", [SPLIT] * 2),
        ("abc", [SPLIT] * 3),
        ("aabb", [SPLIT] * 4),
        ("aabca", [AGREED, AGREED, ODD, ODD, AGREED]),
    ],
)
def test_only_a_majority_names_anybody(votes, colours):
    assert ballots.colours_of(votes) == colours


def test_a_panel_for_each_vote():
    panels = {"three": {"step 1": ["a", "b", "a"]}, "two": {"step 1": ["a", "b"]}}
    figure = ballots.draw(panels, {"three": ["rank 0", "rank 1", "rank 2"], "two": ["first", "replay"]})
    assert [axes.get_title() for axes in figure.axes] == ["three", "two"]
    assert [len(axes.patches) for axes in figure.axes] == [3, 2]
    assert [label.get_text() for label in figure.axes[1].get_xticklabels()] == ["first", "replay"]
