"""Runs, compared on one time axis."""

from samples import MS, two_steps

from minidist.show.figures import overlap


def test_all_runs_share_one_time_axis():
    figure = overlap.draw({"short": [two_steps(), two_steps()], "long": [two_steps(), two_steps(late=5 * MS)]})
    ends = [axes.lines[0].get_xdata()[0] for axes in figure.axes]
    assert ends == [10, 15]
    assert figure.axes[0].get_xlim() == figure.axes[1].get_xlim()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "forward",
        "backward",
        "communication",
        "wait",
    ]
