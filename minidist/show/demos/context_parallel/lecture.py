"""What a lecturer asks and says about context parallelism."""

from minidist.show.demos.context_parallel.run import Pass
from minidist.show.demos.shared.lectures import for_lecture
from minidist.show.player.scene import Cue, Question, Scene

FIRST_HOP = 2  # the frame of hop 1: before it are the start and hop 0
WHO = ("none", "rank 0", "the last rank")
WHY_RING = "Rank 0 has the first tokens, and the keys that arrive are later than its queries: the mask hides them all."
WHY_ZIGZAG = "Each rank has an early and a late chunk, so that every arriving pair of chunks has work for it."


def of_kind(kind: str, scene: Scene, run: Pass) -> Scene:
    """The scene of one way to deal chunks; ``run`` is its forward."""
    idle = [rank for rank, visit in enumerate(run.visits[1]) if not visit.pairs]
    answer = 0 if not idle else 1 if 0 in idle else 2
    dealt = "Contiguous" if kind == "ring" else "Zigzag"
    text = f"{dealt} chunks, and the keys move on by one rank. Who has nothing to compute?"
    why = WHY_RING if kind == "ring" else WHY_ZIGZAG
    cues = [Cue(0, 2, "A row is a query, a column a key. Who needs which?"), Cue(FIRST_HOP, 2, "Count the idle slots.")]
    return for_lecture(scene, [Question(FIRST_HOP, text, WHO, answer, why)], cues)


def broken(scene: Scene) -> Scene:
    question = Question(
        scene.first_wrong,
        "In backward a rank uses its own keys instead of those that arrived. Does the loss of this step show it?",
        ("yes", "no"),
        1,
        "The loss comes from forward, which was right. Only the gradients, and with them the next steps, are wrong.",
    )
    return for_lecture(scene, [question], [Cue(0, 2, "Which line would you test?")])
