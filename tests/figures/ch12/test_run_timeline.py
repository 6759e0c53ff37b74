from itertools import pairwise

import pytest
from figures.ch12 import run_timeline
from figures.ch12.run_timeline import Saves, history


def steps_of(spans, kind):
    return [span.step for span in spans if span.kind == kind]


def test_a_run_without_a_failure_takes_each_step_once():
    spans = history(6, Saves(2, 0.5, 0.0), 100.0, 1.0)
    assert steps_of(spans, "step") == list(range(6)) and not steps_of(spans, "again")
    assert steps_of(spans, "pause") == steps_of(spans, "write") == [2, 4]
    assert run_timeline.duration(spans) == 7


@pytest.mark.parametrize(
    ("failure", "lost", "again"),
    [(5.7, [2, 3, 4, 5], [2, 3, 4, 5]), (7.3, [4, 5, 6], [4, 5, 6]), (8.5, [6, 7], [6, 7])],
)
def test_a_save_counts_once_it_is_written(failure, lost, again):
    """Saves after steps 2, 4 and 6, each written for 1.5 steps: they count at 3.7, 5.9 and 8.1."""
    spans = history(8, Saves(2, 0.2, 1.5), failure, 1.0)
    assert steps_of(spans, "lost") == lost and steps_of(spans, "again") == again
    kept = steps_of(spans, "step") + again
    assert sorted(kept) == list(range(8))
    assert [span.stop - span.start for span in spans if span.kind == "restart"] == pytest.approx([1.0])


def test_nothing_overlaps_on_the_ranks():
    spans = history(12, Saves(3, 0.3, 2.0), 8.4, 2.0)
    busy = sorted((span.start, span.stop) for span in spans if span.kind != "write")
    assert all(stop <= start + 1e-9 for (_, stop), (start, _) in pairwise(busy))


def test_a_panel_for_each_run_with_a_mark_for_each_save_that_counts():
    runs = {"sync": history(8, Saves(4, 1.0, 0.0), 6.5, 1.0), "async": history(8, Saves(4, 0.2, 2.0), 5.5, 1.0)}
    figure = run_timeline.draw(runs, 6.5)
    assert [axes.get_title(loc="left").split(":")[0] for axes in figure.axes] == ["sync", "async"]
    marks = [sum(line.get_marker() == "v" for line in axes.lines) for axes in figure.axes]
    writes = [len([s for s in spans if s.kind == "write" and s.stop != 6.5]) for spans in runs.values()]
    assert marks == writes
