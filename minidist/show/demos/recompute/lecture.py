"""What the audience predicts about recomputation, and what a speaker says."""

from minidist.show.demos.shared.memory_log import MemoryLog
from minidist.show.player.scene import Cue, Question

CUES = {
    "none": (Cue(0, 2, "The pink area are activations: what forward keeps for backward. Watch it rise and fall."),),
    "selective": (Cue(0, 1, "Only attention's weights are dropped, s by s for each head. Compare the pink area."),),
    "full": (Cue(0, 1, "Every block keeps its input alone. Each yellow bar is a block's forward, run again."),),
    "broken": (Cue(0, 1, "Dropout must draw the same mask again: here it does not. Ask what the run will look like."),),
}


def questions(mode: str, rank: MemoryLog, share: float, frames: int) -> tuple[Question, ...]:
    """One question for a mode.

    Args:
        rank: what one rank held.
        share: the FLOPs that are recomputed, as a share of those of forward and backward.
        frames: number of frames of the scene.
    """
    if mode == "none":
        starts = sorted(rank.places("backward"))
        return (
            Question(
                max(1, round(starts[0][0] * frames)),
                "When does a rank hold the most activations?",
                ("in the middle of forward", "as forward ends and backward begins", "as backward ends"),
                1,
                "Forward keeps what backward needs, block by block. Backward frees it, the last block first.",
            ),
        )
    choices = ("none: it is only memory", "less than a tenth", "about a third", "as many again")
    answer = 1 if share < 0.1 else 2
    why = {
        "selective": "Attention's weights take much memory, s x s for each head, but few FLOPs.",
        "full": "Backward is about two forwards, so that one more forward adds nearly a third.",
    }[mode]
    return (
        Question(
            frames - 1, "How many FLOPs does recomputation add to a step?", choices, answer, f"{share:.1%}. {why}"
        ),
    )


def question_of_bug(first_wrong: int) -> Question:
    return Question(
        first_wrong,
        "Recomputation draws another dropout mask than forward did. What happens?",
        ("an error: the shapes do not fit", "the loss becomes NaN", "wrong gradients, and nobody notices"),
        2,
        "All shapes fit, all numbers are finite. The gradients belong to a forward that never ran.",
    )
