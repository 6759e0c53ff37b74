"""What the audience predicts of each schedule, and what the speaker says."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from minidist.show.demos.pipeline.kinds import BROKEN, KINDS, Kind
from minidist.show.player.scene import Cue, Question

SAYS = {  # of each schedule: at its beginning, and at its end
    "naive": (
        "Each rank has its share of the layers. Ask who works at this moment.",
        "The grey is what we pay: without a pipeline, one GPU works at a time.",
    ),
    "GPipe": (
        "Cut the batch into micro-batches; click one to see its way through the ranks.",
        "More micro-batches shrink the bubble, but all of them are stored, beyond the line that marks the room.",
    ),
    "1F1B": (
        "The same work in another order. Watch the stacks, not the bubble.",
        "As long as GPipe, but no rank stores more micro-batches than there are ranks, however many there are.",
    ),
    "interleaved": (
        "Each rank has two stages of half the layers: pale cells are the second one.",
        "Half the bubble, for more messages and a taller stack. The scene GPUs shows what the messages cost.",
    ),
    "ZB-H1": (
        "Backward in two halves: other ranks wait only for the gradient of the inputs.",
        "The weights' half fills slots that were idle, and the store is that of 1F1B.",
    ),
}


@dataclass(frozen=True)
class Lecture:
    """One schedule in a lecture.

    Args:
        times: times of the scene's frames.
    """

    kind: Kind
    ranks: int
    micro_batches: int
    times: Sequence[float]

    def questions(self) -> tuple[Question, ...]:
        return ASKED[self.kind.name](self)

    def cues(self) -> tuple[Cue, ...]:
        first, last = SAYS[self.kind.name]
        return Cue(0, 2, first), Cue(len(self.times) - 1, 2, last)

    def after(self, time: float) -> int:
        """The first frame that shows what happens after a time; never the first of all."""
        return min(max(1, bisect_right(self.times, time)), len(self.times) - 1)

    def length(self, kind: Kind) -> float:
        return kind.length(self.ranks, self.micro_batches)

    def most_stored(self, kind: Kind) -> float:
        return kind.most_stored(self.ranks, self.micro_batches)


def _naive(told: Lecture) -> tuple[Question, ...]:
    p, m = told.ranks, told.micro_batches
    text = f"The first micro-batch takes {3 * p} slots. How many do {m} take?"
    choices = f"{3 * m}", f"{3 * (m + p - 1)}", f"{3 * m * p}"
    reason = f"One at a time: {m} × {3 * p}. At any moment one of {p} ranks works."
    return (Question(told.after(3 * p), text, choices, 2, reason),)


def _gpipe(told: Lecture) -> tuple[Question, ...]:
    p, m = told.ranks, told.micro_batches
    text = f"How many micro-batches will rank 0 store when its {m} forwards are done?"
    reason = "No backward has begun by then, so it can free nothing."
    store = Question(told.after(p), text, ("1", f"{m // 2}", f"{m}"), 2, reason)
    text = f"How many slots will GPipe need for {m} micro-batches on {p} ranks?"
    choices = f"{3 * m}", f"{3 * (m + p - 1)}", f"{3 * m * p}"
    reason = f"The last rank works for 3 × {m} slots; before it {p - 1} forwards pass, and after it {p - 1} backwards."
    return store, Question(told.after(m + p - 1), text, choices, 1, reason)


def _one_f_one_b(told: Lecture) -> tuple[Question, ...]:
    last = told.ranks - 1
    text = f"Rank {last} has done its first forward. What does it do next?"
    reason = "A backward frees what its forward stored, so it goes first: one forward, one backward."
    turn = Question(told.after(told.ranks), text, ("forward 1", "backward 0", "it waits"), 1, reason)
    reason = f"Both take {told.length(told.kind):g} slots: in both, rank {last} never waits between its first and last."
    choices = "GPipe", "1F1B", "both take as long"
    return turn, Question(told.after(3 * told.micro_batches), "Which is shorter, GPipe or 1F1B?", choices, 2, reason)


def _interleaved(told: Lecture) -> tuple[Question, ...]:
    before, now = (told.length(kind) - 3 * told.micro_batches for kind in (BROKEN, told.kind))
    text = f"With 1F1B each rank is idle for {before:g} slots. For how many with two stages of half the size?"
    reason = "A stage of half the size passes its first output on in half the time."
    bubble = Question(told.after(told.ranks / 2), text, (f"{now:g}", f"{before:g}", f"{2 * before:g}"), 0, reason)
    before, now = told.most_stored(BROKEN), told.most_stored(told.kind)
    text = f"With 1F1B rank 0 stores at most {before:g} micro-batches. And here?"
    reason = f"More forwards run before the first backward comes back: the most is {now:g}."
    answer = (now > before) - (now < before) + 1
    return bubble, Question(told.after(told.ranks), text, ("fewer", "as many", "more"), answer, reason)


def _zero_bubble(told: Lecture) -> tuple[Question, ...]:
    text = "Nobody waits for the weights' half of a backward. When is it best done?"
    choices = "at once", "when the rank would be idle", "never"
    reason = (
        f"It fills the bubble: {told.length(told.kind):g} slots, not {told.length(BROKEN):g}. "
        "Done too late, it would fill the memory."
    )
    return (Question(told.after(told.ranks + 1), text, choices, 1, reason),)


ASKED = dict(
    zip((kind.name for kind in KINDS), (_naive, _gpipe, _one_f_one_b, _interleaved, _zero_bubble), strict=True)
)
