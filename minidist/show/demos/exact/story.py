"""Stories of exact sums: bits that fall off the end of a sum, three results side by side, and numbers that differ."""

from math import ceil, fsum, inf, ldexp, log10

import numpy as np

from minidist.backend import gpu_model, xp
from minidist.show.demos.exact.run import BATCH, TERMS, WIDTH, WINDOW, Sums
from minidist.show.palette import MEANINGS
from minidist.show.stage.marks import Mark, box, counter, text
from minidist.show.stage.story import Beat, Question, Story

PACE, FASTER = 1.6, 0.8  # seconds per addition: as floats, on the grid
LEFT, RIGHT, TOP, NEXT, FLOOR = 110, 1265, 376, 465, 590  # edges of the bits; y of sum and next number; where bits land
ORDERS = (98, 180, 262)  # the middle of each order's row: three lines of a terminal
FLOATS, GRID = 655, 1060  # the middle of the results
ADDED, LOST = MEANINGS["mantissa"], MEANINGS["lost"]
LETTERS, COUNTS = "abcdefgh", ("no", "one", "two", "three")


class Bits:
    """Columns for numbers one below the other: one per power of two, up to the largest sum of as many numbers."""

    def __init__(self, sums: Sums) -> None:
        exponents = np.frexp(sums.terms)[1].tolist()
        self.low = min(exponents) - WINDOW  # the last column is worth 2^low
        self.step = max(exponents) - sums.bits - self.low  # the column of the grid's step
        self.side = (RIGHT - LEFT) / (max(exponents) + (len(exponents) - 1).bit_length() - self.low)

    def whole(self, value: float) -> int:
        return int(ldexp(float(value), -self.low))

    def window(self, column: int, y: float, high: float) -> Mark:
        """Return a frame around the 24 columns of which ``column`` is the last."""
        return box(self.x(column + WINDOW), y, WINDOW * self.side, high, "none", stroke="ink", width=6, round=6)

    def x(self, column: int) -> float:
        """Return the right edge of a column; column 0 is the last one."""
        return RIGHT - column * self.side

    def boxes(self, whole: int, y: float, start: float, fill: str, high: float) -> list[Mark]:
        """Draw the bits that are 1, from ``start`` on."""
        ones = [column for column in range(whole.bit_length()) if whole >> column & 1]
        sign = "!" if fill == "wrong" else "#"
        marks = [
            box(self.x(one + 1) + 2, y, self.side - 4, high, fill, f"2^{self.low + one}", sign=sign) for one in ones
        ]
        return [mark.enter(start, 0.1) if start else mark for mark in marks]

    def draw(self, whole: int, y: float, start: float, end: float, high: float = 50) -> list[Mark]:
        return _until(end, self.boxes(whole, y, start, "ink", high))

    def drop(self, whole: int, y: float, start: float, falls: float, end: float, high: float = 50) -> list[Mark]:
        """Draw bits that fall at ``falls`` and lie on the floor until ``end``."""
        marks = self.boxes(whole, y, start, "wrong", high)
        return _until(max(end, falls + 0.4), [mark.to(falls, 0.4, y=FLOOR - high, fill=LOST) for mark in marks])

    def add(self, sums: Sums, values: np.ndarray, at: float, pace: float, floor: int, end: float) -> list[Mark]:
        """Draw additions in the first order, in a window that ends with column ``floor``, or earlier if the sum grows.

        The last sum, the window and the fallen bits leave at ``end``, or stay if it is inf.
        """
        wholes = [*map(self.whole, values)]
        totals = [*map(self.whole, sums.running(values, sums.orders[0]))]
        cuts = [max(floor, total.bit_length() - WINDOW) for total in totals]
        frame, since = self.window(cuts[0], TOP - 16, 82), at
        if at:
            frame.enter(at, 0.1)
        marks = []
        for k in range(1, len(wholes)):
            start, total = at + (k - 1) * pace, totals[k - 1] + wholes[k]
            joined, rounds = start + 0.4 * pace, start + 0.7 * pace
            cut = max(floor, total.bit_length() - WINDOW)
            label = text(20, NEXT + 25, f"+ {LETTERS[k]}", 44, anchor="start")
            marks.append((label.enter(start, 0) if start else label).leave(joined, 0))
            marks += self.draw(wholes[k], NEXT, start, joined)
            marks += self.draw(totals[k - 1], TOP, since, joined)
            marks += self.draw(total >> cut << cut, TOP, joined, rounds)
            marks += self.drop(total & (1 << cut) - 1, TOP, joined, rounds, end)
            frame.to(joined, 0.1, x=self.x(cut + WINDOW)).to(rounds, 0.1, x=self.x(cuts[k] + WINDOW))
            since = rounds
        return [*marks, *self.draw(totals[-1], TOP, since, end), *_until(end, [frame])]

    def round(self, sums: Sums, at: float, lasting: float) -> list[Mark]:
        """Draw all numbers one below the other in the window of the sum; their bits beyond the grid's step fall off."""
        marks, high, falls = [], 245 / len(sums.terms), at + lasting / 2
        for place, (term, rounded) in enumerate(zip(sums.terms, sums.rounded, strict=True)):
            whole, beyond, y = self.whole(term), (1 << self.step) - 1, 348 + place * high
            marks += self.draw(whole & ~beyond, y, at, falls, high - 6)
            marks += self.drop(whole & beyond, y, at, falls, at + lasting, high - 6)
            marks += self.draw(self.whole(rounded), y, falls, at + lasting, high - 6)
        marks.append(self.window(self.step, 339, 257).enter(at, 0.1).leave(at + lasting, 0.1))
        if sums.bits < WINDOW:
            wide = (WINDOW - sums.bits) * self.side
            room = text(self.x(self.step + WINDOW) + wide / 2, NEXT, "room", min(40, int(wide / 2.5)))
            marks.append(room.enter(at, 0.1).leave(at + lasting, 0.1))
        return marks


def _until(end: float, marks: list[Mark]) -> list[Mark]:
    return marks if end == inf else [mark.leave(end, 0.1) for mark in marks]


def three_orders(sums: Sums, bug: str = "") -> Story:
    """Show the sums in each order, as floats and then on the grid; the bits are drawn for the first order."""
    bits, count = Bits(sums), len(sums.terms)
    floats, grid = (len({*sums.ends(values)}) for values in (sums.terms, sums.rounded))
    rounding = (count - 1) * PACE + 1  # the moment at which the numbers are put on the grid
    adding = rounding + 3
    end = adding + (count - 1) * FASTER + 0.4
    marks = [text(35, 35, "three orders", 40, anchor="start"), text(FLOATS, 35, "as floats", 40)]
    marks += [text(FLOATS, y, "= ?", 70, weight=700).leave(0.7 * PACE, 0) for y in ORDERS]
    marks.append(text(700, 328, f"a float: {WINDOW} bits", 36).leave(rounding - 0.2, 0.1))
    marks.append(text(GRID, 35, "on one grid", 40).enter(rounding))
    marks.append(text(20, TOP + 25, "sum", 40, anchor="start").leave(rounding - 0.2, 0.1).to(adding, 0.1, opacity=1))
    side = min(62, 420 / count)
    for y, order in zip(ORDERS, sums.orders, strict=True):
        for place, number in enumerate(order):
            tile = box(35 + place * side, y - 29, side - 6, 58, "paper", text=LETTERS[number], size=36, stroke="ink")
            if place:
                tile.to((place - 0.3) * PACE, 0.1, fill=ADDED).to(rounding, 0.1, fill="paper")
                tile.to(adding + (place - 0.3) * FASTER, 0.1, fill=ADDED)
            else:
                tile.begin(fill=ADDED)
            marks.append(tile)
    marks += _results(sums, sums.terms, FLOATS, 0, PACE, "wrong")
    marks += _results(sums, sums.rounded, GRID, adding, FASTER, "right" if grid == 1 else "wrong")
    marks += bits.add(sums, sums.terms, 0, PACE, 0, rounding - 0.2)
    marks += bits.round(sums, rounding, 2.5)
    marks += bits.add(sums, sums.rounded, adding, FASTER, bits.step, inf)
    asked = Question(
        f"The same {count} numbers, added as floats in three orders. How many different sums?",
        COUNTS[1:],
        floats - 1,
        "Each addition rounds to 24 bits. The lost bits depend on the sum so far, and so on the order.",
    )
    facts = {
        "bits of the grid": f"{sums.bits}, in a window of {WINDOW}",
        "exact sum of the floats": f"{fsum(sums.terms):.10g}",
        "exact sum on the grid": f"{fsum(sums.rounded):.10g}",
    }
    last = "Now no bit falls off: three orders, one sum."
    if bug:
        last = f"Bits fall off again: three orders, {COUNTS[grid]} sums."
    cue = f"Integers add in any order. Here {sums.bits} of {WINDOW} bits are left for each. The library adds in "
    cue += "float64, where 53 - log2 n are left for each of n numbers, and in a product half of them for each factor."
    beats = [
        Beat(0, f"The same {count} numbers in three orders. A float has room for {WINDOW} bits.", facts, asks=asked),
        Beat(0.6 * PACE, "The exact sum is longer. The red bits fall off: this addition rounds.", facts),
        Beat(rounding - 0.5, f"Three orders, {COUNTS[floats]} sums.", facts, answers=asked),
        Beat(rounding + 1, "Now each number is rounded first, once, to whole steps of one grid.", facts, cue=cue),
        Beat(end, last, facts),
    ]
    verdict = "The sum outgrew its window." if bug else "Order cannot change integer sums."
    details = "" if bug else "All three are Python's exact sum, math.fsum, of the numbers on the grid."
    key = {"a bit that is 1": "ink", "falls off": "wrong"}
    return Story("sum", "Does the order change a sum?", marks, beats, verdict, bug, details, key=key)


def _results(sums: Sums, values: np.ndarray, middle: float, at: float, pace: float, fill: str) -> list[Mark]:
    """Draw the running sums in each order. In the last one, digits that depend on the order of floats have a colour."""
    ends = sums.ends(sums.terms)
    decimals = max(0, ceil((WINDOW - int(np.frexp(max(ends))[1])) * log10(2)))
    ends = [f"{value:.{decimals}f}" for value in ends]
    same = [len({*digits}) == 1 for digits in zip(*ends, strict=True)]
    tail = min(3, len(same) - same.index(False))
    x, marks = middle + (len(ends[0]) / 2 - tail) * 35, []  # where the last digits begin
    for y, order in zip(ORDERS, sums.orders, strict=True):
        for k, value in enumerate(sums.running(values, order)[1:], 1):
            number, final = f"{value:.{decimals}f}", k == len(order) - 1
            prefix = text(x, y, number[:-tail], 60, "right" if final and fill == "right" else "ink", "end")
            for part in (prefix, text(x, y, number[-tail:], 60, fill if final else "ink", "start", weight=700)):
                part.enter(at + (k - 0.3) * pace, 0)
                marks.append(part if final else part.leave(at + (k + 0.7) * pace, 0))
    return marks


def rows(blas: np.ndarray, grid: np.ndarray, bug: str = "", details: str = "") -> Story:
    """Show where a row alone has other bits than in the batch, by the BLAS and on grids: (BATCH, WIDTH) bool each."""
    machine = gpu_model(xp.module) or "the machine's BLAS"
    pace, cell, top, marks = 0.3, 24, 72, []
    for middle, name, differ in ((320, machine, blas), (960, "on grids", grid)):
        x = middle - WIDTH * cell / 2
        marks += [text(middle, 35, name, 40), box(x, top, WIDTH * cell, BATCH * cell, "faint", "the product")]
        for row, column in np.argwhere(differ).tolist():
            number = box(x + column * cell + 1, top + row * cell + 1, cell - 2, cell - 2, "wrong", f"row {row}")
            marks.append(number.enter((row + 0.5) * pace, 0.1))
        alone = box(x - 6, top - 3, WIDTH * cell + 12, cell + 6, "none", "a row alone", stroke="ink", width=5)
        marks.append(alone.to(0.5 * pace, (BATCH - 1) * pace, y=top - 3 + (BATCH - 1) * cell).leave(BATCH * pace))
        values = [((row + 0.5) * pace, f"{differ[: row + 1].sum()}") for row in range(BATCH)]
        marks += counter(middle, 512, f"of {differ.size} differ", [(0, "?"), *values], 90)
    asked = Question(
        f"{BATCH} rows, multiplied in one batch, and each alone. How many of the {blas.size} numbers differ?",
        ("none", "less than half", "half or more"),
        int(blas.any()) + int(blas.mean() >= 0.5),
        "A BLAS has a special kernel for a single row, which adds in another order."
        if blas.any()
        else "The BLAS of this machine adds both in one order. Others do not.",
    )
    cue = "" if bug else "A model that serves many users answers each as if nobody shared its batch."
    facts = {"a number is the sum of": f"{TERMS} products, in float64"}
    beats = [
        Beat(0, f"A batch of {BATCH} rows, and each row alone. Red: other bits.", facts, asks=asked),
        Beat(pace * BATCH + 0.5, f"BLAS: {blas.sum()} differ. On grids: {grid.sum()}.", facts, answers=asked, cue=cue),
    ]
    verdict = "The sums outgrow 53 bits." if bug else "On its grid, a row is independent of its batch."
    return Story("product", "Does a row know its batch?", marks, beats, verdict, bug, details, key={"differs": "wrong"})
