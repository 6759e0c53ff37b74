"""What a lecturer asks and says about clusters."""

from collections.abc import Sequence

from minidist.show.demos.cluster.run import Step
from minidist.show.demos.shared.lectures import for_lecture
from minidist.show.player.scene import Cue, Question, Scene

SAYS = (
    "A bar is all GPUs over time. Where do they wait, though all links are fast?",
    "The same messages; those of data parallelism now leave the node.",
    "The network cards share an uplink, as in a fat tree with oversubscription.",
)
WHY = {
    0: "Tensor parallelism stays inside the nodes. Only gradients cross, and part of them behind backward.",
    1: "Gradients of all GPUs of a node meet in the uplink, and each gets a share of it.",
}


def of_step(scene: Scene, steps: Sequence[Step], number: int) -> Scene:
    cues = [Cue(0, 2, SAYS[number])]
    if not number:
        return for_lecture(scene, [_computing(steps[0], len(scene.frames) - 1)], cues)
    ratio = steps[number].seconds / steps[0].seconds
    question = Question(
        len(scene.frames) - 1,
        "How many times as long as in one node is the step?",
        times(ratio),
        1,
        WHY[number - 1],
    )
    return for_lecture(scene, [question], cues)


def _computing(step: Step, frame: int) -> Question:
    """How much of the step the GPUs compute, though all links are fast."""
    share = sum(rank.computing for rank in step.report.ranks) / step.ranks / step.seconds
    guesses = share / 3, share, (1 + share) / 2
    return Question(
        frame,
        "All links are NVLinks. How much of the step do the GPUs compute?",
        tuple(f"{guess:.0%}" for guess in guesses),
        1,
        "Tensor parallelism sums activations several times in each layer, and the next product waits for each sum.",
        asked=1,
    )


def broken(scene: Scene, right: Step, across: Step) -> Scene:
    question = Question(
        len(scene.frames) - 1,
        "Each tensor-parallel group lies across the nodes. How many times as long does the same step take?",
        times(across.seconds / right.seconds),
        1,
        "Tensor parallelism sends activations in every layer, forward and backward, and nothing hides them.",
        asked=scene.first_wrong,
    )
    return for_lecture(scene, [question], [Cue(0, 3, "Nothing crashes, every bit is right: only the bill is wrong.")])


def times(ratio: float) -> tuple[str, str, str]:
    """Three guesses; the second one is right."""
    return f"{1 + (ratio - 1) / 4:.1f} times", f"{ratio:.1f} times", f"{1 + 4 * (ratio - 1):.1f} times"
