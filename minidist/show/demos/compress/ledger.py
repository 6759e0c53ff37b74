"""One number's ledger: what comes in with each gradient, what is held back, and when it is sent; to the bit."""

from fractions import Fraction

import numpy as np

from minidist.show.demos.compress.picture import GRADIENT, MARKS, RESIDUAL, SENT
from minidist.show.demos.compress.run import STEPS, Message, Recorded
from minidist.show.demos.compress.scene import BROKEN_KEY, KEY
from minidist.show.player.scene import Box, Curve, Frame, Label, Scene, Shape

NAME = "ledger"
HEIGHT = 13.0
LEFT, PITCH, WIDE, END = 9.0, 7.75, 2.5, 71.5  # the first step, from one to the next, a bar, and the right edge
TOP, BOTTOM = 1.9, 8.0  # lines: of the chart
FIRST, SECOND = 10.5, 11.5  # lines: both sides of the equation


def scene(shown: Recorded, number: int, most: float, verdict: str, details: str, lost: bool = False) -> Scene:
    """The number's account on rank 0: a frame before the first step, and one for each.

    Args:
        number: index of the drawn number in the gradient.
        most: the upper end of the scale.
        lost: whether residuals are.
    """
    accounts = [Account(message, number) for message in shown.drawn]
    way = 1 if accounts[0].gradient > 0 else -1
    frames = tuple(
        Frame(
            tuple(_shapes(accounts[:now], way, most, lost)),
            _note(accounts[:now], number, lost),
            _facts(accounts[:now], lost),
            max(0, 2 * now - 1),  # on the clock of the bars, which have two frames for each step
        )
        for now in range(STEPS + 1)
    )
    return Scene(
        f"broken {NAME}" if lost else NAME,
        f"The ledger of number {number}: gradient + residual = sent + new residual",
        frames,
        HEIGHT,
        (BROKEN_KEY if lost else KEY) | {"smallest number sent": "ink"},
        verdict,
        1 if lost else None,
        (STEPS // 2, STEPS),
        twin=NAME if lost else "",
        details=details,
    )


def highest(shown: Recorded, number: int) -> float:
    """The largest magnitude that a picture of the number has."""
    accounts = [Account(message, number) for message in shown.drawn]
    return max(max(abs(account.gradient + account.before), account.least) for account in accounts)


class Account:
    """One number in one step: Python floats, which are float64."""

    def __init__(self, message: Message, number: int) -> None:
        arrays = message.gradient, message.before, message.sent, message.after
        self.gradient, self.before, self.sent, self.after = (float(array[number]) for array in arrays)
        self.least = float(np.abs(message.sent[message.sent != 0]).min())  # that a message carried

    @property
    def sides(self) -> tuple[float, float]:
        """What came in and what becomes of it."""
        return self.gradient + self.before, self.sent + self.after


def bits(number: float) -> str:
    return f"{np.float64(number).view(np.uint64):016X}"


def _shapes(accounts: list[Account], way: int, most: float, lost: bool) -> list[Shape]:
    """The steps so far; a bar goes up if its number grows in the direction of the first gradient."""

    def y(value: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * way * value / most

    def bar(x: float, begin: float, end: float, colour: str, id: str) -> list[Shape]:
        top = min(y(begin), y(end))
        return (
            [Box(x, top, WIDE, max(y(begin), y(end)) - top, colour, "", MARKS[colour], id=id)] if begin != end else []
        )

    shapes: list[Shape] = [
        Label(0, 0.5, "in each step, on the left what comes in, on the right what becomes of it", "faint"),
        Curve(((LEFT - 1, BOTTOM), (LEFT + PITCH * STEPS, BOTTOM)), "faint", 1.5),
        Label(LEFT - 2, BOTTOM, "0", "faint", "end"),
        Label(LEFT - 2, TOP, f"{way * most:+.3f}", "faint", "end"),
        Label(LEFT - 2, BOTTOM + 1, "step", "faint", "end"),
    ]
    for step in range(STEPS):
        shapes.append(Label(LEFT + PITCH * step + WIDE, BOTTOM + 1, str(step + 1), "faint", "middle"))
    for step, account in enumerate(accounts):
        x = LEFT + PITCH * step
        came, went = account.sides
        shapes += bar(x, 0, account.before, RESIDUAL, f"residual before step {step}")
        shapes += bar(x, account.before, came, GRADIENT, f"gradient of step {step}")
        shapes += bar(x + WIDE, 0, account.sent, SENT, f"sent in step {step}")
        shapes += bar(x + WIDE, account.sent, went, "wrong" if lost else RESIDUAL, f"residual before step {step + 1}")
        shapes.append(Box(x - 0.5, y(way * account.least) - 0.06, 2 * WIDE + 1, 0.12, "ink", "", "-"))
    return shapes + (_equation(accounts[-1], lost) if accounts else [])


def _equation(account: Account, lost: bool) -> list[Shape]:
    """Both sides, and their bits."""
    came, went = account.sides
    rows = (
        (FIRST, "gradient", account.gradient, "residual", account.before, came),
        (SECOND, "sent", account.sent, "lost" if lost else "residual", account.after, went),
    )
    shapes: list[Shape] = []
    for y, first, one, second, other, total in rows:
        shapes += [
            Label(8, y, first, "ink", "end"),
            Label(19, y, f"{one:+.6f}", "ink", "end"),
            Label(31, y, f"+ {second}", "ink", "end"),
            Label(42, y, f"{other:+.6f}", "ink", "end"),
            Label(54, y, f"= {total:+.6f}", "ink", "end"),
            Label(END, y, bits(total), "ink", "end"),
        ]
    text, colour = ("the same bits", "right") if came == went else ("other bits", "wrong")
    shapes.append(Label(END, HEIGHT - 0.5, text, colour, "end"))
    return shapes


def _note(accounts: list[Account], number: int, lost: bool) -> str:
    if not accounts:
        return f"Number {number} of the same gradients, as an account: nothing is in it yet."
    step, now = len(accounts), accounts[-1]
    if now.sent and now.before:
        return f"Step {step}: large enough at last: all that waited and the new gradient, {now.sent:+.4f}, is sent."
    if now.sent:
        return f"Step {step}: number {number} is sent."
    if lost:
        return f"Step {step}: too small to be sent, and forgotten: the next gradient begins at 0 again."
    return f"Step {step}: {now.gradient + now.before:+.4f} is not among the largest, and waits in the residual."


def _facts(accounts: list[Account], lost: bool) -> dict[str, str]:
    """Sums of fractions, which are exact; rounded where they are printed."""
    came = sum((Fraction(account.gradient) for account in accounts), Fraction(0))
    sent = sum((Fraction(account.sent) for account in accounts), Fraction(0))
    held = Fraction(accounts[-1].after) if accounts and not lost else Fraction(0)
    missing = came - sent - held
    return {
        "step": f"{len(accounts)} of {STEPS}",
        "gradients so far": f"{float(came):+.6f}",
        "sent so far": f"{float(sent):+.6f}",
        "residual": f"{float(held):+.6f}",
        "missing": f"{float(missing):+.6f}" if missing else "0, exactly",
    }
