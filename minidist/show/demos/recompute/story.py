"""What recomputation looks like: three mountains of activations on one clock, and the extra work beside them."""

from collections.abc import Mapping

from minidist.show.demos.recompute.run import recomputed_share
from minidist.show.demos.shared.memory_log import last_steps
from minidist.show.figures.memory import COLOURS
from minidist.show.stage.marks import Mark, box, text
from minidist.show.stage.mountain import mountain, outline
from minidist.show.stage.story import Beat, Question, Story
from minidist.train.result import Run

RUNS = 8.0  # seconds, of the recorded step
HIGH = 150  # pixels of a mountain


def mountains(runs: Mapping[str, Run], details: str, bug: str = "") -> Story:
    """One step of rank 0 in each mode; with the bug, what is recomputed is red."""
    logs = {mode: last_steps(run.ranks[0].log) for mode, run in runs.items()}
    most = max(log.highest("activations") for log in logs.values())
    marks: list[Mark] = [text(158, 26, "recompute", anchor="end"), text(1270, 580, "time →", anchor="end")]
    marks.append(text(180, 26, "↑ activations", anchor="start"))
    for row, (mode, log) in enumerate(logs.items()):
        y = 26 + row * 192
        wrong = bug and mode != "none"
        backward = log.places("backward")
        (start, end) = (backward[0][0], backward[-1][1]) if backward else (1.0, 1.0)

        def held(since: float, until: float, log=log, wrong=wrong, start=start, end=end) -> dict[str, float]:
            amount = log.between(since, until)["activations"]
            return {"wrong" if wrong and start <= since < end else "activations": amount}

        place = (170, y, 800, HIGH)
        marks.append(outline(lambda *part: logs["none"].between(*part)["activations"], place, most))
        colours = {"activations": COLOURS["activations"], "wrong": "wrong"}
        marks += mountain(held, colours, place, most, (0.2, RUNS))
        marks.append(text(158, y + HIGH - 24, mode, 30, anchor="end", weight=700))
        peak, extra = log.highest("activations"), recomputed_share(runs[mode].config, mode)
        marks.append(text(990, y + 50, f"{peak / 1e3:,.0f} kB", 34, anchor="start").enter(RUNS + 0.2, 0.1))
        marks.append(text(990, y + 96, f"+{extra:.0%} compute", 34, anchor="start").enter(RUNS + 0.4, 0.1))
        marks.append(
            box(990, y + 124, max(2.0, 280 * extra), 18, "#E69F00", f"{extra:.1%} more FLOPs").enter(RUNS + 0.4, 0.1)
        )
    shares = {mode: recomputed_share(run.config, mode) for mode, run in runs.items()}
    full = shares["full"]
    choices = tuple(f"{share:.0%}" for share in sorted({full / 3, full, min(1.0, 3 * full)}))
    asked = Question(
        "Whole blocks are computed again in backward. How much more does the step compute?",
        choices,
        choices.index(f"{full:.0%}"),
        "One forward more beside a forward and a backward, which is twice as much: at most a third.",
    )
    peaks = {mode: log.highest("activations") for mode, log in logs.items()}
    facts = {mode: f"{peak:,} bytes, {shares[mode]:.1%} more" for mode, peak in peaks.items()}
    beats = [
        Beat(
            0,
            "The grey line: forward keeps all its activations until backward has used them.",
            asks=None if bug else asked,
        ),
        Beat(0.2 + RUNS / 2, "It is highest where forward ends; what is dropped there is computed again."),
        Beat(
            RUNS + 0.7,
            "Red: computed again, with other dropout. Nothing complains."
            if bug
            else f"{peaks['none'] / peaks['full']:.1f} times less memory, for {full:.0%} more compute.",
            facts,
            answers=None if bug else asked,
        ),
    ]
    verdict = "Wrong gradients." if bug else "Every bit is that of one process."
    return Story("step", "Is it cheaper to remember or to compute again?", marks, beats, verdict, bug, details)
