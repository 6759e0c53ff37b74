"""Stories of documents: rows that fill with pieces, the tiles that a pack skips, and the weight of one target."""

from collections.abc import Sequence
from math import ceil

import numpy as np

from minidist.nn.loss import IGNORED
from minidist.show.demos.documents.run import DRAWN, Counted, Curves, Grid, Packed
from minidist.show.palette import DOCUMENTS, of_rank
from minidist.show.stage.curve import Chart
from minidist.show.stage.marks import Mark, box, counter, text
from minidist.show.stage.story import Beat, Question, Story

PACE, BEGUN = 0.3, 7  # seconds per document, and the number of them that are there when the story opens
FILLS = 6.0  # seconds in which all tiles of a pack are computed
WINDOW = 10  # steps that each point of a curve averages


def of_document(number: int) -> str:
    return DOCUMENTS[number % len(DOCUMENTS)]


def _arrives(mark: Mark, document: int) -> Mark:
    """Let a mark appear together with a document."""
    return mark.enter((document - BEGUN) * PACE, 0.1) if document >= BEGUN else mark


def sign_of(number: int) -> str:
    """Return a document's letter, for a terminal without colours."""
    return chr(ord("a") + number)


def packs(packed: Sequence[Packed]) -> Story:
    """Show documents packed into samples in four ways, side by side."""
    most, wide, end = max(len(one.samples) for one in packed), 285, (DRAWN - BEGUN) * PACE
    high, marks = min(370 / most, 36), []
    for column, one in enumerate(packed):
        left, scale = 20 + 318 * column, wide / one.context
        middle = left + wide / 2
        marks.append(text(middle, 28, one.kind, 36, weight=700))
        for row, pieces in enumerate(one.pieces):
            y, place = 56 + row * high, 0
            rest = box(left, y, wide, high - 3, "faint", f"sample {row}", sign=".")
            first = min(piece.document for piece in pieces)
            marks.append(_arrives(rest, first))
            for piece in pieces:
                what = box(
                    left + place * scale, y, piece.places * scale - 1, high - 3, of_document(piece.document),
                    f"document {piece.document}: {one.text(piece)}", sign=sign_of(piece.document),
                )  # fmt: skip
                marks.append(_arrives(what, piece.document))
                place += piece.places
        told = (f"{one.padding:.0%} padding", 34), (f"{one.cut} cut apart", 30), (f"{one.skipped:.0%} of tiles", 30)
        for line, (words, size) in enumerate((*told, ("skipped", 30))):
            marks.append(text(middle, 455 + 40 * line, words, size).enter(end + 1.5 * min(line, 2), 0.2))
    share = packed[0].padding
    asked = Question.number(
        "One document per sample, then padding. How much of all samples is padding?",
        share,
        (share / 4, share / 2),
        "Every sample is as long as the longest document may be.",
        "{:.0%}",
    )
    best = packed[-1]
    beats = [
        Beat(0, f"{DRAWN} documents, and samples of {best.context} places. How do they fit?", asks=asked),
        Beat(end + 0.5, f"A document each: {share:.0%} is padding. In packs: {best.padding:.0%}.", answers=asked),
        Beat(
            end + 2,
            f"Cut every {best.context} places, {packed[1].cut} of {DRAWN} documents lie in more than one sample.",
            cue="If a document is cut, the model learns its second part without the beginning.",
        ),
        Beat(end + 3.5, f"Documents do not see each other: {best.skipped:.0%} of best-fit's tiles are never computed."),
    ]
    return Story("packs", "How full is a batch?", marks, beats, key={"padding": "faint"})


def tiles(packed: Packed, number: int, grid: Grid, details: str) -> Story:
    """Show one pack and the tiles of its scores; computed tiles have the colour of their document."""
    cell, left, top = 1220 / packed.context, 90, 150
    size, beat = 440 / len(grid.parts), FILLS / len(grid.computed)
    marks, place, owner = [], 0, {}
    for piece in packed.pieces[number]:
        words, colour, sign = packed.text(piece), of_document(piece.document), sign_of(piece.document)
        marks.append(box(30 + place * cell, 20, piece.places * cell - 2, 50, colour, words, text=words, sign=sign))
        for axis in (0, 1):
            spot = left + place * 440 / packed.context, top + place * 440 / packed.context
            side = piece.places * 440 / packed.context - 1
            x, y, w, h = ((spot[0], top - 26, side, 18), (left - 26, spot[1], 18, side))[axis]
            marks.append(box(x, y, w, h, colour, f"{('keys', 'queries')[axis]} of {words!r}", sign=sign))
        owner[place] = piece.document
        place += piece.places
    if place < packed.context:
        marks.append(box(30 + place * cell, 20, 1220 - place * cell, 50, "faint", "padding", sign="."))
    marks.append(text(left + 440, top - 52, "keys →", 30, anchor="end"))
    for i in range(len(grid.parts)):
        for j in range(i + 1):
            spot = left + (j + 0.5) * size - 5, top + (i + 0.5) * size - 5
            marks.append(box(*spot, 10, 10, "faint", f"queries {i}, keys {j}: skipped", sign="."))
    for order, (i, j) in enumerate(grid.computed):
        places = grid.first[0, grid.seen(i, j)]
        most = owner.get(int(np.bincount(places).argmax()))
        fill = "faint" if most is None else of_document(most)
        spot = left + j * size + 1, top + i * size + 1, size - 2, size - 2
        tile = box(*spot, fill, f"queries {i}, keys {j}", sign="." if most is None else sign_of(most))
        marks.append(tile.enter(0.2 + order * beat, 0.1))
    count, skipped = len(grid.computed), 1 - len(grid.computed) / grid.causal
    steps = [(0.2 + order * beat, str(order + 1)) for order in range(0, count, max(1, count // 12))]
    marks += counter(900, 250, f"of {grid.causal} tiles computed", [(0.0, "0"), *steps[1:], (FILLS + 0.2, str(count))])
    marks.append(text(900, 440, f"{skipped:.0%} skipped", 60, "right", weight=700).enter(FILLS + 0.4, 0.2))
    asked = Question.number(
        f"{len(owner)} documents in a pack, and none sees another. How many of the {grid.causal} tiles are computed?",
        count,
        (max(1, count // 2), grid.causal),
        "A tile is computed if one of its queries sees one of its keys.",
    )
    side = packed.context // len(grid.parts)
    seen = sum(len(grid.seen(i, j)) for i, j in grid.computed)
    facts = {
        "tiles computed": f"{count} of {grid.causal}, each {side} x {side}",
        "pairs of tokens that see each other": f"{seen:,}",
    }
    beats = [
        Beat(0, "A pack. A token sees the tokens before it in its own document.", facts, asks=asked),
        Beat(0.2 + FILLS / 2, "Each triangle is one document: tiles between them are skipped.", facts),
        Beat(
            FILLS + 0.6,
            f"{count} tiles instead of {grid.causal}. The whole mask: where each token's document begins.",
            facts,
            answers=asked,
            cue="FlashAttention has cu_seqlens for it, FlexAttention a block mask.",
        ),
    ]
    return Story("tiles", "Which scores are never computed?", marks, beats, details=details)


def one_step(step: Counted, bug: str = "", details: str = "") -> Story:
    """Show each rank's text in one step and, above each target, its weight in the loss, with the bug or without."""
    ranks, length = step.targets.shape
    weights, left, cell, band = step.weights(bool(bug)), 205, 1055 / (length + 1), 592 / ranks
    most, counts = float(step.weights(True).max()), step.counts
    poor, rich = int(counts.argmin()), int(counts.argmax())
    marks: list[Mark] = []
    for rank in range(ranks):
        foot = (rank + 1) * band - 46
        marks.append(text(20, foot - 20, f"GPU {rank}", 34, anchor="start", weight=700))
        marks.append(text(20, foot + 20, f"{counts[rank]} target{'s' if counts[rank] > 1 else ''}", 30, anchor="start"))
        (places,) = np.nonzero(step.targets[rank] != IGNORED)
        start, end = int(places[0]) + 1, int(places[-1]) + 2
        parts = (
            (0, start, "faint", "prompt", bytes(step.tokens[rank, :start]).decode()),
            (start, end, of_rank(rank), "targets", bytes(step.targets[rank, places].astype(np.uint8)).decode()),
            (end, length + 1, "none", "padding", ""),
        )
        for first, last, fill, what, words in parts:
            spot = left + first * cell, foot, (last - first) * cell - 1, 42
            if last > first:
                edge = (
                    {"stroke": "faint"}
                    if fill == "none"
                    else {"text": words, "sign": str(rank) if what == "targets" else "."}
                )
                marks.append(box(*spot, fill, what, **edge))
        high = (band - 56) * weights[rank] / most
        fill = "wrong" if bug and rank == poor else of_rank(rank)
        for place in range(start, end):
            bar = box(left + place * cell, foot - 4, cell - 1, 0, fill, f"{weights[rank]:.4f} of the loss", sign="|")
            marks.append(bar.to(1.0, 1.5, y=foot - 4 - high, h=high))
    times, global_loss = float(counts[rich] / counts[poor]), step.loss(local=False)
    y, shown = (poor + 1) * band - 105, f"{weights[poor] / weights[rich]:.3g} ×"
    marks.append(text(905, y, shown, 70, "wrong" if bug else "right", "end", weight=700).enter(2.6, 0.2))
    marks.append(text(930, y, f"a target of GPU {rich}", 30, anchor="start").enter(2.6, 0.2))
    asked = Question(
        f"GPU {rich} has {counts[rich]} targets, GPU {poor} has {counts[poor]}. What should one on GPU {poor} weigh?",
        (f"as much as one on GPU {rich}", f"{times:.3g} times as much", f"1/{times:.3g} of it"),
        0,
        "The loss is the mean over all targets of the batch: their GPU does not matter.",
    )
    facts = {
        "targets": ", ".join(f"{count} on GPU {rank}" for rank, count in enumerate(counts)),
        "sums of losses": ", ".join(f"{loss:.2f}" for loss in step.losses),
        "mean over all targets": f"{global_loss:.3f}",
        "mean of the GPUs' means": f"{step.loss(local=True):.3f}",
    }
    says = f"All divide by {counts.sum()}, the sum of their counts: every target weighs the same."
    ends = f"The loss of this step is {global_loss:.2f}."
    if bug:
        says = f"Each GPU divides by its own count: a target of GPU {poor} weighs {times:.3g} times as much."
        ends = f"With the same weights the loss is {step.loss(local=True):.2f}, not {global_loss:.2f}."
    beats = [
        Beat(0, "Prompts and padding have no targets. What does each target weigh?", asks=asked),
        Beat(2.8, says, facts, answers=asked, cue="One all-reduce of a count, before the first backward."),
        Beat(4.0, ends, facts),
    ]
    verdict = "This is a different mean." if bug else "Every bit matches one process."
    return Story("count", "What does a target weigh?", marks, beats, verdict, bug, details, key={"prompt": "faint"})


def losses(right: Curves, broken: Curves, bug: str = "", details: str = "") -> Story:
    """Plot the loss of longer runs, averaged over seeds, and show their loss on held-out text."""
    means = [one.losses.reshape(len(one.losses), -1, WINDOW).mean((0, 2)) for one in (right, broken)]
    last = len(means[0])
    low, high = (float(extreme(means)) for extreme in (np.min, np.max))
    ticks = (1, last), range(ceil(low), int(high) + 1)
    chart = Chart((110, 50, 700, 440), (1, last), (low, high), (f"{WINDOW} steps each", "loss"), ticks)
    marks: list[Mark] = []
    runs = [("right", right, means[0], "right", 130)]
    if bug:
        runs.append(("broken", broken, means[1], "wrong", 370))
    for name, run, mean, colour, y in runs:
        chart.curve(list(enumerate(mean, 1)), colour, 0.2, 5)
        marks.append(text(1050, y, f"{name}: ends at {mean[-1]:.2f}", 34, colour).enter(5.3, 0.2))
        marks.append(text(1050, y + 70, f"{run.held_out.mean():.2f}", 80, colour, weight=700).enter(7, 0.2))
        marks.append(text(1050, y + 130, "on held-out text").enter(7, 0.2))
    lower = bool(means[1][-1] < means[0][-1])
    asked = Question(
        "The next run divides by local counts. How will its loss look?",
        ("it diverges", "it falls, and ends higher", "it falls, and ends lower"),
        1 + int(lower),
        "Its loss is a different mean, in which short answers weigh more.",
    )
    facts = {
        f"held out, seed {number}": f"{a:.3f} right, {b:.3f} broken"
        for number, (a, b) in enumerate(zip(right.held_out, broken.held_out, strict=True))
    }
    worse = bool((broken.held_out > right.held_out).all())
    far = float((broken.held_out - right.held_out).mean())
    if bug:
        says = [
            "The same runs, with local counts. Is anything wrong?",
            f"The curve looks {'better' if lower else 'fine'}: {means[1][-1]:.2f}, against {means[0][-1]:.2f}.",
            f"On held-out text it is {far:+.2f}, worse with every seed."
            if worse
            else f"On held-out text it is {far:+.2f}.",
        ]
    else:
        says = [
            f"{len(right.losses)} seeds, each with one mean over all targets.",
            f"It falls to {means[0][-1]:.2f}.",
            f"On held-out text {right.held_out.mean():.2f}. Break it, and compare.",
        ]
    verdict = ("A better curve, and a worse model." if worse and lower else "No curve shows it.") if bug else ""
    questions = [{"asks": asked}, {}, {"answers": asked}] if not bug else [{}] * 3
    cue = "How much worse depends on the run: with AdamW, which scales every gradient anew, a run of this size ended "
    cue += "no worse. In every run the curve is a different mean, and bits differ from the first step on."
    beats = [
        Beat(at, what, facts if at else None, cue=cue if at == 7.2 else "", **more)
        for at, what, more in zip((0, 5.5, 7.2), says, questions, strict=True)
    ]
    return Story("loss", "Does the loss show it?", [*chart.marks(), *marks], beats, verdict, bug, details)
