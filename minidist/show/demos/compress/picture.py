"""One gradient in one step, number by number: gradient + residual = sent + new residual, in three rows of bars."""

from collections.abc import Iterator, Sequence

import numpy as np

from minidist.show.demos.compress.run import Message
from minidist.show.palette import MEANINGS
from minidist.show.player.scene import Box, Curve, Label, Shape

GRADIENT, RESIDUAL, SENT = (MEANINGS[what] for what in ("gradients", "residual", "communication"))
MARKS = {GRADIENT: "g", RESIDUAL: "r", SENT: "s", "wrong": "!"}
HEIGHT = 13.0
LEFT, WIDE = 11, 48  # of the bars
BASES, HALF = (2.0, 6.0, 10.0), 1.9  # lines: where the rows are zero, and how high a bar is at most
PANEL, END = 60.5, 71.5  # of the message


class Bars:
    """The picture of a parameter's gradient.

    Args:
        count: n, its numbers.
        most: the value of the highest bar.
        followed: the number that the story is about.
        lost: whether nobody keeps the residual.
    """

    def __init__(self, count: int, most: float, followed: int, lost: bool) -> None:
        self.count, self.most, self.followed = count, most, followed
        self.left = "wrong" if lost else RESIDUAL
        self.names = ("gradient", "+ residual"), ("= sent",), ("+ lost" if lost else "+ residual",)
        self.pitch = (2 * WIDE // count) / 2  # whole or half characters: a terminal has no others

    def draw(self, step: int, message: Message, is_sent: bool, panel: Sequence[Shape]) -> tuple[Shape, ...]:
        """A frame: what came in, and once ``is_sent`` also what went out and what stays."""
        return (*self._rows(), *self._columns(step, message, is_sent), *panel)

    def _rows(self) -> Iterator[Shape]:
        """Names, lines at zero, and the numbers of the columns."""
        right = LEFT + self.pitch * self.count
        for base, names in zip(BASES, self.names, strict=True):
            yield Curve(((LEFT - 0.5, base), (right, base)), "faint", 1.5)
            for line, name in enumerate(names):
                yield Label(LEFT - 1, base - 0.5 * (len(names) - 1) + line, name, "ink", "end")
        middle = max(0.9, (self.pitch - 1) / 2) - 0.01  # a little less, so that a terminal rounds all of them down
        for number in range(self.count):
            x = LEFT + self.pitch * number
            if number == self.followed:
                yield Box(x - 0.2, HEIGHT - 1, max(2.0, self.pitch - 0.8), 1, "ink", str(number), " ")
            elif self.pitch >= 3 or number % 2 == self.followed % 2:
                yield Label(x + middle, HEIGHT - 0.5, str(number), "faint", "middle")

    def _columns(self, step: int, message: Message, is_sent: bool) -> Iterator[Shape]:
        each = max(0.9, (self.pitch - 1) / 2)
        for number in range(self.count):
            x = LEFT + self.pitch * number
            came = f"gradient {number}, step {step}"
            yield from self._bar(x, each, 0, message.gradient[number], GRADIENT, came)
            yield from self._bar(x + each, each, 0, message.before[number], RESIDUAL, residual(number, step))
            if is_sent:
                yield from self._bar(x, 2 * each, 1, message.sent[number], SENT, f"sent {number}, step {step}")
                yield from self._bar(x, 2 * each, 2, message.after[number], self.left, residual(number, step + 1))

    def _bar(self, x: float, w: float, row: int, value: float, colour: str, id: str) -> Iterator[Box]:
        """Upwards from zero if the value is positive, downwards if it is negative; none if it is 0."""
        high = HALF * abs(float(value)) / self.most
        if high:
            yield Box(x, BASES[row] - (high if value > 0 else 0), w, high, colour, "", MARKS[colour], id=id)


def residual(number: int, step: int) -> str:
    """The residual that a number has as a step begins: what the step before left below is what it finds above."""
    return f"residual {number}, before step {step}"


def top_k_panel(message: Message, nbytes: int) -> list[Shape]:
    """What top-k sends: indices and values."""
    chosen = np.flatnonzero(message.sent)
    indices = [Label(PANEL + 2, 1.7 + line, f"{i}", "ink", "end") for line, i in enumerate(chosen)]
    values = [Label(END, 1.7 + line, f"{message.sent[i]:+.4f}", "ink", "end") for line, i in enumerate(chosen)]
    return [Label(PANEL, 0.5, "message", "faint"), *indices, *values, *_sizes(nbytes, message.sent.nbytes)]


def one_bit_panel(message: Message, nbytes: int) -> list[Shape]:
    """What 1 bit sends: signs and a scale."""
    signs = "".join("−" if value < 0 else "+" for value in message.sent)
    lines = [Label(PANEL, 1.7 + line, signs[8 * line : 8 * line + 8]) for line in range(-(-len(signs) // 8))]
    scale = Label(PANEL, 2 + len(lines), f"× {np.abs(message.sent).max():.5f}")
    return [Label(PANEL, 0.5, "message", "faint"), *lines, scale, *_sizes(nbytes, message.sent.nbytes)]


def _sizes(nbytes: int, full: int) -> list[Shape]:
    """The message's bytes beside those of the whole gradient."""
    wide = END - PANEL
    return [
        Label(PANEL, 7.4, f"{nbytes} bytes"),
        Box(PANEL, 8, wide * nbytes / full, 1, SENT, "", MARKS[SENT]),
        Label(PANEL, 9.9, f"full: {full}"),
        Box(PANEL, 10.5, wide, 1, GRADIENT, "", MARKS[GRADIENT]),
    ]
