"""Pictures of pipelines, from schedules and from real runs."""

import numpy as np
import pytest

from minidist.analysis.time.bubbles import slots_of
from minidist.parallel.tools.schedule_check import Slot, bubble, needs, timeline
from minidist.parallel.tools.schedules import schedule
from minidist.show.figures import pipelines
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RunOptions
from minidist.train.trainer import run

pytestmark = pytest.mark.usefixtures("readable_figures")


def test_a_cell_for_each_action():
    slots = timeline(schedule("1f1b", 3, 4))
    axes = pipelines.draw({"1F1B": slots}).axes[0]
    boxes = [(bar.get_x(), bar.get_width(), round(bar.get_y() + bar.get_height() / 2)) for bar in axes.patches]
    expected = [(s.start, s.end - s.start, rank) for rank, row in enumerate(slots) for s in row]
    assert np.allclose(sorted(boxes), sorted(expected))
    assert [text.get_text() for text in axes.texts[:8]] == ["0", "1", "2", "0", "3", "1", "2", "3"]
    assert axes.get_title(loc="left") == "1F1B: bubble 33.3 %"


def test_a_run_of_microseconds_is_labelled_in_them_and_with_its_ranks():
    slots = [
        [Slot(slot.action, 1e-5 * slot.start, 1e-5 * slot.end) for slot in row]
        for row in timeline(schedule("1f1b", 2, 2))
    ]
    figure = pipelines.draw({"on a cluster": slots}, "seconds", ranks=[0, 4])
    figure.draw_without_rendering()
    axes = figure.axes[0]
    assert axes.get_xlabel() == "microseconds" and not axes.xaxis.get_offset_text().get_text()
    assert all(
        float(tick.get_text()) == pytest.approx(1e6 * place)
        for tick, place in zip(axes.get_xticklabels(), axes.get_xticks(), strict=True)
    )
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["rank 0", "rank 4"]


@pytest.mark.parametrize("text", ["pp=2", "pp=2,virtual=2", "pp=2,schedule=zb-h1"])
def test_a_real_run_does_what_the_schedule_says(ranks, text):
    """The same actions in the same order, and none before what it needs has ended."""
    layout, config = Layout.parse(text), TrainConfig(layers=4, width=16, heads=2, context=8, global_batch=8, steps=2)
    result = run(ranks(2), config, layout, RunOptions(trace=True))
    slots = slots_of([rank.log for rank in result.ranks])
    planned = schedule(layout.schedule, 2, 4, layout.virtual)
    assert [[slot.action for slot in row] for row in slots] == planned
    ended = {slot.action: slot.end for row in slots for slot in row}
    for slot in (slot for row in slots for slot in row):
        for some in needs(slot.action, 2 * layout.virtual):
            assert any(one in ended and ended[one] <= slot.start for one in some)
    assert 0 < bubble(slots) < 1 and min(slot.start for row in slots for slot in row) == 0
