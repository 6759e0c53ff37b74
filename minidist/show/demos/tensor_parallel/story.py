"""What tensor parallelism looks like: matrices are cut into slabs, half results slide over each other and become whole."""

from collections.abc import Sequence

import numpy as np

from minidist.show.demos.tensor_parallel.split import Held
from minidist.show.palette import MEANINGS, of_rank
from minidist.show.stage.marks import Mark, box, text
from minidist.show.stage.story import Beat, Question, Story

UNIT = 44  # pixels of a row or a column
X, A, Z, B, Y = 40, 240, 470, 790, 1010  # where each matrix begins
MIDDLES = (150, 450)  # the heights of the two GPUs' halves of the stage
WEIGHTS, ACTIVATIONS = MEANINGS["parameters"], MEANINGS["activations"]


def slab(x: float, middle: float, matrix: np.ndarray, name: str, fill: str, thing: str = "", wide: float = 1.0) -> Mark:
    """A matrix as a rectangle of its shape, around a height; ``wide`` stretches its columns."""
    rows, columns = matrix.shape
    size = {"text": name, "weight": 700, "size": 34}
    return box(x, middle - rows * UNIT / 2, columns * UNIT * wide, rows * UNIT, fill, thing or name, **size)


def forward(name: str, ranks: Sequence[Held], right: Sequence[Held], one: Held, bug: str = "") -> Story:
    """One MLP, y = GELU(x A) B, on two GPUs.

    Args:
        ranks: what each held; ``right`` the same without the bug, and ``one`` what one process held.
    """
    marks: list[Mark] = []
    center = sum(MIDDLES) / 2
    half_a, half_b = one.a.shape[1] / 2 * UNIT, one.b.shape[0] / 2 * UNIT
    lane = box(0, 297, 1280, 6, "faint").enter(1.2, 0.3)
    marks += [lane, *(text(14, 26 + 300 * r, f"GPU {r}", anchor="start").enter(1.2, 0.3) for r in range(len(ranks)))]
    x = [slab(X, center, one.x, "x", ACTIVATIONS).to(1.2, 0.8, y=m - one.x.shape[0] * UNIT / 2) for m in MIDDLES]
    marks += x
    for rank, (held, middle) in enumerate(zip(ranks, MIDDLES, strict=True)):
        columns, rows = held.a.shape[1], held.b.shape[0]
        a = box(A + rank * half_a, center - one.a.shape[0] * UNIT / 2, columns * UNIT, one.a.shape[0] * UNIT, WEIGHTS,
                f"columns of A of GPU {rank}", text="A", weight=700, size=34)  # fmt: skip
        b = box(B, center - one.b.shape[0] * UNIT / 2 + rank * half_b, one.b.shape[1] * UNIT, rows * UNIT, WEIGHTS,
                f"rows of B of GPU {rank}", text="B", weight=700, size=34)  # fmt: skip
        a.to(1.2, 0.8, x=A, y=middle - one.a.shape[0] * UNIT / 2, fill=of_rank(rank))
        b.to(1.2, 0.8, y=middle - rows * UNIT / 2, fill=of_rank(rank))
        z = slab(Z, middle, held.z, "GELU", of_rank(rank), f"hidden units of GPU {rank}", 1.8)
        z.keys[0][1].update(w=0.0)
        z.to(3.2, 1.2, w=held.z.shape[1] * UNIT * 1.8)
        marks += [a, b, z]
    return marks and _told(name, ranks, right, one, bug, marks, center)


def _told(name, ranks, right, one, bug, marks, center) -> Story:
    wrong = any((held.y != one.y).any() for held in ranks)
    terms = [float(held.partial[0, 0]) for held in ranks]
    total = float(one.y[0, 0])
    rows, columns = one.y.shape
    for rank, (held, middle) in enumerate(zip(ranks, MIDDLES, strict=True)):
        top = middle - rows * UNIT / 2
        partial = box(Y, top, columns * UNIT, rows * UNIT, of_rank(rank), f"GPU {rank}'s terms of y")
        partial.keys[0][1].update(w=0.0, opacity=0.45)
        partial.to(5.2, 1.2, w=columns * UNIT)
        value = text(Y + columns * UNIT + 20, middle, f"{terms[rank]:g}", 44, anchor="start", weight=700).enter(
            6.2, 0.2
        )
        marks += [partial, value]
        if not wrong:
            partial.to(7.4, 1.2, y=center - rows * UNIT / 2).to(8.6, 0.4, opacity=1, fill="#009E73").to(9.0, 0.8, y=top)
            value.to(7.4, 1.2, y=center).leave(8.6, 0.1)
            marks.append(
                text(Y + columns * UNIT + 20, center, f"{total:g}", 44, "right", "start", weight=700)
                .enter(8.6, 0.1)
                .to(9.0, 0.8, y=middle)
            )
        else:
            marks.append(
                box(Y - 5, top - 5, columns * UNIT + 10, rows * UNIT + 10, "none", stroke="wrong", width=5).enter(
                    8.6, 0.2
                )
            )
    asked = Question(
        "How often must the GPUs talk to each other in this forward pass?",
        ("never", "once", "twice: after A and after B"),
        1,
        "GELU works on each hidden unit alone, and A's columns make whole ones; only y needs a sum.",
    )  # fmt: skip
    sums = f"{' + '.join(f'{term:g}' for term in terms)} = {total:g}"
    beats = [
        Beat(0, "y = GELU(x A) B. What if A and B are too large for one GPU?", cue="Let the class propose a cut."),
        Beat(2.2, "A is cut into columns, B into rows. Each GPU has both halves that belong together.", asks=None if bug else asked),
        Beat(4.6, "Each GPU makes half of the hidden units, whole ones: GELU can go on without a message."),
        Beat(6.6, f"Each has a y of full size, but only half of every number: {terms[0]:g} and {terms[1]:g}."),
        Beat(10, f"One all-reduce, and every number is whole: {sums}." if not wrong else f"Without the sum, each goes on with its half. Right is {sums}.", {"sent by each GPU": f"{ranks[0].sent[1] - ranks[0].sent[0]} bytes"}, answers=None if bug else asked),
    ]  # fmt: skip
    verdict = "y is wrong on both." if wrong else "Every bit is that of one process."
    key = {"weights": WEIGHTS, "activations": ACTIVATIONS} | {
        f"GPU {rank}": of_rank(rank) for rank in range(len(ranks))
    }
    return Story(name, "How do two GPUs multiply one matrix?", marks, beats, verdict, bug, key=key)
