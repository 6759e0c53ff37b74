"""What the animation of low rank says: a matrix, two thin factors, and what is left, with the error of each round."""

from collections.abc import Iterator, Mapping
from itertools import pairwise

import numpy as np

from minidist.show.demos.compress.factors import RANK, ROUNDS, Approximation, Round
from minidist.show.palette import MEANINGS, SIGNED
from minidist.show.player.scene import Box, Curve, Frame, Label, Scene, Shape

NAME = "low rank"
BUG = "each round begins with random Q: no warm start (torch's PowerSGD did so until #50283)"
KEY = {"negative": SIGNED[0], "positive": SIGNED[-1], "sent": MEANINGS["communication"]}
WIDE, HIGH = 16.0, 8.0  # of a matrix: a number is as high as it is wide
THIN = 2.0  # characters: of a factor
TOP = 3.1  # lines
LEFT = {"sum": 0.0, "p": 19.0, "product": 22.0, "rest": 41.0}  # of each matrix: whole, for a terminal
CHART, END = 59.0, 71.0
HEIGHT = 13.0
SPREAD = 3.0  # root mean squares of M, which have the darkest shade


def scene(shown: Approximation, verdict: str, right: Approximation | None = None) -> Scene:
    """The first round all-reduce by all-reduce, then a frame for each other round.

    Args:
        right: the run with warm start, if this one has none.
    """
    picture = _Picture(shown, right)
    first = shown.rounds[0]
    numbers = RANK * len(shown.matrix)
    notes = (
        f"M is the sum of {shown.ranks} ranks' gradients of one weight matrix. No rank has it. Q is random at first.",
        f"Each rank multiplies its own gradient by Q. The first all-reduce sums the products: {numbers} numbers.",
        "Every rank makes the columns of P orthonormal. They span directions in which M is large.",
        f"Each rank multiplies its transposed gradient by P. The second all-reduce sums that: {numbers} more.",
        "P Qᵀ stands for M. What is left stays in the ranks' residuals, each rank's own share of it.",
    )
    stages = (
        ({"q": first.start}, 0, ""),
        ({"q": first.start, "p": first.products}, 1, "p"),
        ({"q": first.start, "p": first.p}, 1, ""),
        ({"p": first.p, "q": first.q}, 2, "q"),
    )
    frames = [
        Frame(tuple(picture.draw(factors, 0, sums, arrived)), note, _facts(shown, 0, sums))
        for (factors, sums, arrived), note in zip(stages, notes, strict=False)
    ]
    for number, one in enumerate(shown.rounds, 1):
        note = notes[-1] if number == 1 else _note(shown, number, right)
        frames.append(Frame(tuple(picture.draw(_all(one), number, 2)), note, _facts(shown, number, 2)))
    return Scene(
        f"broken {NAME}" if right else NAME,
        f"Low rank: two factors of {RANK} columns for a matrix of {len(shown.matrix)} x {len(shown.matrix)}",
        tuple(frames),
        HEIGHT,
        KEY | ({"above warm start, wrong": "wrong"} if right else {}),
        verdict,
        len(stages) + next(i for i, error in enumerate(shown.errors) if error > right.errors[i]) if right else None,
        (1, len(stages), len(frames) - 1),
        twin=NAME if right else "",
        details="The least error is that of NumPy's singular value decomposition of M.",
        bug=BUG if right else "",
    )


def _all(one: Round) -> dict[str, np.ndarray]:
    return {"p": one.p, "q": one.q, "product": one.product}


def _note(shown: Approximation, number: int, right: Approximation | None) -> str:
    error = shown.errors[number - 1]
    if right:
        there = right.errors[number - 1]
        return f"Round {number} begins at random again: the error is {error:.1%}; with a warm start, {there:.1%}."
    return (
        f"Round {number} on the same M begins with the last Q: the error is {error:.1%}. The least is {shown.best:.1%}."
    )


def _facts(shown: Approximation, number: int, sums: int) -> dict[str, str]:
    side = len(shown.matrix)
    return {
        "round": f"{max(1, number)} of {ROUNDS}",
        "summed in this round": f"{sums * RANK * side} of {side * side} numbers",
        "formula r (m + n)": f"{RANK * 2 * side} numbers",
        "error": f"{shown.errors[number - 1]:.1%}" if number else "-",
        f"least of rank {RANK}, by SVD": f"{shown.best:.1%}",
    }


class _Picture:
    """Matrices in shades: M and its approximation on one scale, each factor on its own."""

    def __init__(self, shown: Approximation, right: Approximation | None) -> None:
        self.right = right
        self.shown, self.most = shown, SPREAD * float(np.sqrt(np.mean(shown.matrix**2)))

    def draw(self, factors: Mapping[str, np.ndarray], number: int, sums: int, arrived: str = "") -> Iterator[Shape]:
        """One frame.

        Args:
            factors: what there is of "p", "q" and "product".
            number: the rounds that are over.
            sums: the all-reduces of this round so far.
            arrived: the factor that the last of them brought, if it is to be marked.
        """
        yield Label(LEFT["sum"] + WIDE / 2, TOP - 0.6, "M, the sum", "ink", "middle")
        yield from self._matrix(LEFT["sum"], TOP, WIDE, HIGH, self.shown.matrix, self.most, "M")
        yield Label(LEFT["p"] + THIN / 2, TOP - 0.6, "P", "ink", "middle")
        yield from self._factor(LEFT["p"], TOP, THIN, HIGH, factors.get("p"), "P")
        yield Label(LEFT["product"] - 0.8, TOP - 1.5, "Qᵀ", "ink", "end")
        yield from self._factor(LEFT["product"], TOP - 2, WIDE, THIN / 2, factors["q"].T, "Q")
        product = factors.get("product")
        if product is None:
            yield Box(LEFT["product"], TOP, WIDE, HIGH, None, outline="faint")
        else:
            yield from self._matrix(LEFT["product"], TOP, WIDE, HIGH, product, self.most, "P Q")
            yield Label(LEFT["product"] + WIDE / 2, TOP + HIGH + 0.6, "P Qᵀ", "ink", "middle")
            rest = self.shown.matrix - product
            yield Label(LEFT["p"] - 1.2, TOP + HIGH / 2, "=", "ink", "middle")
            yield Label(LEFT["rest"] - 1.2, TOP + HIGH / 2, "+", "ink", "middle")
            yield Label(LEFT["rest"] + WIDE / 2, TOP - 0.6, "residuals", "ink", "middle")
            yield from self._matrix(LEFT["rest"], TOP, WIDE, HIGH, rest, self.most, "rest")
        if arrived:
            x, y, w, h = (LEFT["p"], TOP, THIN, HIGH) if arrived == "p" else (LEFT["product"], TOP - 2, WIDE, THIN / 2)
            yield Box(x - 0.2, y - 0.1, w + 0.4, h + 0.2, None, outline=KEY["sent"])
        yield from self._sizes(sums)
        yield from self._errors(number)

    def _factor(self, x: float, y: float, w: float, h: float, factor: np.ndarray | None, name: str) -> Iterator[Shape]:
        if factor is None:
            yield Box(x, y, w, h, None, outline="faint")
        else:
            yield from self._matrix(x, y, w, h, factor, float(np.abs(factor).max()), name)

    def _matrix(
        self, x: float, y: float, w: float, h: float, values: np.ndarray, most: float, name: str
    ) -> Iterator[Shape]:
        """Neighbours of one shade in a row are one box."""
        rows, columns = values.shape
        each = w / columns, h / rows
        middle = len(SIGNED) // 2
        shades = np.rint(np.clip(values / (most or 1), -1, 1) * middle).astype(int) + middle
        for i, row in enumerate(shades):
            begins = [0, *(np.flatnonzero(np.diff(row)) + 1), columns]
            for begin, end in pairwise(begins):
                mark = "-" if row[begin] < middle else "+" if row[begin] > middle else " "
                yield Box(
                    x + begin * each[0], y + i * each[1], (end - begin) * each[0], each[1], SIGNED[row[begin]], "", mark
                )
        yield Box(x, y, w, h, None, outline="faint")

    def _sizes(self, sums: int) -> Iterator[Shape]:
        """What this round's all-reduces sum, beside the whole matrix."""
        side = len(self.shown.matrix)
        unit = WIDE / (side * side)
        yield Label(LEFT["sum"], TOP + HIGH + 0.6, f"{side * side} numbers")
        if sums:
            yield Label(LEFT["rest"], TOP + HIGH + 0.6, f"sent: {sums} x {RANK * side}")
            for number in range(sums):
                wide = unit * RANK * side
                yield Box(LEFT["rest"] + number * (wide + 0.2), TOP + HIGH + 1.2, wide, 0.6, KEY["sent"], "", "s")

    def _errors(self, number: int) -> Iterator[Shape]:
        """The error of each round so far as a bar, above the least there is."""
        base, high = TOP + HIGH, HIGH
        pitch = (END - CHART) / ROUNDS
        best = base - high * self.shown.best
        yield Label(CHART, TOP - 0.6, "error", "ink")
        yield Curve(((CHART, base), (END, base)), "faint", 1.5)
        for place, error in enumerate(self.shown.errors[:number]):
            worse = self.right is not None and error > self.right.errors[place]
            colour = "wrong" if worse else MEANINGS["residual"]
            x = CHART + pitch * place
            yield Box(x, base - high * error, pitch - 0.6, high * error, colour, "", "e", id=f"error {place}")
            yield Label(x + pitch / 2 - 0.3, base + 0.6, str(place + 1), "faint", "middle")
        yield Curve(((CHART, best), (END, best)), "ink", 2)
        yield Label(END, base + 1.5, f"line: SVD, {self.shown.best:.0%}", "faint", "end")
