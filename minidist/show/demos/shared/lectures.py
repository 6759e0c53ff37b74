"""What turns a recorded scene into one for a lecture: a short verdict, the question before a frame, and cues."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from minidist.show.player.scene import Cue, Frame, Question, Scene


def for_lecture(scene: Scene, questions: Sequence[Question] = (), cues: Sequence[Cue] = ()) -> Scene:
    """The scene with these, and with a verdict of one sentence: the others are its details, which are folded."""
    verdict, *details = re.split(r"(?<=[.!]) (?=[A-Z])", scene.verdict, maxsplit=1)
    return replace(
        scene, verdict=verdict, details=" ".join([*details, scene.details]).strip(), questions=tuple(questions),
        cues=tuple(cues),
    )  # fmt: skip


def frame_where(scene: Scene, holds: Callable[[Frame], bool]) -> int:
    """The number of the first frame, after the one before everything, of which something holds.

    Raises:
        RuntimeError: if it holds of none.
    """
    for number, frame in enumerate(scene.frames[1:], 1):
        if holds(frame):
            return number
    raise RuntimeError(f"no frame of the scene {scene.name!r} is the one that a question is about")
