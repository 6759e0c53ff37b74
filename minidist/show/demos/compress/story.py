"""What compression looks like: what is sent drops through the line, and what is not sent piles up above it."""

import numpy as np

from minidist.show.demos.compress.curves import WINDOW, Curves, windows
from minidist.show.demos.compress.factors import RANK, ROUNDS, Approximation
from minidist.show.demos.compress.run import STEPS, Recorded
from minidist.show.palette import MEANINGS
from minidist.show.stage.counter import counter
from minidist.show.stage.curve import Chart
from minidist.show.stage.marks import Mark, box, line, text
from minidist.show.stage.story import Beat, Question, Story

PACE = 1.6  # seconds of a training step
BASE, HIGH, LOW = 420, 340, 560  # the line to the network, the highest column above it, and where what is sent leaves
GRADIENT, RESIDUAL, SENT = MEANINGS["gradients"], MEANINGS["residual"], MEANINGS["communication"]
KEY = {"gradient comes": GRADIENT, "waits": RESIDUAL, "sent": SENT}
METHOD_COLOURS = ("#882255", "#D55E00", "#0072B2")


def columns(name: str, run: Recorded, right: Recorded, nbytes: int, bug: str = "", details: str = "") -> Story:
    """The drawn parameter of rank 0, a column for each number: a gradient comes, some of it is sent, the rest waits.

    Args:
        right: the same run with error feedback, which may be ``run``.
        nbytes: bytes of a message.
    """
    count = run.drawn[0].sent.size
    wide = 980 / count
    most = max(float(np.abs(message.corrected).max()) for one in (run, right) for message in one.drawn)
    marks: list[Mark] = [
        line([(20, BASE), (1000, BASE)], "ink", 5),
        text(1014, BASE + 4, "network below", anchor="start"),
    ]
    for number in range(count):
        x = 20 + number * wide + 3
        column = box(x, BASE, wide - 6, 0, GRADIENT, f"number {number}: gradient and what waits")
        marks.append(column)
        for step, message in enumerate(run.drawn):
            at = step * PACE
            tall, stays = (HIGH * abs(float(values[number])) / most for values in (message.corrected, message.after))
            column.to(at + 0.1 if step else -1.0, 0.4, y=BASE - tall, h=tall, fill=GRADIENT)  # one is there at once
            if sent := abs(float(message.sent[number])):
                high = min(HIGH * sent / most, 130.0)
                drop = box(
                    x, BASE - high, wide - 6, high, SENT, f"sent of number {number}: {float(message.sent[number]):+.3g}"
                )
                marks.append(drop.enter(at + 0.55, 0.01).to(at + 0.6, 0.6, y=BASE + 8).leave(at + 1.25, 0.2))
            column.to(at + 0.6, 0.3, y=BASE - stays, h=stays, fill=RESIDUAL)
            if bug:
                column.to(at + 0.95, 0.2, fill="wrong").to(at + 1.15, 0.3, y=BASE, h=0.0)
    full = 8 * count
    marks += counter(1150, 150, f"bytes a step\ninstead of {full}", [(0.0, "0"), (0.7, str(nbytes))], 90)
    never = count - run.moved()
    choices = sorted({0, never, count // 2, count - max(1, count // 8)})
    asked = Question(
        f"After {STEPS} steps, how many of {count} numbers have never been sent?",
        tuple(map(str, choices)),
        choices.index(never),
        "What waits grows with each gradient, until it is among the largest."
        if not bug
        else "Only what is large at once is ever sent: small gradients are lost, step after step.",
    )
    balanced, total = run.balances()
    facts = {
        "bytes": f"{nbytes} of {full}",
        "never sent": f"{never} of {count}",
        "sent + waits = what was to be sent": f"{balanced:,} of {total:,}",
    }
    end = (
        f"{never} of {count} numbers have never moved."
        if bug
        else "Nothing is lost: what does not go now waits, and goes later."
    )
    beats = [
        Beat(0, "A gradient is to cross a slow network. Must all of it be sent?", facts, asks=asked),
        Beat(
            PACE,
            "The largest drop through; the rest waits."
            if name == "top-k"
            else "All send a sign and one common size; what that misses waits.",
            facts,
        ),
        Beat(2 * PACE, "What was left out is gone." if bug else "The next gradient comes on top of what waits.", facts),
        Beat(STEPS * PACE, end, facts, answers=asked),
    ]
    return Story(name, "What becomes of a gradient that is not sent?", marks, beats, "", bug, details, key=KEY)


def low_rank(shown: Approximation, right: Approximation, bug: str = "") -> Story:
    """Two thin factors in place of a matrix, and their error from round to round."""
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
    shares = sorted({share, share / 2, min(1.0, 2 * share)})
    asked = Question(
        f"{rows} × {rows} numbers, {RANK} columns in each factor. Which share of the numbers is sent?",
        tuple(f"{one:.0%}" for one in shares),
        shares.index(share),
        "Two factors of as many rows as the matrix, each with few columns.",
    )
    beats = [
        Beat(0, f"M is the sum of {shown.ranks} GPUs' gradients. No GPU has it.", asks=None if bug else asked),
        Beat(2.6, "Two thin factors stand for it: two small all-reduces.", answers=None if bug else asked),
        Beat(
            6.4,
            f"Each round begins at random again: {shown.errors[-1]:.0%} off, {right.errors[-1]:.0%} with a warm start."
            if bug
            else f"Each round begins with the last Q: from {shown.errors[0]:.0%} to {shown.errors[-1]:.0%} off.",
        ),
    ]
    return Story("low rank", "Can two thin matrices stand for a thick one?", [*marks, *chart.marks()], beats, "", bug)


def losses(shown: Curves, bug: str = "") -> Story:
    """The loss of longer runs, means over all seeds: full gradients, and each method with feedback, or without."""
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
        "What is never sent is never learned." if bug else "Error feedback delays a gradient, and loses none of it.",
    )
    far = methods[worst][-1] - full[-1]
    beats = [
        Beat(0, f"{len(shown.full)} seeds each: full gradients, and three ways to send less.", asks=asked),
        Beat(5.6, f"{worst} ends {far:+.2f} above full gradients.", answers=asked),
    ]
    return Story("loss", "Does the model still learn?", [*chart.marks(), *marks], beats, "", bug)
