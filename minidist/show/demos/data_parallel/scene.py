"""What the animation of data parallelism says: lanes of one step, and how much communication backward hides."""

from minidist.analysis.steps import kind_of, step_length, traced_step
from minidist.analysis.time.overlap import hidden_share
from minidist.show.demos.data_parallel.bug import DROPPED_BUCKET
from minidist.show.demos.shared import lanes
from minidist.show.demos.shared.lanes import MS, Bar, Lanes
from minidist.show.player.scene import Scene
from minidist.trace import Event
from minidist.train.result import Run

FRAMES = 32
TITLES = {
    "overlapped": "Each bucket is sent as soon as it is full, while backward continues",
    "bucketed": "All buckets are sent after backward",
    "naive": "One all-reduce per parameter, after backward",
}


def of_run(name: str, run: Run, elements: int, longest: int, proof: str) -> Scene:
    step = traced_step([rank.log for rank in run.ranks])
    end = step_length(step)
    picture = Lanes([_bars(log) for log in step], end, longest)
    drops = [event.start for log in step for event in log if lanes.is_dropped(event)]
    sent = sum(row["bytes_sent"] for rank in run.ranks for row in rank.collectives)
    ranks = len(step)
    frames, first_wrong = [], None
    for number in range(FRAMES):
        time = end * number // (FRAMES - 1)
        dropping = first_wrong is None and any(drop <= time for drop in drops)
        if dropping:
            first_wrong = number
        facts = _facts(step[0], time, end) | {
            "sent per step, all ranks": f"{sent:,} B",
            "formula 2 (N−1) 8 (P+1), incl. loss": f"{2 * (ranks - 1) * 8 * (elements + 1):,} B",
        }
        frames.append(picture.frame(time, _note(step[0], time, end, dropping), facts))
    share = hidden_share(step[0])
    words = f"The step took {end / MS:.1f} ms; backward hid {share:.0%} of rank 0's communication."
    if share:
        words += (
            " (Here messages use the same cores as compute, so hiding them gains little. A GPU's network does not.)"
        )
    if drops:
        words = f"The ranks end with {len({rank.fingerprint for rank in run.ranks})} different sets of weights."
    sizes = f"N = {ranks} ranks, width {run.config.width}, P = {elements:,} weights"
    return Scene(
        name,
        f"{TITLES.get(name, TITLES['overlapped'])} ({sizes})",
        tuple(frames),
        picture.height,
        _key(drops),
        f"{words} {proof}" if not drops else f"{proof} {words}",
        first_wrong,
        (FRAMES // 3, 2 * FRAMES // 3, FRAMES - 1),
    )


def _key(drops: list) -> dict[str, str]:
    names = {
        "forward": "forward",
        "backward": "backward",
        "optimizer": "optimizer",
        "wait": "waiting",
        "communication": "all-reduce, exposed",
        "hidden": "all-reduce, hidden under backward",
    }
    key = {words: lanes.COLOURS[kind] for kind, words in names.items()}
    return key | ({"never sent": "wrong"} if drops else {})


def _bars(log: list[Event]) -> list[Bar]:
    """One rank's step. Collectives are numbered; the part under backward has a different colour."""
    backward = next(event for event in log if kind_of(event) == "backward")
    bars = [lanes.bar(e, kind, kind) for e in log if (kind := kind_of(e)) in ("forward", "backward")]
    bars.append(lanes.update(log))
    bars += [lanes.bar(event, "wait", "wait") for event in log if event.name == "sync gradients"]
    for number, event in enumerate(_all_reduces(log), 1):
        if lanes.is_dropped(event):
            bars.append(lanes.missing(event, str(number)))
            continue
        middle = min(max(event.start, backward.end), event.end)  # all-reduces begin during or after backward
        if event.start < middle:
            bars.append(lanes.bar(event, "hidden", str(number), end=middle))
        if middle < event.end:
            bars.append(lanes.bar(event, "communication", str(number), start=middle))
    return [*bars, lanes.bar(lanes.communications(log)[-1], "communication", "loss")]


def _all_reduces(log: list[Event]) -> list[Event]:
    """The all-reduces of gradients: all but the last, which is the loss's."""
    return lanes.communications(log)[:-1]


def _facts(log: list[Event], time: int, end: int) -> dict[str, str]:
    """The facts of rank 0 so far."""
    past = [Event(e.name, e.track, e.start, min(e.end, time)) for e in log if e.start < time]
    spent = sum(event.end - event.start for event in past if event.track == "communication")
    share = hidden_share(past)
    sums = [event for event in _all_reduces(log) if not lanes.is_dropped(event)]
    return {
        "time": f"{time / MS:.1f} of {end / MS:.1f} ms",
        "all-reduces ended": f"{sum(event.end <= time for event in sums)} of {len(sums)}",
        "communication so far": f"{spent / MS:.1f} ms",
        "of which hidden": f"{share * spent / MS:.1f} ms ({share:.0%})",
    }


def _note(log: list[Event], time: int, end: int, dropping: bool) -> str:
    """What rank 0 does and, once an all-reduce is dropped, what that causes."""
    if dropping:
        return f"Bucket {DROPPED_BUCKET} is full, but it is never sent: each rank keeps its own gradients."
    dropped = any(lanes.is_dropped(event) and event.start <= time for event in log)
    if time >= end:
        have = "no longer have" if dropped else "still have"
        return f"The step has ended, and all ranks {have} the same weights."
    optimizer = next(event for event in log if kind_of(event) == "optimizer")
    if time >= optimizer.end:
        return "The ranks sum their losses."
    if time >= optimizer.start:
        own = f", those of bucket {DROPPED_BUCKET} with its own gradients" if dropped else ""
        return f"Every rank updates all of its weights{own}."
    forward, backward = (next(e for e in log if kind_of(e) == kind) for kind in ("forward", "backward"))
    numbered = enumerate(_all_reduces(log), 1)
    number = next((number for number, event in numbered if event.start <= time < event.end), None)
    if time < forward.start:
        return "Every rank zeroes its gradients and reads its own samples."
    if time < backward.start:
        return "Forward: every rank processes its own samples, and there is nothing to send."
    if time < backward.end:
        if number:
            return f"All-reduce {number} sums gradients over the ranks while backward continues with earlier layers."
        return "Backward completes gradients from the last layer to the first."
    return "Backward is done, and all ranks wait for " + (f"all-reduce {number}." if number else "the sums.")
