"""What the scene of attention by heads asks, and what a speaker says."""

from minidist.show.player.scene import Cue, Question


def questions(last: int) -> tuple[Question, ...]:
    """``last`` is the number of the frame in which the ranks' terms are added."""
    return (
        Question(
            last - 3,
            "Each rank has the scores of its own head. What must the ranks exchange before the softmax?",
            ("nothing", "the maximum of each row", "all scores"),
            0,
            "Softmax runs along a row of one head, and a rank has that row whole. Heads meet only in Wo.",
        ),
        Question(
            last,
            "The ranks have O times their rows of Wo. How do they get y?",
            ("side by side, as columns", "added up", "each already has it"),
            1,
            "Wo mixes the heads: every number of y is a sum over all heads, of which each rank has its own terms.",
        ),
    )


def cues(last: int) -> tuple[Cue, ...]:
    return (
        Cue(0, 1.5, "The same cut as in the MLP: columns first, then rows. What is a column here? A head."),
        Cue(3, 1, "Attention mixes tokens, not heads. So cutting heads cuts nothing that belongs together."),
        Cue(last, 1.5, "One all-reduce for the whole of attention, whatever the number of heads. Break it here."),
    )
