"""What each way to wait costs: how stale the gradients were, and the loss over simulated time, for several seeds."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from minidist.show.demos.parameter_server.recorded import Recorded
from minidist.show.demos.shared.lanes import ticks
from minidist.show.palette import MEANINGS
from minidist.show.player.scene import Box, Curve, Frame, Label, Scene, Shape

NAME = "evidence"
TITLE = "What waiting costs: staleness counted, and the loss over simulated time"
TARGET = 4.0  # the loss that all runs are to reach: they begin at 5.5
FRAMES = 12
HEIGHT = 15.0
SHARES = 1.0, 25.0  # left and right end of the histograms
EACH, HIGH = 5, 2.75  # lines: from one histogram to the next, and its bars
LEFT, RIGHT, TOP, BOTTOM = 35, 71, 1.0, 12.75  # of the losses

Runs = Mapping[str, Sequence[Recorded]]  # kind -> its runs, one for each seed


def scene_of(runs: Runs, seconds: float, verdict: str) -> Scene:
    """The three kinds of runs as time goes on, up to ``seconds``."""
    frames = []
    for part in range(FRAMES + 1):
        now = seconds * part / FRAMES
        shapes = (*_histograms(runs, now, seconds), *_losses(runs, now, seconds))
        frames.append(Frame(shapes, _note(runs, now), _facts(runs, now), now))
    key = {kind: MEANINGS[kind] for kind in runs} | {"of the straggler": "ink"}
    return Scene(NAME, TITLE, tuple(frames), HEIGHT, key, verdict, None, (FRAMES // 4, FRAMES))


def loss_at(run: Recorded, now: float) -> float:
    """The loss of the server's weights at a time."""
    return float(np.interp(now, run.times, run.losses))


def staleness(runs: Sequence[Recorded], now: float) -> list[int]:
    """That of all gradients until then."""
    return [one.staleness for run in runs for one in run.by(now)]


def _histograms(runs: Runs, now: float, seconds: float) -> list[Shape]:
    """Draw for each kind the share of gradients with each staleness, those of the straggler on top."""
    most = max(max(staleness(each, seconds)) for each in runs.values())
    left, right = SHARES
    width = (right - left) / (most + 1)
    shapes: list[Shape] = []
    for row, (kind, each) in enumerate(runs.items()):
        base = TOP + EACH * row + HIGH
        landed = [one for run in each for one in run.by(now)]
        last = each[0].workers - 1
        counts = [Counter(one.staleness for one in landed if (one.worker == last) is slow) for slow in (False, True)]
        mean = f" {np.mean(staleness(each, now)):.1f}" if landed else ""
        shapes.append(Label(left, base - HIGH - TOP / 2, f"{kind}: staleness{mean}"))
        shapes.append(Curve(((left, base), (right, base)), "faint", 2))
        for old in range(most + 1):
            below, x = base, left + width * old
            for slow, count in enumerate(counts):
                high = HIGH * count[old] / max(1, len(landed))
                if high:
                    fill, mark = ("ink", "#") if slow else (MEANINGS[kind], kind[0])
                    shapes.append(Box(x, below - high, width - 0.3, high, fill, "", mark))
                    below -= high
            if width >= 2.2 or old % 2 == 0:
                shapes.append(Label(x + width / 2 - 0.15, base + 0.75, str(old), "faint", "middle"))
    return shapes


def _losses(runs: Runs, now: float, seconds: float) -> list[Shape]:
    """A thin curve for each seed, and where each kind reaches the target."""
    values = [loss for each in runs.values() for run in each for loss in run.losses]
    low, high = min(values), max(values)

    def at(time: float, loss: float) -> tuple[float, float]:
        return LEFT + (RIGHT - LEFT) * time / seconds, TOP + (BOTTOM - TOP) * (high - loss) / (high - low)

    target = at(0, TARGET)[1]
    shapes: list[Shape] = [
        Label(LEFT - 0.6, (target + BOTTOM) / 2, "loss", "faint", "end"),
        Curve(((LEFT, BOTTOM), (RIGHT, BOTTOM)), "faint", 2),
        Curve(((LEFT, target), (RIGHT, target)), "ink", 2),
        Label(LEFT - 0.6, target, f"{TARGET:.1f}", "ink", "end"),
        Label(LEFT - 0.6, at(0, high)[1], f"{high:.1f}", "faint", "end"),
        Label(LEFT - 0.6, at(0, low)[1], f"{low:.1f}", "faint", "end"),
        Label(RIGHT, HEIGHT - 0.5, "simulated seconds", "faint", "end"),
    ]
    for time in ticks(seconds):
        x = at(time, low)[0]
        shapes += [
            Curve(((x, BOTTOM), (x, BOTTOM + 0.2)), "faint", 2),
            Label(x, BOTTOM + 0.75, f"{time:g}", "faint", "middle"),
        ]
    for kind, each in runs.items():
        for run in each:
            places = [(time, loss) for time, loss in zip(run.times, run.losses, strict=True) if time < now]
            places.append((now, loss_at(run, now)))
            shapes.append(Curve(tuple(at(*place) for place in places), MEANINGS[kind], 3))
    return shapes + _reached(runs, now, at)


def _reached(runs: Runs, now: float, at: Callable[[float, float], tuple[float, float]]) -> list[Shape]:
    """Draw when runs reached the target on average, for each kind of which all have: a line, and the time."""
    shapes: list[Shape] = []
    free = float(RIGHT)  # from here on to the right are times
    means = {kind: float(np.mean([run.reaches(TARGET) for run in each])) for kind, each in runs.items()}
    for kind in sorted(runs, key=means.__getitem__, reverse=True):
        if max(run.reaches(TARGET) for run in runs[kind]) <= now:
            x, y = at(means[kind], TARGET)
            text = f"{means[kind]:.0f} s"
            place = min(x, free - len(text) / 2 - 0.5)
            shapes.append(Curve(((x, TOP), (x, y)), MEANINGS[kind], 2))
            shapes.append(Label(place, TOP - 0.5, text, "ink", "middle"))
            free = place - len(text) / 2
    return shapes


def _note(runs: Runs, now: float) -> str:
    count = len(next(iter(runs.values())))
    if not now:
        return f"{count} runs of each kind, with other weights, samples and noise. On this clock messages take no time."
    done = [kind for kind, each in runs.items() if max(run.reaches(TARGET) for run in each) <= now]
    if not done:
        return f"After {now:.0f} s: without waiting, more gradients come, and the loss falls sooner."
    if len(done) < len(runs):
        return f"After {now:.0f} s the loss of all {' and '.join(done)} runs is below {TARGET:.1f}."
    return f"After {now:.0f} s all runs are below it. With a bound, a worker that is always slow still sets the pace."


def _facts(runs: Runs, now: float) -> dict[str, str]:
    facts = {"time": f"{now:.1f} s"}
    for kind, each in runs.items():
        count = np.mean([len(run.by(now)) for run in each])
        facts[kind] = f"{count:.0f} gradients, loss {np.mean([loss_at(run, now) for run in each]):.2f}"
    return facts
