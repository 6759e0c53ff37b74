"""What a lecturer asks and says about expert parallelism."""

from minidist.show.demos.expert_parallel.balance import STEPS, Load
from minidist.show.demos.expert_parallel.run import Step
from minidist.show.demos.shared.lectures import for_lecture, frame_where
from minidist.show.player.scene import Cue, Question, Scene

MOST_CHOICES = 6


PACE = "The busiest rank sets", "The experts compute: every"  # how the note begins once all have computed


def routes(scene: Scene, step: Step) -> Scene:
    pace = frame_where(scene, lambda frame: frame.note.startswith(PACE))
    busiest = step.loads.index(max(step.loads))
    shown = sorted({busiest, *range(min(step.ranks, MOST_CHOICES - 1))})[:MOST_CHOICES]
    question = Question(
        pace,
        "All tokens are with their experts. Which rank keeps the others waiting?",
        tuple(f"rank {rank}: {step.loads[rank]} rows" for rank in shown),
        shown.index(busiest),
        "The second all-to-all begins when the slowest rank is done, so the busiest rank sets the pace of all.",
    )
    cues = [Cue(0, 2, "A token is a row of numbers; its experts may be anywhere."), Cue(pace, 2, "What would help?")]
    return for_lecture(scene, [question], cues)


def balance(scene: Scene, without: Load) -> Scene:
    """With the run without a balance loss."""
    most = without.excess()[-1].max()
    question = Question(
        len(scene.frames) - 1,
        f"Nothing balances the experts. After {STEPS} steps, how many times its even share does the busiest one get?",
        ("about 1", f"about {most:.1f}", f"about {3 * most:.0f}"),
        1,
        "An expert that is chosen more learns more, and is chosen more still.",
        asked=1,
    )
    return for_lecture(scene, [question], [Cue(0, 2, "Two runs, same weights, same tokens: only one has the loss.")])


def broken(scene: Scene, ranks: int) -> Scene:
    question = Question(
        scene.first_wrong,
        "An expert's gradient is divided by its own rank's micro-batches alone. How wrong is it?",
        ("not at all", f"{ranks} times too large", f"{ranks} times too small"),
        1,
        "Rows of all ranks are in the sum, so the mean must be over the micro-batches of all ranks.",
    )
    return for_lecture(scene, [question], [Cue(0, 2, "Every rank is busy, every message arrives. Where is the bug?")])
