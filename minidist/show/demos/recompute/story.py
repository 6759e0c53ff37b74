"""Stories of recomputation: three mountains of activations on one clock, and the extra work below them."""

from collections.abc import Callable, Mapping

import numpy as np

from minidist.show.demos.recompute.run import recomputed_share
from minidist.show.demos.shared.memory_log import MemoryLog, last_steps
from minidist.show.figures.memory import COLOURS
from minidist.show.palette import MEANINGS
from minidist.show.stage.marks import Mark, box, line, text
from minidist.show.stage.mountain import mountain, outline
from minidist.show.stage.story import Beat, Question, Story
from minidist.train.result import Run

RUNS, BEGUN = 8.0, 2.5  # seconds of the recorded step, and how many have run before the story opens
LEFT, WIDE, HIGH = 205, 800, 136  # pixels: left edge of the mountains, longest width, greatest height
EXTRA = MEANINGS["recomputed"]
KEY = {"activations": COLOURS["activations"], "extra work: computed again": EXTRA}


def mountains(runs: Mapping[str, Run], details: str, bug: str = "") -> Story:
    """Show one step of rank 0 in each mode; with the bug, backward is red in the modes that recompute."""
    logs = {mode: last_steps(run.ranks[0].log) for mode, run in runs.items()}
    shares = {mode: recomputed_share(run.config, mode) for mode, run in runs.items()}
    most = max(log.highest("activations") for log in logs.values())
    scale = WIDE / (1 + max(shares.values()))  # pixels of the work of forward and backward
    kept = _held(logs["none"], 0.0)
    marks: list[Mark] = [
        line([(LEFT + scale, 40), (LEFT + scale, 556)], width=3),
        text(LEFT - 20, 18, "recompute:", anchor="end"),
        text(LEFT, 18, "↑ memory for activations", anchor="start"),
        text(LEFT + WIDE, 584, "work of forward and backward →", anchor="end"),
    ]
    for row, (mode, log) in enumerate(logs.items()):
        y, extra = 40 + row * 178, shares[mode]
        wrong, wide = bug and mode != "none", scale * (1 + extra)
        held = _held(log, extra, "wrong" if wrong else "activations")
        place, clock = (LEFT, y, wide, HIGH), (-BEGUN, (RUNS + BEGUN) * wide / WIDE)
        if extra:
            marks.append(outline(lambda *part: kept(*part)["activations"], (LEFT, y, scale, HIGH), most))
        colours = {"activations": COLOURS["activations"], "wrong": "wrong"}
        marks += mountain(held, colours, place, most, clock, 60 + round(60 * extra))
        marks.append(text(LEFT - 20, y + HIGH - 24, mode, 30, anchor="end", weight=700))
        again = box(LEFT + scale, y + HIGH + 4, 0, 26, EXTRA, f"{extra:.1%} more FLOPs")
        if extra:
            marks.append(again.to(clock[0] + clock[1] * scale / wide, clock[1] * (1 - scale / wide), w=wide - scale))
        marks.append(text(LEFT + wide + 14, y + HIGH + 17, "done", 32, anchor="start").enter(sum(clock), 0.1))
        peak = f"{log.highest('activations') / 1e3:,.0f} kB"
        marks.append(text(LEFT + WIDE + 20, y + 50, peak, 44, anchor="start", weight=700).enter(sum(clock), 0.1))
        more = f"+{extra:.0%} compute"
        marks.append(text(LEFT + WIDE + 20, y + 96, more, 32, anchor="start").enter(RUNS + 0.4, 0.1))
    full = shares["full"]
    asked = Question.number(
        "Whole blocks are computed again in backward. How much more does the step compute?",
        full,
        (full / 3, min(1.0, 3 * full)),
        "One extra forward on top of a forward and a backward of twice its work: at most a third.",
        "{:.0%}",
    )
    peaks = {mode: log.highest("activations") for mode, log in logs.items()}
    facts = {mode: f"{peak:,} bytes, {shares[mode]:.1%} more" for mode, peak in peaks.items()}
    asked = None if bug else asked
    beats = [
        Beat(0, "Forward stores activations for backward. Dropped ones are computed again.", asks=asked),
        Beat(RUNS - 0.5, "If less is kept, the mountain is lower and backward ends later."),
        Beat(
            RUNS + 0.7,
            "Red: recomputed with another dropout mask. No error."
            if bug
            else f"{peaks['none'] / peaks['full']:.1f} times less memory, for {full:.0%} more compute.",
            facts,
            answers=asked,
        ),
    ]
    verdict = "Wrong gradients." if bug else "Every bit matches one process."
    return Story("step", "Is it cheaper to remember or to compute again?", marks, beats, verdict, bug, details, key=KEY)


def _held(log: MemoryLog, extra: float, in_backward: str = "activations") -> Callable[[float, float], dict[str, float]]:
    """Return a function (start, end) -> bytes by kind, held between two places of a row from 0 to 1.

    A row is as long as its work. Without the extra work, a third of it is forward.

    Args:
        extra: work that is done again in backward, as a share of all work of "none".
        in_backward: kind, and so colour, of what is held in backward.
    """
    forward, backward = log.places("forward"), log.places("backward")
    turns = (forward[0][0], backward[0][0], backward[-1][1]) if backward else (0.0, 1.0, 1.0)

    def held(since: float, until: float) -> dict[str, float]:
        start, end = np.interp((since, until), (0, 1 / 3 / (1 + extra), 1), turns)
        return {in_backward if start >= turns[1] else "activations": log.between(start, end)["activations"]}

    return held
