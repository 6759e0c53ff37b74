"""What the animation of the losses says: how far each method stays above full gradients, with feedback and without."""

from collections.abc import Iterator

import numpy as np

from minidist.show.demos.compress.curves import RANKS, SEEDS, STEPS, WINDOW, Curves, windows
from minidist.show.player.scene import Curve, Frame, Label, Scene, Shape

NAME = "loss"
HEIGHT = 13.0
LEFT, PITCH, WIDE = 6.0, 22.5, 19.5  # the first chart, from one to the next, and a chart
TOP, BOTTOM = 2.9, 8.9  # lines
TICKS = (0.0, 0.2, 0.4, 0.6)  # what is above the last is drawn there
WITH, WITHOUT = "right", "wrong"


def scene(shown: Curves, verdict: str, details: str, broken: bool = False) -> Scene:
    """A frame for each window of steps; ``broken`` adds the runs without feedback."""
    frames = tuple(
        Frame(tuple(_shapes(shown, now, broken)), _note(shown, now, broken), _facts(shown, now, broken), now * WINDOW)
        for now in range(STEPS // WINDOW + 1)
    )
    key = {"full gradients": "ink", "with error feedback": WITH} | ({"without, wrong": WITHOUT} if broken else {})
    return Scene(
        f"broken {NAME}" if broken else NAME,
        f"Loss above that of full gradients, means of {WINDOW} steps: {SEEDS} seeds, {RANKS} ranks, plain SGD",
        frames,
        HEIGHT,
        key,
        verdict,
        1 if broken else None,
        (len(frames) // 2, len(frames) - 1),
        twin=NAME if broken else "",
        details=details,
    )


def above(losses: np.ndarray, full: np.ndarray) -> np.ndarray:
    """How far the loss is above that of full gradients with the same weights and tokens: (seeds, windows)."""
    return windows(losses) - windows(full)


def worse(shown: Curves) -> int:
    """Number of runs, over all methods and seeds, whose last steps' loss is higher without feedback."""
    return sum(
        int((windows(shown.forgetful[name])[:, -1] > windows(losses)[:, -1]).sum())
        for name, losses in shown.compressed.items()
    )


def _shapes(shown: Curves, now: int, broken: bool) -> Iterator[Shape]:
    for place, name in enumerate(shown.compressed):
        yield from _chart(shown, name, LEFT + PITCH * place, now, broken, labelled=not place)


def _chart(shown: Curves, name: str, left: float, now: int, broken: bool, labelled: bool) -> Iterator[Shape]:
    most = TICKS[-1]

    def at(window: float, value: float) -> tuple[float, float]:
        high = (BOTTOM - TOP) * min(most, value) / most
        return left + WIDE * window / (STEPS / WINDOW), BOTTOM - high

    yield Label(left, 0.5, name)
    yield Label(left, 1.5, f"1/{1 / shown.shares[name]:.0f} of the bytes", "faint")
    for value in TICKS:
        _, y = at(0, value)
        yield Curve(((left, y), (left + WIDE, y)), "faint", 1)
        if labelled:
            yield Label(left - 1, y, f"≥{value:.1f}" if value == most else f"{value:.1f}", "faint", "end")
    yield Curve((at(0, 0), at(now, 0)), "ink", 3)
    kinds = [(WITH, shown.compressed[name])] + ([(WITHOUT, shown.forgetful[name])] if broken else [])
    for colour, losses in kinds:
        for seed in above(losses, shown.full):
            points = [at(window + 0.5, value) for window, value in enumerate(seed[:now])]
            if points:
                yield Curve(tuple(points), colour, 3)
    for step in (0, STEPS // 2, STEPS):
        x, _ = at(step / WINDOW, 0)
        yield Label(x, BOTTOM + 0.9, str(step), "faint", "middle" if step < STEPS or left + WIDE < 70 else "end")
    ends = [("full", "ink", shown.full)] + [
        ("with" if colour == WITH else "without", colour, losses) for colour, losses in kinds
    ]
    for line, (word, colour, losses) in enumerate(ends if now else []):
        value = windows(losses)[:, now - 1].mean()
        yield Label(left + 8, BOTTOM + 1.8 + line, word, colour, "end")
        yield Label(left + 15, BOTTOM + 1.8 + line, f"{value:.3f}", colour, "end")


def _note(shown: Curves, now: int, broken: bool) -> str:
    if not now:
        return "Each run begins with the same weights as the run with full gradients, and sees the same tokens."
    far = {name: float(above(losses, shown.full)[:, now - 1].mean()) for name, losses in shown.compressed.items()}
    if not broken:
        text = ", ".join(f"{name} {value:+.2f}" for name, value in far.items())
        return f"After {now * WINDOW} steps, above full gradients in the mean: {text}."
    lost = {name: float(above(losses, shown.full)[:, now - 1].mean()) for name, losses in shown.forgetful.items()}
    text = ", ".join(f"{name} {lost[name]:+.2f} ({value:+.2f})" for name, value in far.items())
    return f"Step {now * WINDOW}, without feedback (with it): {text}."


def _facts(shown: Curves, now: int, broken: bool) -> dict[str, str]:
    facts = {"steps": f"{now * WINDOW} of {STEPS}", "full": _spread(shown.full, now)}
    for name, losses in (shown.forgetful if broken else shown.compressed).items():
        facts[f"{name}, no feedback" if broken else name] = _spread(losses, now)
    return facts


def _spread(losses: np.ndarray, now: int) -> str:
    """The smallest and the largest loss of the seeds, in the last window."""
    if not now:
        return "-"
    last = windows(losses)[:, now - 1]
    return f"{last.min():.3f} to {last.max():.3f}"
