"""Mixed precision in pictures: a ball that can only rest on the rungs of a ladder, and a master that glides."""

import numpy as np

from minidist.show.demos.bf16.run import STEPS, Weight
from minidist.show.palette import MEANINGS
from minidist.show.stage.marks import Mark, box, counter, line, text
from minidist.show.stage.story import Beat, Question, Story

PACE = 0.4  # seconds per training step
LEFT, RIGHT, TOP, FOOT = 190, 980, 30, 560
MASTER, STORED = MEANINGS["master weights"], MEANINGS["parameters"]
MOST_RUNGS = 48


def ladder(name: str, right: Weight, lost: Weight, bug: str = "", details: str = "") -> Story:
    """Tell the story of one weight: ``right``, which has a master, or with the bug ``lost``; on one ladder for both."""
    weight = lost if bug else right
    numbers = [weight.number(step) for step in range(STEPS + 1)]
    seen = [*map(float, right.masters), *(one.number(step) for one in (right, lost) for step in range(STEPS + 1))]
    low, high = min(seen), max(seen)
    low, high = low - 0.15 * (high - low), high + 0.15 * (high - low)

    def at(step: float, value: float) -> tuple[float, float]:
        return LEFT + (RIGHT - LEFT) * step / STEPS, TOP + (FOOT - TOP) * (high - value) / (high - low)

    rungs = _rungs(weight, low, high)
    marks: list[Mark] = []
    for place, value in enumerate(rungs):
        _, y = at(0, value)
        marks.append(line([(LEFT - 20, y), (RIGHT + 20, y)], "faint", 4 if len(rungs) < 20 else 2))
        if place % max(1, len(rungs) // 6) == 0:
            marks.append(text(LEFT - 30, y, f"{value:.4f}", 34, anchor="end"))
    if bug:
        marks.append(line([at(step, float(value)) for step, value in enumerate(right.masters)], "faint", 5))
    if not bug:
        curve = line([at(step, float(value)) for step, value in enumerate(weight.masters)], MASTER, 6)
        marks.append(curve.trace(0.2, STEPS * PACE))
        (x, y), (_, below) = at(0, float(weight.masters[0])), at(0, float(weight.masters[1]))
        update = line([(x + 60, y), (x + 60, below)], MASTER, 8, head=True)
        marks += [update.leave(0.2), text(x + 76, (y + below) / 2, "the first update", anchor="start").leave(0.2)]
        dot = box(x - 9, y - 9, 18, 18, MASTER, "float32 master", round=9)
        for step in range(1, STEPS + 1):
            x, y = at(step, float(weight.masters[step]))
            dot.to(0.2 + (step - 1) * PACE, PACE, x=x - 9, y=y - 9)
        marks.append(dot)
    colour = "wrong" if bug else STORED
    stairs = [point for step in range(1, STEPS + 1) for point in (at(step, numbers[step - 1]), at(step, numbers[step]))]
    marks.append(line([at(0, numbers[0]), *stairs], colour, 8).trace(0.2, STEPS * PACE))
    x, y = at(0, numbers[0])
    ball = box(x - 22, y - 22, 44, 44, colour, f"the weight in {name}", round=22, stroke="ink")
    for step in range(1, STEPS + 1):
        x, y = at(step, numbers[step])
        start = 0.2 + (step - 1) * PACE
        ball.to(start, PACE * 0.7, x=x - 22).to(start + PACE * 0.7, PACE * 0.3, y=y - 22)
    marks.append(ball)
    jumps = [(0.0, "0")] + [
        (0.2 + step * PACE, str(weight.moves(step)))
        for step in range(1, STEPS + 1)
        if weight.moves(step) > weight.moves(step - 1)
    ]
    marks += counter(1140, 230, "jumps so far", jumps)
    marks.append(text(RIGHT, 580, f"{STEPS} updates →", anchor="end"))
    first = next((step for step in range(1, STEPS + 1) if weight.moves(step)), None)
    answers = {1: "in the first step", None: "in none of them"}
    answers.setdefault(first, f"after {first} steps")
    order = sorted(answers, key=lambda key: key or STEPS + 1)
    step, far = (
        abs(float(right.masters[1] - right.masters[0])),
        weight.distance(0, bool(right.masters[1] > right.masters[0])),
    )
    asked = Question(
        f"An update is about {step:.4f}; the next rung is {far:.4f} away. When does the ball jump?",
        tuple(answers[key] for key in order),
        order.index(first),
        "An update of less than half a rung is rounded away in every step."
        if bug and first is None
        else "An update of more than half a rung moves it. The rest is rounded away in every step."
        if bug
        else "The master keeps every small update, and the ball jumps when the next rung is nearer.",
    )
    facts = {
        "update": f"{step:.6f}",
        "to the next rung": f"{far:.6f}",
        "bytes in a message": f"{weight.format.bits // 8}, in float32 4",
    }
    off = sum(weight.number(step) != right.number(step) for step in range(STEPS + 1))
    end = f"The ball is on the rung nearest to the master: {numbers[-1]:g}."
    if bug:
        end = (
            f"In {off} of {STEPS} steps it is not where it would be with a master."
            if off
            else "This weight ends where it should; others do not."
        )
    gap = "smaller" if step < far else "larger"
    beats = [
        Beat(
            0,
            f"{name} has only these rungs. An update is {gap} than the gap between two.",
            facts | {"jumps": "0"},
            asks=asked,
        ),
        Beat(
            0.2 + PACE * STEPS / 2,
            "Every update is added to the ball itself, and rounded."
            if bug
            else "A float32 master glides; the ball stands on the nearest rung.",
            facts | {"jumps": str(weight.moves(STEPS // 2))},
        ),
        Beat(0.4 + PACE * STEPS, end, facts | {"jumps": str(weight.moves(STEPS))}, answers=asked),
    ]
    key = {"float32 master": MASTER, f"{name}, stored and sent": STORED}
    if bug:
        key = {"a master, in the right run": "faint", f"{name} without a master": "wrong"}
    verdict = "Updates rounded away never come back." if bug else "Every bit matches one process."
    return Story(name, "How does a small update survive 16 bits?", marks, beats, verdict, bug, details, key=key)


def _rungs(weight: Weight, low: float, high: float) -> list[float]:
    """Return the 16-bit numbers from low to high, thinned out evenly to at most MOST_RUNGS."""
    format = weight.format
    ends = format.encode(np.array([low, high], np.float32))
    codes = np.arange(int(ends.min()), int(ends.max()) + 1).astype(format.dtype)  # positive: in the order of numbers
    values = [float(value) for value in format.decode(codes) if low <= value <= high]
    return values[:: -(-len(values) // MOST_RUNGS)]
