"""Stories of tensor parallelism: matrices are cut into slabs, and half results slide over each other."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from minidist.analysis.steps import step_length, traced_step
from minidist.show.demos.shared.on_gpus import is_dropped
from minidist.show.demos.tensor_parallel import attention, halves
from minidist.show.demos.tensor_parallel.mlp import Held
from minidist.show.palette import COLLECTIVES, MEANINGS, of_rank
from minidist.show.stage.lanes import Lanes
from minidist.show.stage.marks import Mark, box, counter, line, text
from minidist.show.stage.story import Beat, Question, Story
from minidist.train.result import Run

UNIT = 58  # pixels of a row or a column
MIDDLES, CENTER = (166, 472), 319  # the heights of the two GPUs' halves of the stage, and of the line between them
CUT, MADE, HALF, SUMMED, END = 1.2, 3.2, 5.2, 7.4, 10.0  # seconds: when each part begins
COLUMNS, LENT = (120, 360, 760, 1080), 0.6  # tokens in their picture: x of the columns, and when they are lent
# x, sign, moment
SIGNS = ((227, "·", CUT + 0.8), (424, "GELU", MADE), (709, "·", HALF - 0.6), (927, "=", HALF))
WEIGHTS, ACTIVATIONS, WHOLE = MEANINGS["parameters"], MEANINGS["activations"], "#009E73"
RUNS = 7.0  # seconds that a step takes
SAME = "Every bit matches one process."


def mlp(ranks: Sequence[Held], one: Held, bug: str = "", details: str = "") -> Story:
    """Cut the MLP y = GELU(x A) B over two GPUs: A by columns, B by rows."""
    marks = _stage()
    marks += _inputs(one.x)
    wide, high = one.x.shape[1] * UNIT, len(one.x) * UNIT
    for x, words in ((356, "weights A"), (807, "weights B")):
        marks.append(text(x, CENTER + high / 2 + 36, words).leave(CUT, 0.2))
    for x, words in ((227, "·"), (594, "→  GELU  →"), (927, "=")):
        marks.append(text(x, CENTER, words, 40).leave(CUT, 0.2))
    marks.append(box(960, CENTER - high / 2, wide, high, "none", "y", stroke="ink", text="y = ?").leave(CUT, 0.2))
    for rank, held in enumerate(ranks):
        columns, rows = held.a.shape[1], held.b.shape[0]
        place = 240 + rank * columns * UNIT, 0
        marks.append(_weights(one.a, place, (columns, one.a.shape[0]), rank, 240, "½ A", "columns of A"))
        marks.append(_weights(one.b, (720, rank * rows * UNIT), (one.b.shape[1], rows), rank, 720, "½ B", "rows of B"))
        marks.append(_grown(490, MIDDLES[rank], held.z, "½ hidden", of_rank(rank), MADE, 1.8))
        marks += [text(x, MIDDLES[rank], sign, 40).enter(at, 0.3) for x, sign, at in SIGNS]
    marks += _sum(ranks, one.y, bool(bug))
    terms, sums = _first_number(ranks, one.y)
    asked = Question(
        "How often do the GPUs talk to each other in this forward pass?",
        ("never", "once", "twice: after A and after B"),
        1,
        "A's columns make whole hidden units, and GELU works on each alone. Only y needs a sum.",
    )
    asked = None if bug else asked
    beats = [
        Beat(
            0,
            "The weights A and B are too large for one GPU: each takes half.",
            cue="Let the class find the cut: A by columns, B by rows.",
            asks=asked,
        ),
        Beat(4.6, "Each makes half of the hidden units, and needs no message for it."),
        Beat(6.8, f"Each has a part of every number in y, such as {terms[0]} and {terms[1]}. Their sum is missing."),
        Beat(
            END,
            f"Without the sum each goes on with its part. Right: {sums}."
            if bug
            else f"One all-reduce, and every number is whole: {sums}.",
            {"sent by each GPU": f"{ranks[0].sent} bytes"},
            answers=asked,
        ),
    ]
    verdict = "y is wrong on both." if bug else SAME
    return Story("MLP", "How do two GPUs share one multiplication?", marks, beats, verdict, bug, details, key=_key())


def tokens(ranks: Sequence[Held], one: Held) -> Story:
    """Keep half of the tokens on each of two GPUs, and lend the others for the MLP alone."""
    count, high = len(one.x), 236 / len(one.x)
    marks: list[Mark] = []
    for x, name in zip(COLUMNS, ("keeps", "needs", "half sums", "keeps"), strict=True):
        marks.append(text(x + 90, 18, name, 32, weight=700))
    moving: list[Mark] = []
    for gpu in range(len(ranks)):
        top = 46 + 290 * gpu
        marks.append(box(106, top - 8, 1168, 248, "paper", f"GPU {gpu}", stroke="ink", round=10))
        marks.append(text(92, top + 118, f"GPU {gpu}", anchor="end"))
        marks.append(box(582, top + 10, 132, 214, WEIGHTS, f"half of A and B on GPU {gpu}", text="½ MLP", weight=700))
        for token in range(count):
            owner, y = token * len(ranks) // count, top + token * high
            size, name = (180, high - 6, of_rank(owner), f"token {token} on GPU {gpu}"), f"token {token}"
            for x in COLUMNS if owner == gpu else COLUMNS[1:3]:
                marks.append(box(x, y, 180, high - 6, "none", stroke="faint", width=3))
            if owner != gpu:
                marks.append(text(COLUMNS[1] + 90, y + high / 2 - 3, "?", 40).leave(LENT + 1.5, 0.1))
            else:
                marks.append(box(COLUMNS[0], y, *size, text=name, sign=str(owner)))
            source = 46 + 290 * owner + token * high
            lent = (
                box(COLUMNS[0], source, *size, text=name, sign=str(owner))
                .enter(LENT, 0.1)
                .to(LENT + 0.2, 1.4, x=COLUMNS[1], y=y)
            )
            moving.append(lent.leave(SUMMED - 0.6, 0.4))
            part = box(COLUMNS[2], y, *size, sign=str(owner))
            part.begin(w=0.0, opacity=0.45).to(MADE, 1.4, w=180)
            moving.append(part.to(SUMMED - 0.6, 1.4, x=COLUMNS[3], y=source).to(SUMMED + 0.8, 0.3, opacity=1))
        for x, at in ((300, LENT), (940, MADE + 0.6)):  # the tokens of this GPU leave it, and their sums come back
            here, there = (46 + 290 * place + (0.25 + 0.5 * gpu) * 236 for place in (gpu, 1 - gpu))
            way = ((x + 6, here), (x + 54, there)) if at == LENT else ((x + 6, there), (x + 134, here))
            moving.append(line(way, "ink", 6, head=True).enter(at, 0.2))
    _, sums = _first_number(ranks, one.y)
    asked = Question(
        "What does each GPU keep of the result?",
        ("all tokens", "its own tokens", "its own hidden units"),
        1,
        "Outside the products nothing mixes tokens: half the tokens take half the memory.",
    )
    beats = [
        Beat(0, "Each GPU keeps two of four tokens. But its half of the MLP needs all four.", asks=asked),
        Beat(LENT + 0.9, "An all-gather lends the other tokens."),
        Beat(MADE + 0.9, "Each makes half of every sum, and sends the halves that it does not keep."),
        Beat(
            END,
            f"A reduce-scatter: each gets the sums of its own tokens, such as {sums}.",
            {"sent by each GPU": f"{ranks[0].sent} bytes"},
            answers=asked,
        ),
    ]
    return Story("MLP", "Must every GPU keep every token?", marks + moving, beats, SAME)


def heads(ranks: Sequence["attention.Held"], one: "attention.Held", bug: str = "", details: str = "") -> Story:
    """Show attention with one whole head on each GPU, and the rows of the output projection that belong to it."""
    marks = _stage()
    marks += _inputs(one.x)
    for rank, held in enumerate(ranks):
        middle = MIDDLES[rank]
        for number, part in enumerate("qkv"):
            matrix = getattr(held, part)[0]
            place = 244 + number * 124
            marks.append(_grown(place, middle, matrix, part.upper(), of_rank(rank), MADE - 1.2 + 0.3 * number))
        marks += _triangle(640, middle, held.weights[0], of_rank(rank), MADE + 0.6)
        marks.append(_grown(806, middle, held.o[0], "O", of_rank(rank), MADE + 1.4))
    marks += _sum(ranks, one.y, bool(bug))
    terms, sums = _first_number(ranks, one.y, 3)
    asked = Question(
        "Does the softmax need the other GPU's scores?",
        ("yes, a row is summed over all heads", "no, each head has a softmax of its own"),
        1,
        "A head is never cut, so its scores, its softmax and its values are on one GPU.",
    )
    last = f"The heads meet in the output: one all-reduce, {sums}."
    asked = None if bug else asked
    beats = [
        Beat(0, "Attention heads do not depend on each other. Where do we cut?", asks=asked),
        Beat(MADE, "Each GPU has one whole head: its queries, keys and values."),
        Beat(5.0, "Scores, softmax, weighted values: all inside the head, without a message."),
        Beat(6.8, f"Each multiplies with its rows of the output matrix: parts, {terms[0]} and {terms[1]}."),
        Beat(
            END,
            f"Without the sum each goes on with its part. Right: {sums}." if bug else last,
            {"sent by each GPU": f"{ranks[0].sent} bytes"},
            answers=asked,
        ),
    ]
    verdict = "y is wrong on both." if bug else SAME
    return Story("heads", "Which GPU computes which head?", marks, beats, verdict, bug, details, key=_key())


def step(name: str, run: Run, logs: Sequence[list], axis: int, told: str, bug: str = "", details: str = "") -> Story:
    """Show one step of rank 0: whenever it sends, its computing waits.

    Args:
        axis: ns that are shown in RUNS seconds: the longer one of the right step and the broken one.
    """
    traced = traced_step(logs)
    longest, parts = step_length(traced), halves.parts(traced[0], run.config, run.layout)
    lanes = Lanes(["computes", "sends"], (0, 60, 1240, 380), (0, axis), (0, RUNS), margin=150, until=(longest, 0))
    waits = 0.0
    for part in parts:
        event = part.event
        if part.kind == "compute":
            lanes.bar(0, event.start, event.end, MEANINGS[part.phase], part.place.split()[0])
        elif is_dropped(event):
            lanes.bar(1, event.start, event.start + axis / 80, "wrong", "", "skipped")
        else:
            waits += event.end - event.start
            lanes.bar(1, event.start, event.end, COLLECTIVES.get(part.kind, MEANINGS["communication"]), "", event.name)
    share = waits / longest
    marks = [*lanes.marks(), *counter(910, 510, "", [(0.0, ""), (RUNS, f"{share:.0%}")], 70)]
    marks.append(text(820, 510, "of the step, computing waits:", 36, anchor="end"))
    asked = Question.number(
        "How much of the step does computing wait for messages?",
        share,
        (share / 2, max(0.02, min(0.99, share * 1.6))),
        "The next product needs the sum: nothing hides these messages.",
        "{:.0%}",
    )
    done = Counter(part.kind for part in parts if not is_dropped(part.event))
    kinds = halves.calls(run.config.layers, bool(run.layout.sp))
    facts = {f"{kind}s": f"{done[kind]}" for kind in kinds} | {"ms": f"{longest / 1e6:.3g}"}
    asked = None if bug else asked
    beats = [
        Beat(0, told, facts, asks=asked),
        Beat(RUNS + 0.2, f"The step took {longest / 1e6:.3g} ms.", facts, answers=asked),
    ]
    verdict = "Its gradients are wrong." if bug else SAME
    key = {phase: MEANINGS[phase] for phase in halves.PHASES} | {kind: COLLECTIVES[kind] for kind in kinds}
    return Story(name, "Who waits for whom?", marks, beats, verdict, bug, details, key=key)


def _first_number(ranks: Sequence, y: np.ndarray, digits: int = 6) -> tuple[list[str], str]:
    """Return the ranks' terms of y's first number, and their sum, "1 + 2 = 3", in which no line may break."""
    terms = [f"{held.partial[0, 0]:.{digits}g}" for held in ranks]
    return terms, f"{' + '.join(terms)} = {y[0, 0]:.{digits}g}".replace(" ", "\u00a0")


def _stage() -> list[Mark]:
    names = [text(14, 26 + 306 * rank, f"GPU {rank}", anchor="start").enter(CUT, 0.3) for rank in range(2)]
    return [box(0, CENTER - 3, 1280, 6).enter(CUT, 0.3), *names]


def _key() -> dict[str, str]:
    return {"on both": ACTIVATIONS, "GPU 0": of_rank(0), "GPU 1": of_rank(1), "sum": WHOLE}


def _slab(x: float, y: float, wide: float, high: float, fill: str, name: str, thing: str) -> Mark:
    return box(x, y, wide, high, fill, thing, text=name, weight=700, size=34)


def _inputs(x: np.ndarray) -> list[Mark]:
    """Draw x, which goes to both GPUs."""
    rows, columns = x.shape
    marks = []
    for rank, middle in enumerate(MIDDLES):
        slab = _slab(
            40, CENTER - rows * UNIT / 2, columns * UNIT, rows * UNIT, ACTIVATIONS, "tokens x", f"tokens on GPU {rank}"
        )
        marks.append(slab.to(CUT, 0.6, y=middle - rows * UNIT / 2))
    return marks


def _weights(whole: np.ndarray, at, size, rank: int, x: float, name: str, what: str) -> Mark:
    """Draw a GPU's part of a weight matrix, which leaves the whole one in the middle."""
    high = size[1] * UNIT
    top = CENTER - whole.shape[0] * UNIT / 2 + at[1]
    slab = _slab(at[0], top, size[0] * UNIT - 3, high - 3, of_rank(rank), name, f"{what} of GPU {rank}")
    return slab.to(CUT, 0.8, x=x, y=MIDDLES[rank] - high / 2)


def _grown(x: float, middle: float, matrix: np.ndarray, name: str, fill: str, at: float, wide: float = 1.0) -> Mark:
    """Draw a result that grows from the left."""
    rows, columns = matrix.shape
    slab = _slab(x, middle - rows * UNIT / 2, columns * UNIT * wide, rows * UNIT, fill, name, name)
    return slab.begin(w=0.0).to(at, 0.9, w=columns * UNIT * wide)


def _triangle(x: float, middle: float, weights: np.ndarray, fill: str, at: float) -> list[Mark]:
    """Draw the weights of a causal softmax, darker where they are larger."""
    tokens = len(weights)
    cells = []
    for (row, column), weight in np.ndenumerate(weights):
        if column <= row:
            cell = box(x + column * 50, middle + (row - tokens / 2) * 50, 48, 48, fill, f"weight {weight:.2f}")
            cells.append(cell.begin(opacity=0.0).to(at, 0.6, opacity=0.25 + 0.75 * float(weight)))
    return cells


def _sum(ranks: Sequence, y: np.ndarray, broken: bool) -> list[Mark]:
    """Draw two half-bright results of full size; the sum lays one over the other and gives each GPU what it keeps."""
    rows, columns = y.shape
    x, marks = 960, []
    value_at = x + columns * UNIT + 18
    for rank, held in enumerate(ranks):
        top = MIDDLES[rank] - rows * UNIT / 2
        partial = box(x, top, columns * UNIT, rows * UNIT, of_rank(rank), f"GPU {rank}'s terms of y")
        partial.begin(w=0.0, opacity=0.45).to(HALF, 1.2, w=columns * UNIT)
        term = text(value_at, MIDDLES[rank], f"{float(held.partial[0, 0]):.3g}", 40, anchor="start", weight=700)
        label = text(x + columns * UNIT / 2, MIDDLES[rank], "part of y").enter(6.2, 0.2).leave(SUMMED, 0.1)
        marks += [partial, label, term.enter(6.2, 0.2)]
        if not rank and not broken:
            marks.append(text(x + columns * UNIT / 2, CENTER, "+", 80, weight=700).enter(6.2, 0.2).leave(SUMMED, 0.2))
        if broken:
            frame = box(x - 5, top - 5, columns * UNIT + 10, rows * UNIT + 10, "none", stroke="wrong", width=6)
            marks.append(frame.enter(SUMMED, 0.2))
            continue
        partial.to(SUMMED, 1.1, y=CENTER - rows * UNIT / 2).to(SUMMED + 1.1, 0.3, opacity=1, fill=WHOLE)
        partial.to(SUMMED + 1.5, 0.8, y=top)
        term.to(SUMMED, 1.1, y=CENTER - 24 + 48 * rank).leave(SUMMED + 1.1, 0.1)
        total = text(value_at, CENTER, f"{float(y[0, 0]):.3g}", 40, "right", "start", weight=700)
        marks.append(total.enter(SUMMED + 1.2, 0.1).to(SUMMED + 1.5, 0.8, y=MIDDLES[rank]))
    return marks
