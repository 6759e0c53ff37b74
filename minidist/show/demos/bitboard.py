"""A picture of one weight: the bits of its master, those that are stored and sent, and both over the steps."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from minidist.nn.precision.formats import Format
from minidist.show.bits import EXPONENT, MANTISSA, SIGN, fields
from minidist.show.memory import COLOURS
from minidist.show.player.scene import Box, Label, Shape

HEIGHT = 16
MASTER, STORED = COLOURS["optimizer"], COLOURS["parameters"]
BITS = {"sign": SIGN, "exponent": EXPONENT, "mantissa": MANTISSA}
KEY = BITS | {"dropped": "faint", "master": MASTER, "stored": STORED}
BROKEN_KEY = BITS | {"lost": "wrong", "master of the right run": MASTER, "stored": STORED}
LEFT, RIGHT = 2, 71.5
TOP, BOTTOM, FROM = 8.0, 15.5, 10  # of the curve: its lines, and where step 0 is
FEW = 5  # lines across the curve, at most


@dataclass(frozen=True)
class Weight:
    """One weight over a run, with what it was before as step 0.

    Args:
        format: of what is stored.
        masters: (steps + 1,) float32, as the optimizer left them.
        stored: (steps + 1,) the codes of what became of them.
    """

    format: Format
    masters: np.ndarray
    stored: np.ndarray

    def bits(self, step: int) -> int:
        """Of the master."""
        return int(self.masters[step : step + 1].view(np.uint32)[0])

    @property
    def dropped_bits(self) -> int:
        return 23 - self.format.mantissa

    def dropped(self, step: int) -> float:
        """How far the master lies beyond the number that is left if bits are cut off, in steps of the format."""
        return (self.bits(step) & ((1 << self.dropped_bits) - 1)) / (1 << self.dropped_bits)

    def number(self, step: int) -> float:
        """What is stored."""
        return float(self.format.decode(self.stored[step : step + 1])[0])

    def distance(self, step: int, up: bool) -> float:
        """From the number that is stored to its neighbour of 16 bits, above it or below; it is positive."""
        code = int(self.stored[step])  # of positive numbers the codes are in their order
        codes = np.array([code, code + 1 if up else code - 1], self.stored.dtype)
        here, there = self.format.decode(codes)
        return abs(float(there - here))

    def moves(self, step: int) -> int:
        """How often the stored number has changed up to a step."""
        return int((self.stored[1 : step + 1] != self.stored[:step]).sum())


def draw(weight: Weight, step: int, low: float, high: float, right: Weight | None = None) -> tuple[Shape, ...]:
    """The shapes of one frame: bits above, below them the curve, from ``low`` to ``high``.

    Args:
        right: the same weight as it should be, where this one has no master: what is dropped is lost then.
    """
    return (*_bits(weight, step, right is not None), *_curve(weight, step, low, high, right))


def _bits(weight: Weight, step: int, lost: bool) -> list[Shape]:
    format = weight.format
    found: list[Shape] = [
        Label(0, 0.5, "as the optimizer left it, float32" if lost else "master weight, float32: the optimizer's"),
        Label(RIGHT, 0.5, f"{weight.masters[step]:.9f}", "ink", "end"),
    ]
    master = fields(weight.bits(step), 8, 23)
    part = weight.dropped(step)
    found += _row(1, master, format.mantissa, "wrong" if lost and part else "faint")
    way = "up" if part > 0.5 else "down" if part < 0.5 else "to the even one"
    says = f"{'lost' if lost else 'dropped'}: {part:.3f} of a step of {format.name}, rounded {way}"
    found.append(Label(RIGHT, 2.5, says if part else "nothing to drop", "wrong" if lost and part else "ink", "end"))
    found.append(Label(0, 3.5, f"stored, and sent to every rank: {format.name}"))
    found.append(Label(RIGHT, 3.5, f"{weight.number(step):.9f}", "ink", "end"))
    found += _row(4, fields(int(weight.stored[step]), format.exponent, format.mantissa), format.mantissa, "faint")
    if step and weight.stored[step] != weight.stored[step - 1]:
        found.append(Label(RIGHT, 4.5, "it has moved", STORED, "end"))
    return found


def _row(y: float, parts: Sequence[str], kept: int, dropped: str) -> list[Shape]:
    """Bits as boxes; mantissas begin below each other. Of the mantissa ``kept`` bits stay, and others get a colour."""
    found: list[Shape] = []
    mantissa = LEFT + 2 * 9 + 2
    x = mantissa - 2 * (len(parts[0]) + len(parts[1])) - 2
    for part, colour in zip(parts, (SIGN, EXPONENT, MANTISSA), strict=True):
        for place, bit in enumerate(part):
            if colour == MANTISSA and place >= kept:
                found.append(Box(x, y, 2, 1, dropped, bit, "."))
            else:
                found.append(Box(x, y, 2, 1, colour, bit, " "))
            x += 2
        x += 1
    return found


def _curve(weight: Weight, step: int, low: float, high: float, right: Weight | None) -> list[Shape]:
    """What was stored, broad, and the masters, small, in each step so far."""
    found: list[Shape] = [Label(0, TOP - 1.5, "over the steps: what is stored, broad; what the optimizer left, small")]
    for number in _lines(weight.format, low, high):
        y = _height(number, low, high)
        found.append(Label(FROM - 1, y, f"{number:.5f}", "ink", "end"))
        found.append(Box(FROM, y - 0.05, 2 * len(weight.masters), 0.1, "faint", "", "-"))
    for place in range(step + 1):
        x = FROM + 2 * place
        found.append(Box(x, _height(weight.number(place), low, high) - 0.25, 2, 0.5, STORED, "", "s"))
        if right is not None:
            found.append(Box(x + 0.5, _height(right.masters[place], low, high) - 0.2, 1, 0.4, MASTER, "", "m"))
        mark, colour = ("m", MASTER) if right is None or not place else ("!", "wrong")
        found.append(Box(x + 0.5, _height(weight.masters[place], low, high) - 0.2, 1, 0.4, colour, "", mark))
    return found


def _height(value: float, low: float, high: float) -> float:
    return BOTTOM - (BOTTOM - TOP) * (float(value) - low) / (high - low)


def _lines(format: Format, low: float, high: float) -> np.ndarray:
    """All numbers of the format between two positive ones, or where there are many every second, fourth, eighth, ..."""
    first, last = (int(format.encode(np.float32([value]))[0]) for value in (low, high))
    codes = np.arange(first, last + 1)
    apart = 1
    while len(codes) > FEW:
        apart *= 2
        codes = codes[codes % apart == 0]
    numbers = format.decode(codes.astype(format.dtype))
    return numbers[(numbers >= low) & (numbers <= high)]
