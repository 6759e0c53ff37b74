"""Data parallelism in pictures: three ways to sum race on one clock, and weights stay together, or do not."""

from collections.abc import Mapping

import numpy as np

from minidist.analysis.steps import kind_of
from minidist.show.demos.data_parallel.run import PHASES, Step
from minidist.show.demos.shared.on_gpus import is_dropped
from minidist.show.palette import MEANINGS, of_rank
from minidist.show.stage.curve import Chart
from minidist.show.stage.lanes import Lanes
from minidist.show.stage.marks import Mark, text
from minidist.show.stage.story import Beat, Question, Story

RUNS = 7.0  # seconds of the longest step
BEGUN = 3.0  # seconds of it before the story opens: backward has begun
SENDS, HIDDEN = MEANINGS["communication"], MEANINGS["hidden communication"]
KEY = {phase: MEANINGS[phase] for phase in PHASES} | {"sends": SENDS, "hidden": HIDDEN, "waits": "faint"}
HOW = {
    "overlapped": ("send during", "backward"),
    "bucketed": ("send later,", "in buckets"),
    "naive": ("send later,", "one by one"),
}


def race(
    steps: Mapping[str, Step],
    axis: int,
    told: str,
    name: str = "race",
    bug: str = "",
    details: str = "",
    models: int = 1,
) -> Story:
    """Tell the story of one step in each way to sum, with rank 0's computing above its sending.

    Args:
        axis: ns that take RUNS: the longest step of the right and the broken run.
        told: sentence that says which machine the times are of.
    """
    longest, high = max(step.end for step in steps.values()), 196
    marks: list[Mark] = []
    ends: dict[str, float] = {}
    for number, (sync, step) in enumerate(steps.items()):
        y = 10 + number * high
        names = ["computes", "sends"]
        place, clock = (192, y, 898, high - 22), (-BEGUN, RUNS + BEGUN)
        lanes = Lanes(names, place, (0, axis), clock, margin=160, share=0.86, until=(step.end, 0))
        done = 0
        for event in step.log:
            if (kind := kind_of(event)) in PHASES:
                if event.start > done:
                    lanes.bar(0, done, event.start, "faint", "waits", "waits")
                lanes.bar(0, event.start, event.end, MEANINGS[kind], kind)
                done = event.end
        backward_ends = max(event.end for event in step.log if kind_of(event) == "backward")
        for place, event in enumerate(step.sums):
            if is_dropped(event):
                width = axis / 60
                lanes.bar(1, event.start, event.start + width, "wrong", "", "never sent")
                continue
            end = max((event.start + event.end) / 2, event.end - 0.003 * axis)  # a gap, also after a short one
            hidden = min(max(event.start, backward_ends), end)
            for start, until, colour in ((event.start, hidden, HIDDEN), (hidden, end, SENDS)):
                if until > start:
                    lanes.bar(1, start, until, colour, "", f"all-reduce {place + 1}")
        ends[sync] = lanes.at(step.end)
        marks += lanes.marks()
        for row, words in enumerate(HOW[sync]):
            marks.append(text(188, y + high / 2 - 29 + 36 * row, words, 28, anchor="end", weight=700))
        marks.append(text(1275, y + high / 2 - 11, f"{step.end / 1e6:.3g} ms", 42, anchor="end").enter(ends[sync], 0))
    first, last = min(ends, key=ends.__getitem__), max(ends, key=ends.__getitem__)
    hidden = steps["overlapped"].hidden
    asked = Question.number(
        "Above, gradients are sent while backward runs. What share of the communication is hidden?",
        hidden,
        (hidden / 3, (1 + hidden) / 2),
        "A bucket leaves when its gradients are complete; one still in flight when backward ends costs time.",
        "{:.0%}",
    )
    facts = {sync: f"{step.end / 1e6:.3g} ms, {step.hidden:.0%} of sending hidden" for sync, step in steps.items()}
    asked = None if bug else asked
    beats = [
        Beat(0, f"Three ways to send the gradients of a step. {told}", facts, asks=asked),
        Beat(
            max(0.3, min(ends[first] + 0.2, RUNS)),
            f"Done first: {' '.join(HOW[first])}. Grey: computing waits.",
            facts,
        ),
        Beat(
            RUNS + 0.3,
            f"Done last: {' '.join(HOW[last])}, {longest / steps[first].end:.2f} times as long.",
            facts,
            answers=asked,
        ),
    ]
    verdict = f"Now there are {models} different models." if bug else "Every bit matches one process."
    return Story(name, "Must computing wait for sending?", marks, beats, verdict, bug, details, key=KEY)


def weights(drift: np.ndarray, most: float, bug: str = "", details: str = "") -> Story:
    """Tell the story of how far each rank's weights are from those of one process.

    Args:
        drift: (ranks, steps + 1), distance as a share of the RMS of the right weights.
        most: end of the axis.
    """
    steps = drift.shape[1] - 1
    chart = Chart(
        (140, 60, 900, 440),
        (0, steps),
        (0, most),
        ("step", "distance from the right weights / their RMS"),
        (range(steps + 1), ()),
    )
    for rank, curve in enumerate(drift):
        chart.curve([(step, value) for step, value in enumerate(curve)], of_rank(rank), 0.2, 4)
    marks = chart.marks()
    far = float(drift.max())
    places: list[float] = []
    for rank, curve in enumerate(drift):
        at = chart.at(steps, curve[-1])[1] if far else 100 + 40 * rank
        if all(abs(at - other) > 30 for other in places):  # else its curve ends next to one that has a name
            marks.append(text(1060, at, f"rank {rank}", 30, of_rank(rank), "start").enter(4.2, 0.2))
            places.append(at)
    end = (
        f"After {steps} steps they are off by up to {drift[:, -1].max():.1%} of the RMS of the right ones."
        if far
        else "After every step all ranks have the same weights as one process."
    )
    beats = [
        Beat(0, "Every rank updates its own copy of the weights. Do the copies stay the same?"),
        Beat(4.5, end, {f"rank {rank}": f"{value:.3g}" for rank, value in enumerate(drift[:, -1])}),
    ]
    return Story("weights", "Do all ranks keep the same model?", marks, beats, "", bug, details)
