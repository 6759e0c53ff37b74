"""Data parallelism as GPUs would run it: what is on the network while backward continues, and who ends first."""

from collections.abc import Iterable, Mapping

from minidist.show.demos.data_parallel import lecture
from minidist.show.demos.data_parallel.bug import DROPPED_BUCKET
from minidist.show.demos.data_parallel.picture import Large
from minidist.show.demos.data_parallel.steps import Step
from minidist.show.demos.shared.lanes import COLOURS, MS
from minidist.show.player.scene import Cue, Frame, Question, Scene

TITLES = {
    "overlapped": "each bucket leaves as soon as it is full",
    "bucketed": "all buckets leave after backward",
    "naive": "one all-reduce per parameter, after backward",
}
KEY = {
    "forward": COLOURS["forward"],
    "backward": COLOURS["backward"],
    "optimizer": COLOURS["optimizer"],
    "waits": COLOURS["wait"],
    "all-reduce, hidden under backward": COLOURS["hidden"],
    "all-reduce, exposed": COLOURS["communication"],
}
CUES = {
    "overlapped": (
        "The upper lane computes, the lower one is the network; below, all three ways race. Backward goes from the "
        "last layer to the first, so the last layers' bucket is full first.",
        "Turn the link down to 0.1 GB/s, then up: when does backward hide nearly everything? What can it never hide?",
    ),
    "bucketed": (
        "The same messages and the same FLOPs; only the moment of sending differs. Show it beside overlapped.",
        "Ask what a faster chip changes: compute shrinks, the messages do not.",
    ),
    "naive": (
        "No buckets: a message for every bias. Turn the latency.",
        "Real frameworks choose buckets of some 25 MB: large enough for latency, small enough to overlap.",
    ),
}
SHOWN = 6  # moments at which naive's messages are shown


def key_of(steps: Iterable[Step]) -> dict[str, str]:
    """The meaning of the colours that there are."""
    steps = list(steps)
    hidden, dropped = (any(found) for found in ([step.hidden for step in steps], [step.dropped for step in steps]))
    key = {name: colour for name, colour in KEY.items() if hidden or colour != COLOURS["hidden"]}
    return key | ({"never sent": "wrong"} if dropped else {})


class Race:
    """Makes the scenes of one position of the dials.

    Args:
        steps: sync -> its step, correct or broken; all on one clock.
        longest: ns; the end of the axis.
        words: values of the dials, in words: link, latency, chip.
        ranks: how many there are.
        proofs: what the run of a sync proves, in a few words.
        details: the same in full.
        twins: whether these are the broken twins.
    """

    def __init__(
        self, steps: Mapping[str, Step], longest: int, words: tuple[str, ...], ranks: int, proofs: Mapping[str, str],
        details: Mapping[str, str], twins: bool = False,
    ) -> None:  # fmt: skip
        self.steps, self.longest, self.words, self.ranks = steps, longest, words, ranks
        self.proofs, self.details, self.twins = proofs, details, twins

    def scene(self, sync: str) -> Scene:
        step, picture = self.steps[sync], Large(self.steps, sync, self.longest)
        moments = self._moments(step)
        missing = "never sent" if sync == "naive" else f"bucket {DROPPED_BUCKET} is never sent"
        frames = [
            Frame(tuple(picture.shapes(time, missing)), note, _facts(step, time), time / MS) for time, note in moments
        ]
        times = [time for time, _ in moments]
        first_wrong = next((i for i, time in enumerate(times) for one in step.dropped if one.start <= time), None)
        ends = times.index(step.backward_ends)
        verdict = f"Backward hides {step.hidden:.0%} of the all-reduces. {self.proofs[sync]}"
        return Scene(
            (f"broken {sync}" if sync != "overlapped" else "broken") if self.twins else sync,
            f"As GPUs would: {TITLES[sync]} (rank 0 of {self.ranks})",
            tuple(frames),
            picture.height,
            key_of([step]),
            self.proofs[sync] if self.twins else verdict,
            first_wrong,
            (ends, len(frames) - 1),
            sync if self.twins else "",
            self.details[sync],
            () if self.twins else (self._question(sync, ends),),
            (Cue(0, 2, CUES[sync][0]), Cue(ends, 2, CUES[sync][1])),
        )

    def _question(self, sync: str, ends: int) -> Question:
        if sync == "overlapped":
            return lecture.hidden(self.steps[sync], ends, self.words[0])
        if sync == "bucketed":
            return lecture.after_backward(self.steps, ends + 1)
        return lecture.many_messages(self.steps, ends + 1, self.words[1])

    def _moments(self, step: Step) -> list[tuple[int, str]]:
        """(time, what happens then), in order."""
        forward, backward, optimizer = step.phases.values()
        moments = {
            0: f"Forward: rank 0 computes its own samples, as all {self.ranks} ranks do. There is nothing to send yet.",
            forward.end: "Backward begins with the last layer, so the last layer's gradients are complete first.",
        }
        for number, time in enumerate(step.full, 1):
            if backward.start < time < backward.end and (step.sync == "overlapped" or number <= DROPPED_BUCKET):
                moments[time] = _of_bucket(step, number, time)
        moments[backward.end] = _after_backward(step)
        if step.sync != "overlapped":
            each = -(-len(step.sent) // SHOWN)
            for number in range(each - 1, len(step.sums) - 1, each):
                if backward.end < step.sums[number].end < step.summed:
                    note = f"All-reduce {number + 1} of {len(step.sums)} is done; compute waits."
                    moments[step.sums[number].end] = note
        moments[optimizer.start] = "All sums are there: every rank updates all of its weights, with the same gradients."
        moments[step.end] = f"The step has ended, after {step.end / MS:.1f} ms: all ranks have the same weights."
        if step.dropped:
            of = f"those of bucket {DROPPED_BUCKET} with its own gradients"
            moments[optimizer.start] = f"Every rank updates its weights: {of}."
            moments[step.end] = "The step has ended without error or delay, and the ranks' weights differ: see weights."
        if self.longest > step.end:
            times = ", ".join(f"{one.sync} {one.end / MS:.1f} ms" for one in self.steps.values())
            moments[self.longest] = f"The same messages and FLOPs, with the same network: {times}."
            if step.dropped:
                what = f"the gradients of bucket {DROPPED_BUCKET} were never summed"
                moments[self.longest] = f"However they were sent, the ranks' weights differ: {what}."
        return sorted(moments.items())


def _of_bucket(step: Step, number: int, time: int) -> str:
    sends = f"Bucket {number} is full"
    if step.sync != "overlapped":
        return f"{sends}, and waits for the end of backward. The network is idle."
    if step.dropped and number == DROPPED_BUCKET:
        return f"{sends}, but it is never sent: each rank keeps its own gradients."
    busy = next((i for i, one in enumerate(step.sums, 1) if one.start < time < one.end), None)
    if busy:
        return f"{sends}; bucket {busy} is still on the network, under backward."
    return f"{sends} and leaves, while backward goes on with earlier layers."


def _after_backward(step: Step) -> str:
    if step.sync != "overlapped":
        if step.dropped:
            which = f"bucket {DROPPED_BUCKET}" if step.sync == "bucketed" else f"those of bucket {DROPPED_BUCKET}"
            return f"Backward has ended: now the gradients are sent, all but {which}."
        return "Backward has ended. Only now are the gradients sent, and compute has to wait."
    return "Backward has ended. What is on the network from now on is exposed: compute waits for it."


def _facts(step: Step, time: int) -> dict[str, str]:
    """Rank 0's, so far."""
    past = step.past(time)
    share, spent = past.hidden, past.communication
    return {
        "time": f"{min(time, step.end) / MS:.1f} of {step.end / MS:.1f} ms",
        "all-reduces ended": f"{sum(event.end <= time for event in step.sent)} of {len(step.sent)}",
        "on the network": f"{spent / MS:.1f} ms",
        "hidden": f"{share * spent / MS:.1f} ms ({share:.0%})",
    }
