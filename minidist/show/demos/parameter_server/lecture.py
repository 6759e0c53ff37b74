"""What a lecturer asks and says about parameter servers; the answers are computed from what was run."""

from minidist.show.demos.parameter_server.evidence import TARGET, Runs
from minidist.show.demos.parameter_server.recorded import Recorded
from minidist.show.demos.parameter_server.run import STALENESS
from minidist.show.demos.parameter_server.shards import Shards
from minidist.show.demos.shared.lectures import for_lecture, frame_where
from minidist.show.player.scene import Cue, Question, Scene


def straggler_lands(scene: Scene, run: Recorded) -> int:
    """The frame in which the straggler's first gradient is there."""
    return frame_where(scene, lambda frame: frame.note.startswith(f"Worker {run.workers - 1}'s gradient"))


def synchronous(scene: Scene, run: Recorded) -> Scene:
    updated = frame_where(scene, lambda frame: "One update" in frame.note)
    first = run.landings[0]
    question = Question(
        updated,
        f"Worker {first.worker} is done after {first.end:.1f} s. When does it begin its next step?",
        ("at once", "when it has the next version, made of all gradients", "when half of the others are done"),
        1,
        f"After {run.made[1]:.1f} s, with the slowest worker: all gradients of a step belong to the same weights.",
        asked=min(2, updated),
    )
    cues = [
        Cue(0, 2, "A colour is a version of the weights. The server's changes with every update."),
        Cue(updated, 1, "Grey is what the straggler costs. Next scene: nobody waits."),
    ]
    return for_lecture(scene, [question], cues)


def asynchronous(scene: Scene, run: Recorded) -> Scene:
    lands = straggler_lands(scene, run)
    landing = next(one for one in run.landings if one.worker == run.workers - 1)
    choices = sorted({0, 1, landing.staleness, 2 * landing.staleness + 1})
    question = Question(
        lands,
        f"Worker {landing.worker} pulled version {landing.read} and computed ever since. How stale is its gradient?",
        tuple(map(str, choices)),
        choices.index(landing.staleness),
        "Each update in between is one version. Count them above the server's lane.",
    )
    cues = [
        Cue(0, 2, "Watch one worker: it computes with the colour that it pulled, while the server moves on."),
        Cue(lands, 2, "A bar's end has the colour that its gradient met. Far apart: stale."),
    ]
    return for_lecture(scene, [question], cues)


def bounded(scene: Scene, run: Recorded) -> Scene:
    waits = frame_where(scene, lambda frame: "has to wait" in frame.note)
    one = run.landings[waits - 1]
    question = Question(
        waits,
        f"Worker {one.worker} is {one.step + 1 - _ended(run, one.end)} steps ahead, and the bound is {STALENESS}. "
        "Does it begin its next step?",
        ("yes, at once", "no: it waits for the slowest"),
        1,
        f"It may begin a step when it is at most {STALENESS} steps ahead.",
    )
    cues = [
        Cue(0, 2, "Stale synchronous parallel, Ho et al., 2013: between both extremes."),
        Cue(waits, 1, "The bound lets workers run ahead once. Then the slowest sets the pace again."),
    ]
    return for_lecture(scene, [question], cues)


def _ended(run: Recorded, now: float) -> int:
    """The steps that the slowest worker has ended."""
    return min(len({one.step for one in run.by(now) if one.worker == worker}) for worker in range(run.workers))


def evidence(scene: Scene, runs: Runs) -> Scene:
    last = len(scene.frames) - 1
    slow, fast = (max(run.reaches(TARGET) for run in runs[kind]) for kind in ("synchronous", "asynchronous"))
    question = Question(
        last,
        f"Fresh gradients or many gradients: which runs reach a loss of {TARGET:.1f} first?",
        ("synchronous", "both about the same", "asynchronous"),
        0 if slow < 0.9 * fast else 2 if fast < 0.9 * slow else 1,
        f"After at most {fast:.0f} s without waiting and {slow:.0f} s with it: here many gradients win.",
        asked=1,
    )
    cues = [
        Cue(0, 2, "Staleness to the left, loss to the right, on the same clock."),
        Cue(
            last,
            3,
            "Why are large runs synchronous? Equal GPUs straggle little, staleness grows with N, and runs must repeat.",
        ),
    ]
    return for_lecture(scene, [question], cues)


def shards(scene: Scene, shown: Shards) -> Scene:
    third = shown.order[2]
    question = Question(
        3,
        f"Which server gets {third}, {shown.sizes[third]:,} elements?",
        ("server 0", "server 1"),
        shown.server_of(third),
        "The one that holds fewer elements so far.",
    )
    return for_lecture(scene, [question], [Cue(0, 2, "One server's network would carry the pushes of all workers.")])


def broken(scene: Scene, run: Recorded) -> Scene:
    question = Question(
        scene.first_wrong,
        f"The acknowledgement is lost, and worker {run.workers - 1} sends its gradient again. Who notices?",
        ("the server refuses it", "the loss jumps", "nobody"),
        2,
        "The copy is a gradient like any other. It can be known only by its worker and step.",
    )
    cue = Cue(0, 2, 'Li et al., 2014: "Due to delays, failures, and lost acknowledgements N may send messages twice."')
    return for_lecture(scene, [question], [cue])


OF_KIND = {"synchronous": synchronous, "asynchronous": asynchronous, "bounded": bounded}
