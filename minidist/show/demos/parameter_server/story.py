"""Stories of not waiting: workers compute with old weights while the server moves on, and gradients age."""

from collections.abc import Mapping, Sequence

import numpy as np

from minidist.show.demos.parameter_server.recorded import Landing, Recorded
from minidist.show.demos.parameter_server.run import STALENESS
from minidist.show.palette import MEANINGS, of_version
from minidist.show.stage.curve import Chart
from minidist.show.stage.lanes import Lanes
from minidist.show.stage.marks import Mark, box, counter, text
from minidist.show.stage.story import Beat, Question, Story

RUNS = 9.0  # seconds that the shown part of a run takes
BEGUN = 0.8  # seconds that have run before the story opens
SHOWN = 3  # gradients of the straggler that are shown
TARGET = 4.0  # the loss that all runs should reach: they begin at 5.5
Runs = Mapping[str, Sequence[Recorded]]  # kind -> its runs, one for each seed


def axis_of(run: Recorded) -> float:
    """Return the seconds of a run that are shown: until some gradients of the slowest worker have arrived."""
    slow = [one for one in run.landings if one.worker == run.workers - 1 and not one.again]
    return slow[min(SHOWN, len(slow)) - 1].end * 1.02


def lanes(kind: str, run: Recorded, until: float, bug: str = "", details: str = "") -> Story:
    """Show each worker's steps in the colour of the weights that it pulled, and the server's versions below.

    Args:
        until: end of the axis, in simulated seconds.
    """
    workers, waiting = run.workers, kind == "synchronous"
    slow = [one for one in run.landings if one.worker == workers - 1 and not one.again]
    landed = run.by(until)
    last = max(one.found for one in landed) + 1
    names = [f"worker {worker}" for worker in range(workers - 1)] + ["slow worker", "server"]
    named = len(landed) < 40  # more labels would fill the stage
    begun = 2.2 if waiting else BEGUN  # long enough to see the first worker wait
    rows = Lanes(names, (0, 60, 1060, 500), (0, until), (-begun, RUNS + begun), margin=200)
    for one in run.landings:
        if one.again or one.begin >= until:
            continue
        colour, label = MEANINGS["computing"], "computes"
        if not waiting:
            colour, label = of_version(one.read, last), f"v{one.read}"
        what = f"step {one.step} of worker {one.worker}, computed with version {one.read}"
        what = f"{what}, applied to version {one.found}" if one in landed else f"in flight: {what}"
        rows.bar(one.worker, one.begin, min(one.end, until), colour, label if named else "", what)
        begins = [other.begin for other in run.landings if other.worker == one.worker and other.begin >= one.end]
        if (again := min([*begins, until])) > one.end:
            rows.bar(one.worker, one.end, again, "faint", "waits", f"worker {one.worker} waits")
    for version in range(min(last + 1, len(run.made))):
        end = run.made[version + 1] if version + 1 < len(run.made) else until
        if run.made[version] < until:
            rows.bar(
                workers,
                run.made[version],
                min(end, until),
                of_version(version, last),
                (f"weights {version}" if waiting else f"v{version}") if named else "",
                f"version {version}",
            )
    marks = rows.marks()
    marks += [dot for one in landed for dot in _landing(one, rows, workers, last)]
    first, stale, idle = slow[0], [one.staleness for one in landed], _idle(run, until)
    counted, asked, says = _waits(run, rows, until) if waiting else _ages(first, landed, rows)
    facts = {"mean staleness": f"{np.mean(stale):.2f}", "oldest": str(max(stale)), "workers wait": f"{idle:.0%}"}
    end = {
        "synchronous": f"Every gradient is fresh, and workers waited {idle:.0%} of the time.",
        "asynchronous": f"Nobody waited. Gradients were up to {max(stale)} updates old.",
        "bounded": f"Nobody was more than {STALENESS} steps ahead: workers waited {idle:.0%} of the time.",
    }[kind]
    if bug:
        copies = sum(one.again for one in landed)
        end = f"{copies} gradient{'s were' if copies > 1 else ' was'} applied twice. The loss does not show it."
    answered = None if bug else asked
    beats = [
        Beat(0, says[0], facts, asks=answered),
        Beat(rows.at(first.end) + (0.3 if waiting else 0.6), says[1], facts, answers=None if waiting else answered),
        Beat(RUNS + 0.8, end, facts, answers=answered if waiting else None),
    ]
    title = {
        "synchronous": "What does one slow worker cost?",
        "asynchronous": "What if nobody waits?",
        "bounded": "How far ahead may one run?",
    }
    key = {"computes": MEANINGS["computing"], "waits": "faint"} if waiting else {"waits": "faint"}
    verdict = "The bound is broken." if bug and kind == "bounded" else ""
    return Story(kind, title[kind], [*marks, *counted], beats, verdict, bug, details, key=key)


def _waits(run: Recorded, rows: Lanes, until: float) -> tuple[list[Mark], Question, tuple[str, str]]:
    """Return a counter of the share of time that workers have waited, the question about it, and two captions."""
    times = [until * part / 40 for part in range(1, 41)]
    counts = [(max(0.0, rows.at(time)), f"{_idle(run, time):.0%}") for time in times]
    counts = counts[sum(not at for at, _ in counts) - 1 :]
    idle = _idle(run, until)
    asked = Question.number(
        "The slow worker takes much longer for a step. How much of the workers' time is waiting?",
        idle,
        (idle / 3, (1 + 2 * idle) / 3),
        "All wait for the slowest in every step: they can compute nothing before the next weights arrive.",
        "{:.0%}",
    )
    says = (
        "All begin with the same weights. The others wait for the slow one.",
        "Now the slow worker's gradient arrives, and all go on with new weights.",
    )
    return counter(1180, 220, "of the time,\nworkers wait", counts, 80), asked, says


def _ages(first: Landing, landed: Sequence[Landing], rows: Lanes) -> tuple[list[Mark], Question, tuple[str, str]]:
    """Return a counter of the last gradient's age, the question about the slow worker's first, and two captions."""
    ages: list[tuple[float, str]] = [(0.0, "0")]
    for one in landed:
        if rows.at(one.end) > ages[-1][0] + 0.12:
            ages.append((rows.at(one.end) + 0.1, str(one.staleness)))
    asked = Question.number(
        "How many updates old is the slow worker's first gradient when it lands?",
        first.staleness,
        (0, 2 * first.staleness + 1, first.staleness + 2),
        "Each update in the meantime makes a new version: count the server's colours.",
    )
    says = (
        "A colour is a version of the weights. A worker uses the version that it pulled.",
        f"The slow worker's gradient lands, {first.staleness} update{'s' * (first.staleness != 1)} old.",
    )
    return counter(1180, 220, "updates old", ages), asked, says


def evidence(runs: Runs, seconds: float) -> Story:
    """Plot the loss of all runs over simulated time."""
    values = [loss for each in runs.values() for run in each for loss in run.losses]
    chart = Chart(
        (110, 50, 960, 440),
        (0, seconds),
        (min(values), max(values)),
        ("simulated seconds", "loss"),
        ((0, round(seconds)), (TARGET,)),
    )
    (x, y), (end, _) = chart.at(0, TARGET), chart.at(seconds, TARGET)
    marks: list[Mark] = [box(x, y - 1, end - x, 3, "ink")]
    reached = {kind: float(np.mean([run.reaches(TARGET) for run in each])) for kind, each in runs.items()}
    for number, (kind, each) in enumerate(runs.items()):
        for run in each:
            times = [time for time in run.times if time <= seconds]
            curve = chart.curve(
                list(zip(times, run.losses, strict=False)), MEANINGS[kind], 0.2, RUNS * times[-1] / seconds
            )
            curve.still["width"] = 5
        marks.append(text(chart.at(seconds, 0)[0] - 10, 90 + 44 * number, kind, 32, MEANINGS[kind], "end"))
        if np.isfinite(reached[kind]):
            at = 0.2 + RUNS * reached[kind] / seconds
            words = text(1090, 90 + 44 * number, f"{reached[kind]:.0f} s", 32, MEANINGS[kind], "start", weight=700)
            marks.append(words.enter(min(RUNS, at), 0.1))
    order = sorted(reached, key=reached.__getitem__)
    asked = Question(
        f"Which gets to a loss of {TARGET:g} first?",
        tuple(runs),
        list(runs).index(order[0]),
        "More gradients in the same time outweigh their age here. With larger steps they would not.",
    )
    count = len(next(iter(runs.values())))
    beats = [
        Beat(0, f"{count} runs of each kind, with new weights, samples and noise.", asks=asked),
        Beat(
            RUNS + 0.4,
            f"{order[0]} after {reached[order[0]]:.0f} s, {order[-1]} after {reached[order[-1]]:.0f} s.",
            answers=asked,
        ),
    ]
    return Story("evidence", "Is a stale gradient worth less than waiting?", [*chart.marks(), *marks], beats)


def _landing(one: Landing, rows: Lanes, workers: int, last: int) -> list[Mark]:
    """Draw a gradient on its way to the server; one that is applied again turns red and bounces."""
    x, at = rows.x(one.end), rows.at(one.end)
    y, to = (rows.top + (row + 0.5) * rows.high for row in (one.worker, workers))
    dot = box(
        x - 13,
        y - 13,
        26,
        26,
        of_version(one.read, last),
        f"gradient, {one.staleness} updates old",
        round=13,
        stroke="ink",
        width=2,
    )
    dot.enter(at, 0.01).to(at + 0.01, 0.4, y=to - 13, fill="wrong" if one.again else of_version(one.read, last))
    if one.again:
        dot.to(at + 0.5, 0.3, y=to - 60).to(at + 0.8, 0.3, y=to - 13)
    return [dot.leave(at + (1.2 if one.again else 0.5), 0.1)]


def _idle(run: Recorded, until: float) -> float:
    """Return the share of the workers' time that they spend waiting."""
    busy = sum(min(one.end, until) - one.begin for one in run.landings if one.begin < until and not one.again)
    return max(0.0, 1 - busy / (run.workers * until))
