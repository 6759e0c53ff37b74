"""What the animation of one compressed gradient says: two frames for each step, before and after its message."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from minidist.show.demos.compress import picture
from minidist.show.demos.compress.run import STEPS, Message, Recorded
from minidist.show.player.scene import Frame, Scene, Shape

KEY = {"gradients": picture.GRADIENT, "sent": picture.SENT, "residual": picture.RESIDUAL}
BROKEN_KEY = {"gradients": picture.GRADIENT, "sent": picture.SENT, "lost, wrong": "wrong"}


@dataclass(frozen=True)
class Kind:
    """How a method is shown.

    Args:
        name: name of the scene.
        title: without the number of steps.
        sent: (message, followed) -> what the note says as it is sent.
        panel: (message, bytes) -> the shapes of the message.
    """

    name: str
    title: str
    sent: Callable[[Message, int], str]
    panel: Callable[[Message, int], list[Shape]]


def followed(right: Recorded, broken: Recorded) -> int:
    """The number that waits longest until rank 0 sends it, of those that are never sent without feedback.

    Raises:
        RuntimeError: if there is none.
    """
    sent, lost = (np.array([message.sent != 0 for message in one.drawn]) for one in (right, broken))
    first = sent.argmax(axis=0)  # the step in which each is sent
    told = sent[: STEPS - 1].any(axis=0) & ~lost.any(axis=0)  # before the end, so that one sees what follows
    waiting = told if told.any() else sent.any(axis=0) & ~lost.any(axis=0)
    if not waiting.any():
        raise RuntimeError("no number that feedback sends is left out without it: choose another size or seed")
    gone = np.abs(sum(message.gradient for message in right.drawn))
    return int(max(np.flatnonzero(waiting), key=lambda number: (first[number], gone[number])))


def scene(
    kind: Kind, shown: Recorded, number: int, most: float, nbytes: int, verdict: str, details: str, lost: bool = False
) -> Scene:
    """Rank 0's messages of one parameter, step by step.

    Args:
        number: the one to follow.
        most: the value of the highest bar.
        nbytes: bytes of a message.
        lost: whether the residual is.
    """
    count = shown.drawn[0].gradient.size
    bars = picture.Bars(count, most, number, lost)
    frames = []
    for step, message in enumerate(shown.drawn):
        arrives, leaves = _arrives(step, message, number, lost), kind.sent(message, number)
        if lost:
            leaves = f"{leaves.split(';')[0]}; what is left out is forgotten."
        for is_sent, note in ((False, arrives), (True, f"Step {step + 1}: {leaves}")):
            panel = kind.panel(message, nbytes) if is_sent else []
            shapes = bars.draw(step, message, is_sent, panel)
            frames.append(Frame(shapes, note, _facts(shown, step, is_sent, number, nbytes, lost), len(frames)))
    return Scene(
        f"broken {kind.name}" if lost else kind.name,
        f"{kind.title}: rank 0's gradient of the last norm's {count} biases",
        tuple(frames),
        picture.HEIGHT,
        BROKEN_KEY if lost else KEY,
        verdict,
        1 if lost else None,
        (1, STEPS - 1, len(frames) - 1),  # once the message is sent
        twin=kind.name if lost else "",
        details=details,
    )


def _arrives(step: int, message: Message, number: int, lost: bool) -> str:
    if not step:
        return (
            f"Step 1: a gradient of {message.gradient.size} numbers, real ones. No residual is left over from before."
        )
    if lost:
        return f"Step {step + 1}: the next gradient. Nothing of number {number}'s earlier gradients is added to it."
    gradient, before = message.gradient[number], message.before[number]
    if not before:
        return f"Step {step + 1}: the next gradient. Number {number} begins with no residual."
    return f"Step {step + 1}: the next gradient, {gradient:+.4f} of number {number}, meets its residual {before:+.4f}."


def _facts(shown: Recorded, step: int, is_sent: bool, number: int, nbytes: int, lost: bool) -> dict[str, str]:
    done = shown.drawn[: step + is_sent]
    now = shown.drawn[step]
    steps = len(done)
    came = sum((message.gradient[number] for message in shown.drawn[: step + 1]), 0.0)
    sent = sum((message.sent[number] for message in done), 0.0)
    held = now.after[number] if is_sent else now.before[number]
    ever = np.any([message.sent != 0 for message in done], axis=0).sum() if done else 0
    return {
        "step": f"{step + 1} of {STEPS}",
        "bytes sent": f"{steps * nbytes:,} of {steps * now.gradient.nbytes:,}",
        "ever sent": f"{ever} of {now.gradient.size}",
        f"gradients of {number}": f"{came:+.4f}",
        "sent of them": f"{sent:+.4f}",
        "lost" if lost else "residual": f"{came - sent if lost else held:+.4f}",
    }
