"""Compression in pictures: numbers that are sent drop through a line, and the rest piles up above it."""

import numpy as np

from minidist.show.demos.compress.curves import WINDOW, Curves, windows
from minidist.show.demos.compress.factors import RANK, ROUNDS, Approximation
from minidist.show.demos.compress.run import STEPS, Recorded
from minidist.show.palette import MEANINGS
from minidist.show.stage.curve import Chart
from minidist.show.stage.marks import Mark, box, counter, line, text
from minidist.show.stage.story import Beat, Question, Story

PACE, FIRST = 2.0, 4  # seconds per training step, and steps before the story opens
BASE, HIGH = 450, 390  # the line to the network, and the highest column above it
GRADIENT, RESIDUAL, SENT = MEANINGS["gradients"], MEANINGS["residual"], MEANINGS["communication"]
KEY = {"new gradient": GRADIENT, "waits": RESIDUAL, "sent": SENT}
LOST = {"new gradient": GRADIENT, "left out": RESIDUAL, "lost": "wrong", "sent": SENT}
METHOD_COLOURS = ("#882255", "#D55E00", "#0072B2")


def columns(name: str, run: Recorded, right: Recorded, nbytes: int, bug: str = "", details: str = "") -> Story:
    """Tell the story of rank 0's drawn parameter, a column for each number: some of it is sent, and the rest waits.

    Args:
        right: the same run with error feedback, which may be ``run``.
        nbytes: bytes of a message.
    """
    count, shown = run.drawn[0].sent.size, run.drawn[FIRST:]
    wide = 1000 / count
    scale = HIGH / max(float(np.abs(message.corrected).max()) for one in (run, right) for message in one.drawn)
    marks: list[Mark] = [
        box(20, BASE, 1006, 140, "paper", "the slow network", stroke="ink", width=4, sign=" "),
        text(523, BASE + 106, "slow network", 32),
    ]
    for number in range(count):
        x = 23 + number * wide
        waits = box(x, BASE, wide - 6, 0, RESIDUAL, f"number {number}: what waits", sign="w")
        new = box(x, BASE, wide - 6, 0, GRADIENT, f"new gradient of number {number}", sign="n")
        marks += [waits, new]
        for step, message in enumerate(shown):
            at = step * PACE
            before, total, after, sent = (
                scale * abs(float(values[number]))
                for values in (message.before, message.corrected, message.after, message.sent)
            )
            old = min(before, total)  # a new gradient of the other sign reduces the residual
            begins = at + 0.1 if step else -1.0  # the first has arrived when the story opens
            waits.to(begins, 0.4, y=BASE - old, h=old)
            new.to(begins, 0.0, y=BASE - old).to(begins, 0.4, y=BASE - total, h=total - old)
            if sent:
                low = min(sent, 70.0)
                drop = box(x, BASE - sent, wide - 6, sent, SENT, f"sent: {float(message.sent[number]):+.3g}", text="↓")
                marks.append(drop.enter(at + 0.7, 0.01).to(at + 0.9, 0.5, y=BASE + 8, h=low).leave(at + 1.6, 0.2))
            settles = at + (0.7 if sent else 1.6)
            new.to(settles, 0.0, y=BASE - after, h=0.0)
            waits.to(settles, 0.0, y=BASE - after, h=after)
            if bug:
                waits.to(at + 1.6, 0.0, fill="wrong").to(at + 1.6, 0.3, y=BASE, h=0.0).to(at + 1.9, 0.0, fill=RESIDUAL)
    full = 8 * count
    marks += counter(1150, 150, f"of {full} bytes\nsent in a step", [(0.0, str(nbytes))], 90)
    never = count - run.moved()
    asked = Question.number(
        f"After {STEPS} steps, how many of {count} numbers have never been sent?",
        never,
        (0, count // 2, count - max(1, count // 8)),
        "Every number sends its sign in every step."
        if name == "1 bit"
        else "The rest grows with each gradient, until it is among the largest."
        if not bug
        else "Only large gradients are ever sent: small ones are lost, step after step.",
    )
    balanced, total = run.balances()
    facts = {
        "bytes": f"{nbytes} of {full}",
        "never sent": f"{never} of {count}",
        f"sent + {'lost' if bug else 'waits'} = what was to be sent": f"{balanced:,} of {total:,}",
    }
    end = (
        "Every sign is sent. The distance from the common size is lost."
        if bug and name == "1 bit"
        else f"{never} of {count} numbers have never moved."
        if bug
        else "Nothing is lost: the rest is kept now, and sent later."
    )
    passes = "the largest" if name == "top-k" else "signs and one common size"
    rest = "is dropped" if bug else "waits"
    beats = [
        Beat(0, f"Only {passes} cross the slow network. The rest {rest}.", facts, asks=asked),
        Beat(PACE - 0.1, f"{passes.capitalize()} were sent. The part above the line {rest}.", facts),
        Beat(
            PACE + 0.85,
            "The rest is gone, and the next gradient comes."
            if bug
            else f"The next gradient came on top of the rest. Now {passes} are sent.",
            facts,
        ),
        Beat(len(shown) * PACE, end, facts, answers=asked),
    ]
    key = LOST if bug else KEY
    return Story(name, "What happens to a gradient that is not sent?", marks, beats, "", bug, details, key=key)


def low_rank(shown: Approximation, right: Approximation, bug: str = "") -> Story:
    """Tell the story of two thin factors in place of a matrix, and of their error from round to round."""
    rows, side = len(shown.matrix), 300
    thin = side * RANK / rows
    marks: list[Mark] = [
        box(60, 120, side, side, GRADIENT, "the sum of all GPUs' gradients", text="M", size=60, weight=700)
    ]
    p = box(60, 120, side, side, SENT, "P, the first all-reduce", text="P").enter(1.0, 0.2).to(1.4, 1, x=400, w=thin)
    q = (
        box(60, 120, side, side, SENT, "Q, the second all-reduce", text="Q")
        .enter(1.0, 0.2)
        .to(1.4, 1, x=400 + thin + 14, w=thin)
    )
    marks += [
        p,
        q,
        text(210, 460, f"{rows} × {rows}", 34),
        text(400 + thin, 460, f"2 × {RANK} × {rows}", 34).enter(2.4, 0.2),
    ]
    most = max(*shown.errors, *right.errors)
    chart = Chart((700, 70, 500, 400), (1, ROUNDS), (0, most), ("round", "error"), (range(1, ROUNDS + 1), ()))
    (x, y), (end, _) = chart.at(1, shown.best), chart.at(ROUNDS, shown.best)
    marks += [line([(x, y), (end, y)], "ink", 3), text(end, y + 24, f"least: {shown.best:.0%}", anchor="end")]
    if bug:
        chart.curve(list(enumerate(right.errors, 1)), "right", 3, 3)
    chart.curve(list(enumerate(shown.errors, 1)), "wrong" if bug else SENT, 3, 3)
    share = 2 * RANK / rows
    asked = Question.number(
        f"{rows} × {rows} numbers, {RANK} columns in each factor. What share of the numbers is sent?",
        share,
        (share / 2, min(1.0, 2 * share)),
        "Two factors with as many rows as the matrix, but few columns.",
        "{:.0%}",
    )
    asked = None if bug else asked
    beats = [
        Beat(0, f"M is the sum of {shown.ranks} GPUs' gradients. No GPU has it.", asks=asked),
        Beat(2.6, "Two thin factors stand for it: two small all-reduces.", answers=asked),
        Beat(
            6.4,
            f"Each round begins at random: off by {shown.errors[-1]:.0%}; with a warm start by {right.errors[-1]:.0%}."
            if bug
            else f"Each round begins with the last Q: from {shown.errors[0]:.0%} to {shown.errors[-1]:.0%} off.",
        ),
    ]
    return Story("low rank", "Can two thin matrices stand for a thick one?", [*marks, *chart.marks()], beats, "", bug)


def losses(shown: Curves, bug: str = "") -> Story:
    """Tell the story of longer runs' mean losses: full gradients, and each method, with feedback or without."""
    full = windows(shown.full).mean(0)
    methods = {name: windows(runs).mean(0) for name, runs in (shown.forgetful if bug else shown.compressed).items()}
    values = np.concatenate(
        [full, *(windows(runs).mean(0) for runs in (*shown.compressed.values(), *shown.forgetful.values()))]
    )
    count = len(full)
    chart = Chart(
        (110, 50, 720, 440),
        (1, count),
        (float(values.min()), float(values.max())),
        (f"{WINDOW} steps each", "loss"),
        ((1, count), ()),
    )
    chart.curve(list(enumerate(full, 1)), "ink", 0.2, 5)
    ends = {"full": (float(full[-1]), "ink")}
    for (name, curve), colour in zip(methods.items(), METHOD_COLOURS, strict=True):
        chart.curve(list(enumerate(curve, 1)), colour, 0.2, 5)
        ends[f"{name}: {shown.shares[name]:.1%} of bytes"] = float(curve[-1]), colour
    marks, place = [], 1000.0
    for words, (loss, colour) in sorted(ends.items(), key=lambda entry: entry[1][0]):  # from the bottom up
        place = min(place - 34, chart.at(count, loss)[1])
        marks.append(text(842, place, words, 28, colour, "start").enter(5.2, 0.2))
    worst = max(methods, key=lambda name: methods[name][-1])
    asked = Question(
        "Without error feedback, which falls furthest behind?" if bug else "Does sending so little spoil training?",
        tuple(methods) if bug else ("yes, it diverges", "hardly: the rest arrives later", "it trains better"),
        list(methods).index(worst) if bug else 1,
        "What is left out is never learned." if bug else "Error feedback delays a gradient, and loses none of it.",
    )
    far = methods[worst][-1] - full[-1]
    beats = [
        Beat(0, f"{len(shown.full)} seeds each: full gradients, and three ways to send less.", asks=asked),
        Beat(5.6, f"{worst} ends {abs(far):.2f} {'above' if far > 0 else 'below'} full gradients.", answers=asked),
    ]
    return Story("loss", "Does the model still learn?", [*chart.marks(), *marks], beats, "", bug)
