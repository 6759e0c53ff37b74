"""What a lecturer asks and says about compressed gradients; the answers are computed from what was run."""

import numpy as np

from minidist.show.demos.compress import curves_scene
from minidist.show.demos.compress.curves import WINDOW, Curves
from minidist.show.demos.compress.factors import RANK, Approximation
from minidist.show.demos.compress.run import STEPS, Recorded
from minidist.show.demos.shared.lectures import for_lecture
from minidist.show.player.scene import Cue, Question, Scene


def first_sent(shown: Recorded, number: int) -> int:
    """The step in which rank 0 first sends a number, counted from 1."""
    return 1 + next(step for step, message in enumerate(shown.drawn) if message.sent[number])


def top_k(scene: Scene, shown: Recorded, number: int) -> Scene:
    step, sent = first_sent(shown, number), int((shown.drawn[0].sent != 0).sum())
    choices = sorted({max(2, step - 2), step, min(STEPS, step + 2)})
    questions = [
        Question(
            2,
            f"{sent} numbers were sent. What becomes of the {shown.drawn[0].sent.size - sent} others?",
            ("they are dropped", "they are added to the next gradient", "they are sent in the next step"),
            1,
            "They become the residual, which is this rank's own. Whatever has grown largest by then is sent.",
        ),
        Question(
            2 * step - 1,
            f"Number {number}'s first gradient was too small to be sent. When is it sent?",
            ("never", *(f"in step {choice}" for choice in choices)),
            1 + choices.index(step),
            "Its residual grows by each gradient until it is among the largest: late, but nothing is lost.",
            asked=3,
        ),
    ]
    cues = [
        Cue(0, 1, "Read a column from the top: gradient and residual come in; what is sent and what stays go out."),
        Cue(
            1,
            2,
            f"An index has 4 bytes, a value 8. Follow number {number}: what stays below is above in the next step.",
        ),
        Cue(2 * step - 1, 1, "Each rank does so with its own gradient; all of them add up what all have sent."),
    ]
    return for_lecture(scene, questions, cues)


def ledger(scene: Scene, shown: Recorded, number: int) -> Scene:
    step = first_sent(shown, number)
    question = Question(
        step,
        f"In step {step}, number {number} is large enough. How much of it is sent?",
        ("the gradient of this step", f"the {step} gradients so far", "half of what waits"),
        1,
        "The message stands for gradient + residual: all that came in and was not sent before.",
    )
    cues = [
        Cue(1, 1, "The black line is the smallest number of the message: what is below it has to wait."),
        Cue(step, 2, "Both sums have the same bits in each step. So whatever is not sent is still there."),
    ]
    return for_lecture(scene, [question], cues)


def one_bit(scene: Scene) -> Scene:
    question = Question(
        1,
        "What can one bit for each number say?",
        ("which numbers are large", "the sign, with one size for all", "whether it changed"),
        1,
        "The size is the mean of all. Large numbers are sent too small, small ones too large: residuals correct both.",
    )
    cue = Cue(2, 2, "Small numbers leave a residual of the other sign, so the next sign is often the opposite one.")
    return for_lecture(scene, [question], [cue])


def low_rank(scene: Scene, shown: Approximation) -> Scene:
    side, last = len(shown.matrix), len(scene.frames) - 1
    questions = [
        Question(
            4,
            f"How many numbers are summed in place of {side * side}?",
            (f"{side}", f"{2 * RANK * side}", f"{side * side // 2}"),
            1,
            f"r (m + n) = {RANK} ({side} + {side}), in two all-reduces. Sums of factors are no larger on more ranks.",
            asked=1,
        ),
        Question(
            5,
            "The same M once more, from the last Q. What becomes of the error?",
            ("it stays", f"it falls towards the best of rank {RANK}", "it falls to 0"),
            1,
            "It is the power method: each round turns P towards the directions in which M is largest.",
        ),
    ]
    cues = [
        Cue(0, 1, "A row or a column that stands out is seen in P and Q, too: few directions make up most of M."),
        Cue(1, 2, "(M1 + M2) Q = M1 Q + M2 Q. So the ranks add thin products, and nobody needs the sum M."),
        Cue(last, 1, "In training M is another one in each step, but a similar one: Q follows it."),
    ]
    return for_lecture(scene, questions, cues)


def losses(scene: Scene, shown: Curves) -> Scene:
    last = len(scene.frames) - 1
    far = {name: curves_scene.above(loss, shown.full)[:, -1].mean() for name, loss in shown.compressed.items()}
    names = tuple(far)
    shares = ", ".join(f"{name} 1/{1 / share:.0f}" for name, share in shown.shares.items())
    question = Question(
        last,
        "Which method is closest to full gradients in the end?",
        names,
        int(np.argmin([far[name] for name in names])),
        f"Mind the bytes as well: {shares}.",
        asked=1,
    )
    cues = [
        Cue(0, 1, "Three seeds each: where curves of one colour lie apart, small differences say nothing."),
        Cue(1, 1, "Bytes on 2 ranks. Top-k and 1 bit gather all messages: more ranks, more bytes. Factors are summed."),
    ]
    return for_lecture(scene, [question], cues)


def broken_top_k(scene: Scene, shown: Recorded) -> Scene:
    count = shown.drawn[0].sent.size
    still = count - shown.moved()
    question = Question(
        len(scene.frames) - 1,
        f"What is left out is forgotten. How many of {count} biases have not moved after {STEPS} steps?",
        ("none", f"{still}", f"{count}"),
        1 if 0 < still < count else 0 if not still else 2,
        "Mostly the same few are the largest in each step. A weight that nobody sends has no gradient.",
        asked=1,
    )
    return for_lecture(scene, [question], [Cue(0, 2, "The loss falls all the same at first. Who would notice?")])


def broken_ledger(scene: Scene, number: int) -> Scene:
    question = Question(
        STEPS,
        f"When is number {number} sent now?",
        ("in the same step as before", "later", "never"),
        2,
        "Each gradient by itself is too small, and nothing adds them up.",
        asked=1,
    )
    return for_lecture(scene, [question], [Cue(0, 1, "Each step adds up. What is wrong happens between steps.")])


def broken_one_bit(scene: Scene) -> Scene:
    question = Question(
        2,
        "Every number is sent in each step. Is anything lost without feedback?",
        ("no", "yes"),
        1,
        "The sizes: a number of any size counts as one of the mean size, step after step.",
    )
    return for_lecture(
        scene,
        [question],
        [Cue(0, 1, "Signs alone can even lead uphill: Karimireddy et al. (2019) show simple examples.")],
    )


def broken_low_rank(scene: Scene) -> Scene:
    question = Question(
        scene.first_wrong,
        "Each round begins with random Q. What becomes of the error?",
        ("it falls as before", "it stays higher"),
        1,
        "Each is a first round, which one product with M leaves far from its largest directions: some less, some more.",
    )
    return for_lecture(scene, [question], [Cue(0, 1, "Nothing crashes, and training goes on: only the error tells.")])


def broken_losses(scene: Scene, shown: Curves) -> Scene:
    runs = sum(len(loss) for loss in shown.compressed.values())
    worse = curves_scene.worse(shown)
    question = Question(
        len(scene.frames) - 1,
        f"The same {runs} runs without feedback: in how many is the loss of the last {WINDOW} steps higher?",
        ("none", "some", "all"),
        0 if not worse else 1 if worse < runs else 2,
        f"In {worse} of {runs}. What is left out in every step is never learned.",
        asked=1,
    )
    return for_lecture(
        scene, [question], [Cue(0, 2, "The loss falls without feedback, too, only less far. Who would notice?")]
    )
