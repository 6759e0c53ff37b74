"""What the animations of tensor and sequence parallelism say: lanes of one step, and how long compute waits."""

from collections.abc import Sequence

from minidist.analysis.replay import Replayed
from minidist.analysis.steps import kind_of, step_length, traced_step
from minidist.show.demos.shared import gpus, lanes
from minidist.show.demos.shared.lanes import MS, Bar, Lanes
from minidist.show.demos.tensor_parallel import halves, lecture
from minidist.show.demos.tensor_parallel.halves import Part
from minidist.show.player.scene import Scene
from minidist.trace import Event
from minidist.train.result import Run

TITLES = {0: "Each half of a block ends with an all-reduce", 1: "A reduce-scatter and an all-gather between halves"}
SENT = "sent for them, all ranks"
BRIEFLY = ("time", "compute idle", SENT)  # the facts on the cluster's clock, where there is a scene for each dial
SYMMETRIC = 2  # ranks shown there: they all compute the same amount at the same time


def step_of(run: Run) -> list[list[Event]]:
    return traced_step([rank.log for rank in run.ranks])


def _bars(log: list[Event], run: Run) -> list[Bar]:
    """One rank's step: whenever it communicates, its compute is idle."""
    parts = halves.parts(log, run.config, run.layout)
    inside = [part.event for part in parts]
    outside = [event for event in lanes.communications(log) if event not in inside]
    bars = [lanes.update(log), *(lanes.bar(event, "communication") for event in outside)]
    for part in parts:
        if part.kind == "compute":
            half = "attn" if part.place.startswith("attention") else part.place.split()[0]
            bars.append(lanes.bar(part.event, part.phase, half, half[0].upper()))
            continue
        bars.append(lanes.bar(part.event, "wait"))
        if lanes.is_dropped(part.event):
            bars.append(lanes.missing(part.event, "g" if part.kind else ""))
        elif part.kind == "all-reduce":
            bars.append(lanes.bar(part.event, "communication", "g" if part.phase == "forward" else "f"))
        else:
            bars.append(lanes.bar(part.event, part.kind or "communication"))
    return bars


def of_run(name: str, run: Run, longest: int, proof: str, logs: Sequence[list] | None = None, **more) -> Scene:
    """The lanes of a run's last step.

    Args:
        longest: the longest of the steps to compare, in ns.
        proof: sentence saying that the run matches one process, or where it diverges.
        logs: logs of the same run on another clock; its own by default.
        more: further fields of the Scene.
    """
    step = step_of(run) if logs is None else traced_step(logs)
    config, ranks = run.config, len(run.ranks)
    end, parts = step_length(step), halves.parts(step[0], config, run.layout)
    shown = step if logs is None else step[:SYMMETRIC]
    picture = Lanes([_bars(log, run) for log in shown], end, longest)
    drops = [event.end for event in step[0] if lanes.is_dropped(event)]
    moments = [(0, "Every rank has the same samples, and its own heads, hidden units and part of the vocabulary.")]
    missing = ""  # what was skipped since the last moment: it is told at the next, which the right run has too
    for part in parts:
        if part.kind not in ("", "compute"):
            moments.append((part.event.end, missing or halves.sentence(part, ranks)))
            missing = ""
        elif lanes.is_dropped(part.event):
            missing = halves.sentence(part, ranks)
    optimizer = next(event for event in step[0] if kind_of(event) == "optimizer")
    moments.append(
        (optimizer.start, "Backward is done: each rank has the gradients of its own weights. No sums are left.")
    )
    updated = "weights with wrong gradients" if drops else "own weights"
    moments.append((end, f"The step has ended: each rank has updated its {updated}."))
    frames, first_wrong = [], None
    for number, (time, note) in enumerate(moments):
        if first_wrong is None and any(drop <= time for drop in drops):
            first_wrong = number
        facts = _facts(run, parts, time, end)
        if logs is not None:
            facts = {called: facts[called] for called in BRIEFLY}
        frames.append(picture.frame(time, note, facts))
    idle = _idle(parts) / end
    verdict = f"Rank 0's compute was idle for {idle:.0%} of the step{', and its gradients are wrong' if drops else ''}."
    of_all = f"{ranks} ranks" if len(shown) == ranks else f"{len(shown)} of {ranks} ranks, which do the same"
    title = f"{TITLES[run.layout.sp]} ({of_all}; {config.layers} blocks)"
    third = len(frames) // 3
    stills = tuple(sorted({third, 2 * third if first_wrong is None else first_wrong, len(frames) - 1}))
    asked = lecture.lane_questions(config.layers, bool(run.layout.sp), logs is not None)
    cues = lecture.lane_cues(logs is not None)
    return Scene(
        name, title, tuple(frames), picture.height, _key(run, drops), verdict, first_wrong, stills,
        details=proof, questions=asked, cues=cues, **more,
    )  # fmt: skip


def on_gpus(name: str, run: Run, proof: str, **more) -> Scene:
    """Show the step on the cluster's clock, with dials; each of their positions has a time axis of its own."""

    def scene_of(replayed: Replayed) -> Scene:
        longest = step_length(traced_step(replayed.logs))
        return of_run(name, run, longest, proof, replayed.logs, **more)

    return gpus.at_start(gpus.variants_of([rank.log for rank in run.ranks], scene_of))


def _key(run: Run, drops: list) -> dict[str, str]:
    names = {"forward": "forward", "backward": "backward", "optimizer": "optimizer", "wait": "compute idle"}
    names |= {"communication": "all-reduce"} | ({kind: kind for kind in halves.calls(1, True)} if run.layout.sp else {})
    return {words: lanes.COLOURS[kind] for kind, words in names.items()} | ({"skipped": "wrong"} if drops else {})


def _idle(parts: list[Part]) -> int:
    """How long compute was idle, in ns."""
    return sum(part.event.end - part.event.start for part in parts if part.kind != "compute")


def _facts(run: Run, parts: list[Part], time: int, end: int) -> dict[str, str]:
    config, sequence = run.config, bool(run.layout.sp)
    past = [part for part in parts if part.event.end <= time and not lanes.is_dropped(part.event)]
    facts = {"time": f"{time / MS:.1f} of {end / MS:.1f} ms"}
    for called, count in halves.calls(config.layers, sequence).items():
        formula = f"formula {'4 L + 2' if called == 'all-gather' else '4 L + 1'}"
        facts[f"{called}s of activations"] = f"{sum(part.kind == called for part in past)} ({formula}: {count})"
    elements = config.micro_batch * config.context * config.width
    rows = [row for rank in run.ranks for row in rank.collectives if row["elements"] == elements]
    sent = sum(row["bytes_sent"] for row in rows if (row["name"], row["dtype"]) != ("all_reduce", "float32"))
    calls = "(3 L + 1)" if sequence else "(4 L + 1)"  # 4 (4 L + 2) + 8 (4 L + 1) or 16 (4 L + 1) bytes per number
    return facts | {
        "compute idle": f"{_idle(past) / MS:.1f} ms",
        SENT: f"{sent:,} B",
        f"formula 16 (N−1) {calls} B T C": f"{halves.nbytes(config, len(run.ranks), sequence):,} B",
        "activations at peak": f"{run.ranks[0].memory['activations'] / 2**10:,.0f} KiB",
    }
