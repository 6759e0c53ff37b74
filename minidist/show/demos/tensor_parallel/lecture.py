"""What the scenes of cut matrices ask, what a speaker says, and the code: f and g are all there is to it."""

from collections.abc import Mapping

from minidist.show.player.scene import Cue, Question

CODE = (
    "Z = gelu(f(x) @ A)",
    "y = g(Z @ B)",
    "",
    "   forward     backward",
    "f  copy        all-reduce",
    "g  all-reduce  copy",
)
SEQUENCE_CODE = (*CODE[:4], "f  all-gather      reduce-scatter", "g  reduce-scatter  all-gather")

WHICH_WAY = "Which way must A and B be cut so that no message is needed between the two products?"
WAYS = ("A by columns, B by rows", "A by rows, B by columns", "both by columns", "both by rows")
WHY_COLUMNS = (
    "A column of A gives a finished column of x A, so GELU can be applied at once; that column of Z meets exactly one "
    "row of B. By rows, x A would be partial sums, and GELU of a part is not a part of GELU."
)
WHAT_IS_IT = "Each rank now has a matrix of y's full shape. What is it?"
WHAT = ("y itself", "some columns of y", "some terms of every sum")
WHY_TERMS = (
    "Each number of y is a sum over all rows of B, and a rank has some of the rows: the sum over the ranks is missing."
)
WHERE = "Backward: where must gradients be summed over the ranks?"
PLACES = ("at g, for y", "at f, for x", "for A and B", "nowhere")
WHY_F = "Every rank used x, so its gradients add up at f. y was the same on all ranks, and A and B are in parts."


def questions(moments: Mapping[str, int], sequence: bool, gains: bool) -> tuple[Question, ...]:
    """The questions of a scene; ``moments`` has the numbers of its frames by name."""
    if not gains:
        return (
            Question(moments["cut"], WHICH_WAY, WAYS, 0, WHY_COLUMNS),
            Question(moments["g"], WHAT_IS_IT, WHAT, 2, WHY_TERMS),
            Question(moments["f back"], WHERE, PLACES, 1, WHY_F),
        )
    if not sequence:
        text = "What does every rank keep in full, though it needs it only for work that all ranks do alike?"
        return (Question(moments["x"], text, ("A and B", "x and y", "Z"), 1,
                         "Every rank computes LayerNorm, dropout and the residual stream on all tokens."),)  # fmt: skip
    text = "An all-reduce is a reduce-scatter and then an all-gather. What does splitting the tokens cost in messages?"
    reason = (
        "The all-reduce's two halves move apart: the reduce-scatter stays at the exit, the all-gather comes before the "
        "next product. The bytes are the same, or fewer if what is gathered is already rounded to float32, as here."
    )
    gain = "Every rank has a copy of γ, but other tokens. What must happen to its gradient?"
    why = "The gradient of γ sums over all tokens, and each rank has some. Nobody notices if the sum is forgotten."
    return (
        Question(moments["g"], text, ("twice the bytes", "about the same", "none at all"), 1, reason),
        Question(moments["sum of gains"], gain, ("nothing", "it is summed over the ranks", "it is gathered"), 1, why),
    )


def cues(moments: Mapping[str, int], sequence: bool, gains: bool) -> tuple[Cue, ...]:
    if not gains:
        return (
            Cue(0, 1.5, "Let the class compute one number of Z and one of y. Then ask where to cut."),
            Cue(
                moments["dealt"],
                1,
                "Same picture for attention: a head's queries, keys and values are columns, its output rows.",
            ),
            Cue(moments["partial"], 1.5, "Point at the same cell on both ranks: two terms of one sum. Break it here."),
            Cue(moments["dy"], 2, "Backward mirrors forward: g copies, f sums. The weights' gradients never travel."),
        )
    if not sequence:
        return (Cue(0, 1, "Set it beside the scene with sp: what is grey here is on every rank."),)
    return (
        Cue(0, 1, "The same MLP. Outside f and g nothing mixes tokens, so they can be split."),
        Cue(moments["f"], 1, "The all-gather: watch the rows fly. Inside, all is as in tp."),
        Cue(moments["g"], 1, "Sum and split in one: each rank receives only its tokens."),
        Cue(
            moments["own gains"],
            1.5,
            "The price: parameters used on split tokens need their gradients summed. Break it here.",
        ),
    )


def lane_questions(layers: int, sequence: bool, gpus: bool) -> tuple[Question, ...]:
    """What to ask about the lanes of a step: measured ones, or those on the cluster's clock."""
    if gpus:
        return (
            Question(
                1, "dp hides its all-reduces under backward. Can these be hidden as well?",
                ("yes, as in dp", "no: compute waits for the result"), 1,
                "The next product needs the sum. So tensor parallelism wants the fastest links, those inside a node.",
            ),
        )  # fmt: skip
    count = 4 * layers + 1
    choices = (f"L = {layers}", f"2 L = {2 * layers}", f"4 L = {4 * layers}", f"4 L + 1 = {count}")
    where = "two per block in forward, two in backward, and one for the gradient of the head's input"
    return (Question(1, f"At how many places in this step are the ranks' {'terms' if sequence else 'arrays'} summed?",
                     choices, 3, f"{where[0].upper()}{where[1:]}."),)  # fmt: skip


def lane_cues(gpus: bool) -> tuple[Cue, ...]:
    if gpus:
        return (
            Cue(0, 2, "Turn the link down to 0.1 GB/s, then the chip up: when is more than half of the step idle?"),
        )
    return (Cue(0, 1.5, "The evidence: real ranks, this machine. The cores that compute also carry the messages."),)
