"""One weight: the bits of its master, the bits that are stored and sent, and both over the steps."""

from collections.abc import Sequence

import numpy as np

from minidist.nn.precision.formats import Format
from minidist.show.demos.bf16.run import Weight
from minidist.show.figures.bits import EXPONENT, MANTISSA, SIGN, fields
from minidist.show.figures.memory import COLOURS
from minidist.show.palette import MEANINGS
from minidist.show.player.scene import Box, Label, Shape

HEIGHT = 12.8
MASTER, STORED = COLOURS["optimizer"], COLOURS["parameters"]
BITS = {"sign": SIGN, "exponent": EXPONENT, "mantissa": MANTISSA}
KEY = BITS | {"dropped": MEANINGS["lost"], "master": MASTER, "stored": STORED}
BROKEN_KEY = BITS | {"wrong, bits are lost": "wrong", "master, run without the bug": MASTER, "stored": STORED}
LEFT, RIGHT = 2, 71.5
TOP, BOTTOM, FROM = 6, 11.6, 10  # of the curve: its edges, and the x of step 0
PITCH = 2.4  # from one step to the next
FEW = 5  # the largest number of lines across the curve


def draw(weight: Weight, step: int, low: float, high: float, right: Weight | None = None) -> tuple[Shape, ...]:
    """The shapes of one frame: the bits, and below them the curve from ``low`` to ``high``.

    Args:
        right: the same weight in the run with masters, if this one has none and what is dropped is lost.
    """
    return (*_bits(weight, step, right is not None), *_curve(weight, step, low, high, right))


def _bits(weight: Weight, step: int, lost: bool) -> list[Shape]:
    format = weight.format
    found: list[Shape] = [
        Label(0, 0.5, "result of the update, float32" if lost else "master weight, float32, held by the optimizer"),
        Label(RIGHT, 0.5, f"{weight.masters[step]:.9f}", "ink", "end"),
    ]
    master = fields(weight.bits(step), 8, 23)
    part = weight.dropped(step)
    found += _row(1, master, format.mantissa, "wrong" if lost and part else MEANINGS["lost"])
    way = "up" if part > 0.5 else "down" if part < 0.5 else "to even"
    text = f"{'lost' if lost else 'dropped'}: {part:.3f} of a step of {format.name}, rounded {way}"
    found.append(Label(RIGHT, 2.5, text if part else "nothing to drop", "wrong" if lost and part else "ink", "end"))
    found.append(Label(0, 3.5, f"stored and sent to every rank: {format.name}"))
    found.append(Label(RIGHT, 3.5, f"{weight.number(step):.9f}", "ink", "end"))
    found += _row(4, fields(int(weight.stored[step]), format.exponent, format.mantissa), format.mantissa, "faint")
    if step and weight.stored[step] != weight.stored[step - 1]:
        found.append(Label(RIGHT, 4.5, "changed", STORED, "end"))
    return found


def _row(y: float, parts: Sequence[str], kept: int, dropped: str) -> list[Shape]:
    """Bits as boxes, with the mantissas aligned. The mantissa keeps ``kept`` bits; the others are coloured."""
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
    """What was stored (wide) and the masters (narrow), in each step so far."""
    found: list[Shape] = []
    for number in _lines(weight.format, low, high):
        y = _height(number, low, high)
        found.append(Label(FROM - 1, y, f"{number:.5f}", "ink", "end"))
        found.append(Box(FROM, y - 0.05, PITCH * len(weight.masters), 0.1, "faint", "", "-"))
    last = len(weight.masters) - 1
    for place in (0, last // 2, last):
        found.append(Label(FROM + PITCH * (place + 0.5), BOTTOM + 0.7, str(place), "faint", "middle"))
    found.append(Label(FROM - 1, BOTTOM + 0.7, "steps", "faint", "end"))
    for place in range(step + 1):
        x = FROM + PITCH * place
        dot = x + (PITCH - 1) / 2
        found.append(Box(x, _height(weight.number(place), low, high) - 0.25, PITCH, 0.5, STORED, "", "s"))
        if right is not None:
            found.append(Box(dot, _height(right.masters[place], low, high) - 0.2, 1, 0.4, MASTER, "", "m"))
        mark, colour = ("m", MASTER) if right is None or not place else ("!", "wrong")
        found.append(Box(dot, _height(weight.masters[place], low, high) - 0.2, 1, 0.4, colour, "", mark))
    return found


def _height(value: float, low: float, high: float) -> float:
    return BOTTOM - (BOTTOM - TOP) * (float(value) - low) / (high - low)


def _lines(format: Format, low: float, high: float) -> np.ndarray:
    """The format's numbers between two positive ones; if there are many, every second, fourth, eighth, ..."""
    first, last = (int(format.encode(np.float32([value]))[0]) for value in (low, high))
    codes = np.arange(first, last + 1)
    apart = 1
    while len(codes) > FEW:
        apart *= 2
        codes = codes[codes % apart == 0]
    numbers = format.decode(codes.astype(format.dtype))
    return numbers[(numbers >= low) & (numbers <= high)]
