"""A collective: chunks of terms travel from GPU to GPU and pile up, and one number counts the bytes."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from minidist.show.demos.collectives.kinds import ALL_TO_ALL, Algorithm, Kind
from minidist.show.demos.collectives.run import Step
from minidist.show.demos.collectives.training import Harm
from minidist.show.figures.contributions import LETTERS
from minidist.show.palette import of_rank
from minidist.show.stage.curve import Chart
from minidist.show.stage.marks import Mark, box, counter
from minidist.show.stage.network import Network
from minidist.show.stage.story import Beat, Question, Story

STEP, LEAVES, TRAVELS = 1.6, 0.1, 1.2  # seconds: length of a step, and start and length of its journeys
FOOT, SIDE = 38, 14  # pixels of a GPU's box: below its columns, and on their sides
AREA = (10, 0, 920, 600)  # of the GPUs: x, y, width, height
SHAPES = {
    "ring": Network.on_ring,
    "pairs": partial(Network.on_ring, onward=False),
    "fan": Network.in_fan,
    "tree": Network.in_tree,
}
FACTORS = {"1": lambda n: 1, "2 (N−1)/N": lambda n: 2 * (n - 1) / n, "N−1": lambda n: n - 1, "N": lambda n: n}


def tell(
    kind: Kind, name: str, steps: Sequence[Step], right: Sequence[Step], size: int = 1, broken: bool = False
) -> Story:
    """Tell the story of a run.

    Args:
        name: name of the algorithm.
        right: the same run without the bug, which may be ``steps``.
        size: number of float32 in each chunk.
    """
    ranks, last, how = len(steps[0].terms), len(steps) - 1, kind.algorithms[name]
    result = np.array([[kind.result(rank, chunk, ranks) for chunk in range(ranks)] for rank in range(ranks)])
    most = int(right[-1].terms.sum((2, 3)).max())
    picture = _Picture(how.shape, steps[0].terms, result, most, kind is ALL_TO_ALL)
    spoiled = struck = 0  # the first step after which chunks are wrong, and their number then
    for number in range(1, last + 1):
        picture.step(steps, number)
        wrong = (steps[number].terms != right[min(number, len(right) - 1)].terms).any((2, 3))
        if wrong.any() and not spoiled:
            spoiled, struck = number, int(wrong.sum())
        done = result & (steps[number].terms == right[-1].terms).all((2, 3))
        picture.judge((number - 1) * STEP + LEAVES + TRAVELS, wrong, done)
    sent = [max(step.sent) for step in steps]
    shown = [(max(0.0, number * STEP - 0.2), f"{arrays:.3g} ×") for number, arrays in enumerate(sent)]
    sender = "each GPU" if min(steps[-1].sent) == sent[-1] else "the busiest GPU"
    asked = _question(how, ranks, sender)
    beats = [
        Beat(
            number * STEP,
            kind.opening
            if not number
            else f"The bug strikes. Wrong chunks now: {struck}."
            if number == spoiled
            else how.says(number, ranks),
            {
                "step": f"{number} of {last}",
                "arrays sent": f"{sent[number]:.3g}",
                "in all": _equation(how.formula, sent[-1]),
                "bytes sent": f"{sent[number] * ranks * size * 4:,.0f}, with {size:,} float32 in each chunk",
            },
            asks=None if number or broken else asked,
            answers=asked if number == last and not broken else None,
            cue=_cue(number, last, broken, spoiled),
            lines=how.lit(number, ranks) if number else (),
        )
        for number in range(last + 1)
    ]
    wrong = int((result & (steps[-1].terms != right[-1].terms).any((2, 3))).sum())
    return Story(
        name,
        kind.question.format(ranks),
        [*picture.marks, *counter(1110, 250, f"its array, sent\nby {sender}", shown, 76)],
        beats,
        f"Wrong: {wrong} of {result.sum()} chunks." if broken else f"Right: all {result.sum()} chunks.",
        kind.bug if broken else "",
        code=how.lines.split("\n"),
    )


def training(kind: Kind, harm: Harm, broken: bool) -> Story:
    """Tell the story of a training run with the bug: its losses, and how far its weights are from the right ones."""
    steps, most = len(harm.right), float(max(harm.right.max(), harm.wrong.max()))
    least = float(min(harm.right.min(), harm.wrong.min()))
    ticks = (0, steps - 1), (round(least, 2), round(most, 2))
    losses = Chart((110, 60, 510, 440), (0, steps - 1), (least, most), ("step", "loss"), ticks)
    weights = Chart(
        (750, 60, 470, 440),
        (0, steps),
        (0, max(1.0, harm.drift.max())),
        ("step", "distance from the right weights"),
        ((0, steps), (0, 1)),
    )
    losses.curve(list(enumerate(harm.right)), "right", 0, 0 if broken else 3)
    beats = [Beat(0, "The loss of a training run."), Beat(3, "It falls.")]
    if broken:
        losses.curve(list(enumerate(harm.wrong)), "wrong", 0, 3)
        for drift in harm.drift:
            weights.curve(list(enumerate(drift)), "wrong", 3.2, 2.8)
        falls = bool(np.isfinite(harm.wrong).all() and harm.wrong[-1] < harm.wrong[0])
        asked = Question(
            "Training with this bug: what does the loss do?",
            ("it explodes: you see it at once", "it falls, as if nothing were wrong"),
            int(falls),
            "No error, no hang: only a comparison with one process finds it.",
        )
        beats = [
            Beat(0, "The loss of the right run. The same model now trains with the bug.", asks=asked),
            Beat(3, f"From {harm.wrong[0]:.2f} to {harm.wrong[-1]:.2f}; right is {harm.right[-1]:.2f}.", answers=asked),
            Beat(6, "But the weights are wrong: the right ones have moved by 1 in all."),
        ]
    marks = [*losses.marks(), *(weights.marks() if broken else [])]
    bug = kind.bug if broken else ""
    return Story("training", "What does such a bug do to a training run?", marks, beats, broken=bug)


class _Picture:
    """Picture of the GPUs with their columns, step by step.

    Args:
        result: (N, N): whether a column is part of a GPU's result.
        most: most terms that a column has in the end.
        apart: whether blocks to send stand above those received, each with the number of its receiver.
    """

    def __init__(self, shape: str, terms: np.ndarray, result: np.ndarray, most: int, apart: bool) -> None:
        self.ranks, self.most, self.apart = len(terms), most, apart
        self.wide, self.high = (240, 190) if self.ranks <= 4 else (180, 144)
        self.high *= 0.7 if shape == "tree" else 1  # room for the links between its levels
        self.network = SHAPES[shape](self.ranks, (self.wide, self.high), AREA)
        self.column, self.block = (self.wide - 2 * SIDE) / self.ranks, (self.high - FOOT - 20) / (most * (1 + apart))
        self.frames: dict[tuple[int, int], str] = {}
        self.marks = list(self.network.marks())
        self.piles = [
            [
                [
                    (self._block(rank, chunk, level + most * apart, term), term)
                    for level, term in enumerate(_listed(terms[rank, chunk]))
                ]
                for chunk in range(self.ranks)
            ]
            for rank in range(self.ranks)
        ]  # fmt: skip  rank, chunk -> (mark, term) from the bottom up
        self.marks += [mark for columns in self.piles for pile in columns for mark, _ in pile]
        self.marks += [self._frame(rank, chunk, "ink", 2) for rank, chunk in np.argwhere(result)]
        self.outgoing: dict[tuple[int, int], Mark] = {}  # term -> its block, where they stand apart
        if apart:
            self.outgoing = {term: mark for columns in self.piles for ((mark, term),) in columns}
            self.piles = [[[] for _ in range(self.ranks)] for _ in range(self.ranks)]

    def _slot(self, rank: int, chunk: int, level: int) -> tuple[float, float]:
        x, y = self.network.places[rank]
        return x - self.wide / 2 + SIDE + chunk * self.column, y + self.high / 2 - FOOT - (level + 1) * self.block

    def _block(self, rank: int, chunk: int, level: int, term: tuple[int, int]) -> Mark:
        x, y = self._slot(rank, chunk, level)
        what = f"GPU {term[0]}'s term of chunk {LETTERS[term[1]]}"
        words = {"text": str(term[1])} if self.apart else {}
        return box(x + 1, y + 1, self.column - 2, self.block - 2, of_rank(term[0]), what, sign=str(term[0]), **words)

    def _frame(self, rank: int, chunk: int, colour: str, width: float) -> Mark:
        x, y = self._slot(rank, chunk, self.most - 1)
        return box(x, y, self.column, self.block * self.most, "none", stroke=colour, width=width)

    def step(self, steps: Sequence[Step], number: int) -> None:
        """Move the blocks that a step's messages carry; they pile up on the receiver's blocks or replace them."""
        at, landed = (number - 1) * STEP + LEAVES, []
        if self.apart and number == 1:  # a GPU's own column needs no message
            for rank in range(self.ranks):
                x, y = self._slot(rank, rank, 0)
                own = self.outgoing[_listed(steps[1].terms[rank, rank])[0]]
                own.to(at, TRAVELS, x=x + 1, y=y + 1)
        for message in steps[number].messages:
            for chunk, origin in message.chunks.items():
                old, new = (steps[i].terms[message.destination, chunk] for i in (number - 1, number))
                pile = self.piles[message.destination][chunk]
                adds = bool((new >= old).all())
                for mark, _ in [] if adds else pile:
                    mark.leave(at + TRAVELS * 0.8, TRAVELS * 0.2)
                held = [term for _, term in self.piles[message.source][origin]]
                arriving = []
                for level, term in enumerate(_listed(new - old if adds else new)):
                    mark = self.outgoing.get(term)
                    if mark is None:
                        mark = self._block(message.source, origin, held.index(term) if term in held else 0, term)
                        self.marks.append(mark.enter(at, 0.02))
                    x, y = self._slot(message.destination, chunk, len(pile) * adds + level)
                    self.network.travel(mark, message.source, message.destination, (x + 1, y + 1), at + 0.02, TRAVELS)
                    arriving.append((mark, term))
                landed.append((message.destination, chunk, pile * adds + arriving))
        for rank, chunk, pile in landed:
            self.piles[rank][chunk] = pile

    def judge(self, at: float, wrong: np.ndarray, done: np.ndarray) -> None:
        """Frame the chunks that are wrong or done, from a moment on."""
        for (rank, chunk), bad in np.ndenumerate(wrong):
            state = "wrong" if bad else "right" if done[rank, chunk] else ""
            if state and self.frames.get((rank, chunk)) != state:
                self.frames[rank, chunk] = state
                self.marks.append(self._frame(rank, chunk, state, 6).enter(at, 0.2))


def _listed(terms: np.ndarray) -> list[tuple[int, int]]:
    """Return each term (rank, chunk) as often as it occurs."""
    return [place for place, count in np.ndenumerate(terms) for _ in range(int(count))]


def _question(how: Algorithm, ranks: int, sender: str) -> Question:
    values = {how.arrays(ranks): how.formula}
    for formula, count in FACTORS.items():
        if len(values) < 4:
            values.setdefault(count(ranks), formula)
    ordered = sorted(values)
    choices = tuple(_equation(values[value], value) for value in ordered)
    return Question(
        f"How many arrays does {sender} send in all, with N = {ranks}?",
        choices,
        ordered.index(how.arrays(ranks)),
        how.why,
    )


def _equation(formula: str, value: float) -> str:
    return formula if formula == "1" else f"{formula} = {value:.3g}"


def _cue(number: int, last: int, broken: bool, spoiled: int) -> str:
    if broken:
        return "Chunks are wrong now. Ask which come next, then go on." if number == spoiled < last else ""
    if number == 0:
        return "Let the class find the first messages before you go on."
    return "Is one link busier than the others?" if number == last else ""
