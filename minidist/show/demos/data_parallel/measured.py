"""The measured lanes: what overlap gains where the cores that compute carry the messages too."""

from collections.abc import Mapping

from minidist.comm.transports.cores import cores
from minidist.show.demos.data_parallel import lecture
from minidist.show.demos.data_parallel.bug import DROPPED_BUCKET
from minidist.show.demos.data_parallel.picture import Rows
from minidist.show.demos.data_parallel.scene import key_of
from minidist.show.demos.data_parallel.steps import Step
from minidist.show.demos.shared.lanes import MS
from minidist.show.player.scene import Cue, Frame, Scene

NAME = "measured"
FRAMES = 12
CUE = (
    "The evidence: real processes, and real messages between them. But here cores do the network's work. Ask which of "
    "the two pictures a GPU cluster resembles, and why."
)


def scene(
    steps: Mapping[str, Step], on_gpus: Mapping[str, Step], longest: int, verdict: str, details: str, twin: str = ""
) -> Scene:
    """Rank 0's lanes for each sync, on one axis.

    Args:
        on_gpus: the same steps as GPUs would run them, to compare with.
        longest: ns; the end of the axis.
        twin: the name of the correct scene, if these are broken.
    """
    picture = Rows(steps, longest)
    times = [longest * number // (FRAMES - 1) for number in range(FRAMES)]
    frames = [
        Frame(tuple(picture.shapes(time)), _note(steps, time, longest), _facts(steps, time), time / MS)
        for time in times
    ]
    drops = [one.start for step in steps.values() for one in step.dropped]
    first_wrong = next((i for i, time in enumerate(times) if drops and min(drops) <= time), None)
    return Scene(
        f"broken {twin}" if twin else NAME,
        f"As measured here: {cores()} cores compute and carry the messages (rank 0)",
        tuple(frames),
        picture.height,
        key_of(steps.values()),
        verdict,
        first_wrong,
        (FRAMES // 2, FRAMES - 1),
        twin,
        details,
        () if twin else (lecture.gains_here(steps, on_gpus, FRAMES - 1, cores()),),
        (Cue(0, 3, CUE),),
    )


def _note(steps: Mapping[str, Step], time: int, longest: int) -> str:
    if time >= longest:
        ends = ", ".join(f"{step.sync} {step.end / MS:.1f} ms" for step in steps.values())
        return f"As measured here: {ends}."
    if any(one.start <= time for one in steps["overlapped"].dropped):
        return f"Bucket {DROPPED_BUCKET} of overlapped is never sent, and the step takes no longer for it."
    if any(step.backward_ends > time and step.past(time).communication for step in steps.values()):
        return "In overlapped, messages are carried during backward, by the cores that compute it."
    if time < min(step.phases["forward"].end for step in steps.values()):
        return "Three real runs, each the fastest of several. Forward is the same in all."
    return "Backward is done where compute waits. What is left are messages and the optimizer's step."


def _facts(steps: Mapping[str, Step], time: int) -> dict[str, str]:
    found = {"time": f"{time / MS:.1f} ms"}
    for sync, step in steps.items():
        past = step.past(time)
        found[sync] = f"{past.hidden * past.communication / MS:.1f} of {past.communication / MS:.1f} ms hidden"
    return found
