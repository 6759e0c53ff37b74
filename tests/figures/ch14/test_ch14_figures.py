import pytest
from figures.ch14 import memory_beside_limit, published_mfu, scaling_experiment, step_parts
from figures.ch14.published_mfu import Dot

from minidist.plan.cluster.hardware import ClusterSpec
from minidist.plan.layout import PlannedLayout
from minidist.plan.memory import Memory
from minidist.plan.models.library import model_of
from minidist.plan.planned_run import plan_run
from minidist.plan.scaling.experiment import Experiment
from minidist.plan.time import StepCosts


def test_memory_bars_end_at_the_total_and_say_what_is_too_much():
    fits, large = Memory(10e9, 20e9, 30e9, 5e9, reserved=2e9), Memory(40e9, 40e9, 10e9, 0.0, fragmentation=1e9)
    figure = memory_beside_limit.draw({"one": fits, "other": large}, 80e9)
    (axes,) = figure.axes
    ends = {
        row: max(bar.get_x() + bar.get_width() for bar in axes.patches if round(bar.get_y() + 0.31) == row)
        for row in (0, 1)
    }
    assert ends == {0: pytest.approx(67), 1: pytest.approx(91)}
    assert {text.get_text() for text in axes.texts} == {"67", "91: 11 too much"}


def test_parts_of_a_step_add_up():
    costs = StepCosts(model_of("llama3-8b"), ClusterSpec.parse("h100:16"), "bf16")
    runs = {text: plan_run(costs, PlannedLayout.parse(text, 16), 64) for text in ("tp=2,sp=1,pp=4", "zero=3")}
    for run in runs.values():
        assert sum(step_parts.parts(run).values()) == pytest.approx(run.step_seconds)
    (axes,) = step_parts.draw(runs).axes
    assert max(bar.get_x() + bar.get_width() for bar in axes.patches) == pytest.approx(
        max(run.step_seconds for run in runs.values())
    )


def test_a_dot_for_each_run_in_the_colour_of_its_chip():
    dots = [Dot("A100", 8, 0.5), Dot("H100", 16, 0.4), Dot("A100", 64, 0.3)]
    (axes,) = published_mfu.draw(dots, {"a run": dots[1]}).axes
    assert [len(points.get_offsets()) for points in axes.collections] == [2, 1]
    assert [text.get_text() for text in axes.texts] == ["a run"]


@pytest.mark.long
def test_every_run_of_the_experiment_is_a_dot():
    experiment = Experiment.read()
    left, right = scaling_experiment.draw(experiment).axes
    assert sum(len(points.get_offsets()) for points in left.collections) == len(experiment.runs)
    measured = [line for line in right.lines if line.get_marker() == "o" and len(line.get_xdata())]
    assert [line.get_ydata()[0] for line in measured] == [run.loss for run in experiment.next_runs]
