"""What a lecturer asks and says about tiled attention."""

from minidist.show.demos.shared.lectures import for_lecture, frame_where
from minidist.show.player.scene import Cue, Question, Scene

SUMS = (
    "nothing",
    "they are multiplied by exp(old maximum − new maximum)",
    "they are computed again from the first key on",
)
WHY = "Each term was exp(score − old maximum). One factor turns their sum into one of exp(score − new maximum)."


def causal(scene: Scene, standard: tuple[int, int], traffic: tuple[int, int]) -> Scene:
    """Add questions to the causal scene; ``standard`` and ``traffic`` are (reads, writes) of the two forms."""
    grows = frame_where(scene, lambda frame: "the maximum grows" in frame.note)
    fewer = sum(standard) / sum(traffic)
    saved = Question(
        len(scene.frames) - 1,
        "How many elements does the standard form read and write, beside this one?",
        ("as many", f"{fewer:.1f} times as many", f"{4 * fewer:.0f} times as many"),
        1,
        "It writes all scores to slow memory and reads them again, twice. Here no score ever leaves the fast memory.",
        asked=1,
    )
    cues = [
        Cue(0, 2, "The fast memory is an SM's shared memory: some 200 KB. All scores never fit."),
        Cue(grows, 3, "The online softmax: this is the whole trick."),
    ]
    sums = Question(grows, "A larger maximum arrives. What happens to the sums?", SUMS, 1, WHY)
    return for_lecture(scene, [sums, saved], cues)


def no_mask(scene: Scene) -> Scene:
    tiles = int(scene.frames[-1].facts["tile"].split()[-1])
    side = round(tiles**0.5)
    question = Question(
        len(scene.frames) - 1,
        "Without a mask, how many tiles are computed?",
        (f"{side}", f"{side * (side + 1) // 2}", f"{tiles}"),
        2,
        "Every query sees every key, so no tile can be skipped: about twice the work of causal attention.",
        asked=1,
    )
    return for_lecture(scene, [question], [Cue(0, 1, "The same without a mask: no tile is skipped.")])


def standard(scene: Scene) -> Scene:
    question = Question(
        len(scene.frames) - 1,
        "How often does a score, or its softmax, cross between the memories?",
        ("never", "twice", "4 times"),
        2,
        "A score is written and read again, and so is its softmax: 4N² in all, next to 4Nd for Q, K, V and O.",
        asked=1,
    )
    cue = Cue(0, 2, "Three passes over all scores. Count what crosses to slow memory.")
    return for_lecture(scene, [question], [cue])


def broken(scene: Scene) -> Scene:
    question = Question(
        scene.first_wrong,
        "A larger maximum arrives, and the earlier sums stay as they are. Which rows become wrong?",
        ("none", "those whose maximum grew", "all"),
        1,
        "Where the maximum grew, old and new terms have different scales. Other rows do not notice.",
    )
    return for_lecture(scene, [question], [Cue(0, 2, "No error, no NaN: the numbers are only wrong.")])
