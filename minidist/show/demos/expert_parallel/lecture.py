"""What a lecturer asks and says about expert parallelism."""

from minidist.show.demos.expert_parallel.balance import STEPS, Load
from minidist.show.demos.expert_parallel.run import Step
from minidist.show.demos.expert_parallel.scene import ANNOUNCED
from minidist.show.demos.shared.lectures import for_lecture, frame_where
from minidist.show.player.scene import Cue, Question, Scene

MOST_CHOICES = 6

PACE = "The busiest rank sets", "The experts compute: every"  # how the note begins once all have computed


def routes(scene: Scene, step: Step) -> Scene:
    pace = frame_where(scene, lambda frame: frame.note.startswith(PACE))
    home = pace + 1
    busiest = step.loads.index(max(step.loads))
    shown = sorted({busiest, *range(min(step.ranks, MOST_CHOICES - 1))})[:MOST_CHOICES]
    questions = [
        Question(
            ANNOUNCED,
            "Before any row is sent, each rank must learn something from all others. What?",
            ("the weights of their experts", "how many rows will come", "nothing"),
            1,
            "Routing is decided where the token is. The receiver must know how much to receive, so counts go first.",
        ),
        Question(
            pace,
            "All rows are with their experts. Which rank keeps the others waiting?",
            tuple(f"rank {rank}" for rank in shown),
            shown.index(busiest),
            "The way home begins when the slowest rank is done, so the busiest rank sets the pace of all.",
            asked=ANNOUNCED + 1,
        ),
    ]
    cues = [
        Cue(0, 1, "A token is a row of numbers. Colour and number say where it is at home."),
        Cue(1, 1, "Follow one token, such as 0a, all the way."),
        Cue(pace, 2, "What would help? More experts? Other routes? Capacity? Then show the second scene."),
        Cue(home, 1, "An expert never learns whose token it was: the splits of dispatch, swapped, lead home."),
    ]
    return for_lecture(scene, questions, cues)


def capacity(scene: Scene, step: Step) -> Scene:
    question = Question(
        ANNOUNCED,
        f"Now an expert takes {step.capacity} of each rank's tokens at most. What becomes of the others?",
        ("they wait for the next step", "they go to another expert", "they go on without that expert"),
        2,
        "A dropped copy counts as 0: the token keeps its residual, and what its other experts say.",
    )
    cues = [
        Cue(0, 1, "The same tokens and the same choices as in the first scene."),
        Cue(
            ANNOUNCED,
            2,
            "Is there a token that loses all of its experts? Training is faster, but not the same any more.",
        ),
    ]
    return for_lecture(scene, [question], cues)


def balance(scene: Scene, without: Load) -> Scene:
    """The balance scene with a question; ``without`` is the load of the run without a balance loss."""
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


def broken_balance(scene: Scene, ranks: int) -> Scene:
    question = Question(
        len(scene.frames) - 1,
        f"Every expert's gradient is {ranks} times too large. What does the run look like?",
        ("the loss explodes", "one expert takes all at once", "almost as without the bug"),
        2,
        "Adam divides a gradient by its own size. That is why such bugs live long.",
        asked=1,
    )
    return for_lecture(scene, [question], [Cue(0, 2, "Look at the loss, then at the verdict: which test finds this?")])
