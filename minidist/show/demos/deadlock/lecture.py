"""What a lecturer asks and says about deadlocks."""

from minidist.show.demos.shared.lectures import for_lecture, frame_where
from minidist.show.player.scene import Cue, Question, Scene

CHOICES = ("all ranks finish", "all wait forever", "only the last rank waits")
WHY_TOGETHER = "Both calls are posted before either is waited for, so a rank takes its message while it sends its own."
WHY_ODD = "An odd rank receives first, so its even neighbour's send can end. Then the odd rank sends."
WHY_SMALL = "The queue takes the whole message, so each send ends at once. MPI calls a program that needs this unsafe."
WHY_STUCK = "A send ends only when its receiver takes the message, and every receiver is in a send of its own: a cycle."


def together(scene: Scene) -> Scene:
    question = _ends_well(scene, "Each rank posts its send and its receive at once. What happens?", WHY_TOGETHER)
    return for_lecture(scene, [question], [Cue(0, 2, "Who waits for whom? Draw the arrows by hand first.")])


def odd_first(scene: Scene) -> Scene:
    question = _ends_well(scene, "Even ranks send first, odd ranks receive first. What happens?", WHY_ODD)
    return for_lecture(scene, [question], [Cue(0, 2, "Ask what happens with an odd number of ranks.")])


def small(scene: Scene) -> Scene:
    question = _ends_well(scene, "Every rank sends first; the message fits the queue. What happens?", WHY_SMALL)
    return for_lecture(scene, [question], [Cue(0, 2, "It works, in every test. Then somebody makes the model larger.")])


def stuck(scene: Scene, ranks: int) -> Scene:
    last = frame_where(scene, lambda frame: frame.facts["waiting"] == f"{ranks} of {ranks} ranks")
    text = f"{ranks - 1} ranks are in a send. Now the last one sends too. What happens?"
    cues = [Cue(0, 2, "Let the class say who waits, one call at a time."), Cue(last, 2, "Follow the arrows: a cycle.")]
    return for_lecture(scene, [Question(last, text, CHOICES, 1, WHY_STUCK)], cues)


def _ends_well(scene: Scene, text: str, why: str) -> Question:
    """Asked before the first call, answered by the end."""
    return Question(len(scene.frames) - 1, text, CHOICES, 0, why, asked=1)
