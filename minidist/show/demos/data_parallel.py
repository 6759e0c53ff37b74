"""Data parallelism: how much of the all-reduces a rank's own backward hides, and what a dropped one does."""

from dataclasses import replace
from functools import partial

from minidist.analysis.overlap import hidden_share
from minidist.analysis.steps import kind_of, step_length, traced_step
from minidist.nn.gpt import GPT
from minidist.parallel.data import fill_buckets
from minidist.show.demos import lanes
from minidist.show.demos.broken_buckets import DROPPED_BUCKET, drops_a_bucket
from minidist.show.demos.lanes import MS, Bar, Lanes
from minidist.show.demos.runs import fastest, told, warm_ranks
from minidist.show.demos.widths import check_width, heads_of
from minidist.show.player.animation import Animation
from minidist.show.player.scene import Scene
from minidist.trace import Event
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import Run

BUCKETS = 6  # about so many
FRAMES = 32
TITLES = {
    "overlapped": "A bucket is sent as soon as it is full, while backward goes on",
    "bucketed": "All buckets are sent when backward is over",
    "naive": "An all-reduce for each parameter, when backward is over",
}


def animation(ranks: int, size: int, seed: int) -> Animation:
    """Train a model of width ``size`` on so many ranks, in three ways and with the sum of one bucket dropped.

    Raises:
        ValueError: for a width at which there is nothing to be seen, or too much to wait for.
    """
    config = config_of(ranks, size, seed)
    parameters = GPT(config.model).parameters()[::-1]  # as backward reaches them
    elements = sum(parameter.size for parameter in parameters)
    layouts = layouts_of(ranks, elements)
    layout = layouts["overlapped"]
    dropped = fill_buckets(parameters, elements / BUCKETS)[DROPPED_BUCKET - 1]
    with warm_ranks() as warm:
        runs = {name: fastest(warm, config, layout) for name, layout in layouts.items()}
        proofs = {name: warm.prove(config, run) for name, run in runs.items()}
        broken = fastest(warm, config, layout, drops_a_bucket)
        parting = warm.parting(config, broken, drops_a_bucket)
    longest = max(step_length(traced_step([rank.log for rank in run.ranks])) for run in (*runs.values(), broken))
    scene = partial(_scene, elements=elements, longest=longest)
    others = f" and {len(dropped) - 1} more" if len(dropped) > 1 else ""
    bug = f"bucket {DROPPED_BUCKET} is never sent ({dropped[0].name}{others})"
    return Animation(
        "dp",
        "Data parallelism: all-reduces under backward",
        tuple(scene(name, run, proof=proofs[name]) for name, run in runs.items()),
        scene("broken", broken, proof=told(parting)),
        bug,
        [rank.log for rank in runs["overlapped"].ranks],
    )


def config_of(ranks: int, size: int, seed: int) -> TrainConfig:
    check_width(size, *lanes.WIDTHS)
    return TrainConfig(
        layers=4,
        heads=heads_of(size),
        width=size,
        context=32,
        global_batch=4 * ranks,  # one micro-batch on each rank: all of backward is there to hide in
        micro_batch=4,
        steps=3,
        seed=seed,
        clip=100.0,  # so high that a wrong gradient changes no other parameter
    )


def layouts_of(ranks: int, elements: int) -> dict[str, Layout]:
    """By the scene's name, for a model of so many elements."""
    ring = Layout(dp=ranks, algorithm="ring")
    bucketed = replace(ring, sync="bucketed", bucket_mb=8 * elements / BUCKETS / 2**20)  # of float64 gradients
    return {
        "overlapped": replace(bucketed, sync="overlapped"),
        "bucketed": bucketed,
        "naive": replace(ring, sync="naive"),
    }


def _scene(name: str, run: Run, elements: int, longest: int, proof: str) -> Scene:
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
            "sent in a step, all ranks": f"{sent:,} B",
            "formula 2 (N−1) 8 (P+1), with the loss": f"{2 * (ranks - 1) * 8 * (elements + 1):,} B",
        }
        frames.append(picture.frame(time, _note(step[0], time, end, dropping), facts))
    share = hidden_share(step[0])
    words = f"The step took {end / MS:.1f} ms; of rank 0's communication {share:.0%} lay under backward."
    if share:
        words += (
            " (Here messages take the cores that compute, so that hiding them gains little. A GPU's network does not.)"
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
        "communication": "all-reduce, waited for",
        "hidden": "all-reduce under backward",
    }
    key = {words: lanes.COLOURS[kind] for kind, words in names.items()}
    return key | ({"never sent": "wrong"} if drops else {})


def _bars(log: list[Event]) -> list[Bar]:
    """One rank's step. Collectives are numbered; what of them lies under backward has another colour."""
    backward = next(event for event in log if kind_of(event) == "backward")
    bars = [lanes.bar(e, kind, kind) for e in log if (kind := kind_of(e)) in ("forward", "backward")]
    bars.append(lanes.update(log))
    bars += [lanes.bar(event, "wait", "wait") for event in log if event.name == "sync gradients"]
    for number, event in enumerate(_all_reduces(log), 1):
        if lanes.is_dropped(event):
            bars.append(lanes.missing(event, str(number)))
            continue
        middle = min(max(event.start, backward.end), event.end)  # all-reduces begin when backward is under way
        if event.start < middle:
            bars.append(lanes.bar(event, "hidden", str(number), end=middle))
        if middle < event.end:
            bars.append(lanes.bar(event, "communication", str(number), start=middle))
    return [*bars, lanes.bar(lanes.communications(log)[-1], "communication", "loss")]


def _all_reduces(log: list[Event]) -> list[Event]:
    """Those of gradients, without the last one, of the loss."""
    return lanes.communications(log)[:-1]


def _facts(log: list[Event], time: int, end: int) -> dict[str, str]:
    """Of rank 0 so far."""
    past = [Event(e.name, e.track, e.start, min(e.end, time)) for e in log if e.start < time]
    spent = sum(event.end - event.start for event in past if event.track == "communication")
    share = hidden_share(past)
    sums = [event for event in _all_reduces(log) if not lanes.is_dropped(event)]
    return {
        "time": f"{time / MS:.1f} of {end / MS:.1f} ms",
        "all-reduces ended": f"{sum(event.end <= time for event in sums)} of {len(sums)}",
        "communication so far": f"{spent / MS:.1f} ms",
        "of it under backward": f"{share * spent / MS:.1f} ms ({share:.0%})",
    }


def _note(log: list[Event], time: int, end: int, dropping: bool) -> str:
    """What rank 0 does, and from a dropped all-reduce on what comes of it."""
    if dropping:
        return f"Bucket {DROPPED_BUCKET} is full and nobody sends it: its gradients stay each rank's own."
    dropped = any(lanes.is_dropped(event) and event.start <= time for event in log)
    if time >= end:
        same = "no longer the same" if dropped else "still the same"
        return f"The step has ended, and the ranks' weights are {same}."
    optimizer = next(event for event in log if kind_of(event) == "optimizer")
    if time >= optimizer.end:
        return "The ranks add up their losses."
    if time >= optimizer.start:
        own = f", those of bucket {DROPPED_BUCKET} by its own gradients" if dropped else ""
        return f"Every rank updates all of its weights{own}."
    forward, backward = (next(e for e in log if kind_of(e) == kind) for kind in ("forward", "backward"))
    numbered = enumerate(_all_reduces(log), 1)
    number = next((number for number, event in numbered if event.start <= time < event.end), None)
    if time < forward.start:
        return "Every rank sets its gradients to zero and reads samples of its own."
    if time < backward.start:
        return "Forward: every rank has samples of its own, and there is nothing to send."
    if time < backward.end:
        if number:
            return f"All-reduce {number} sums gradients over the ranks while backward goes on with earlier layers."
        return "Backward completes gradients from the last layer to the first."
    return "Backward is over, and all ranks wait for " + (f"all-reduce {number}." if number else "sums.")
