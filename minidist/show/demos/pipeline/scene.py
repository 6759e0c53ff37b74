"""What the animation of a pipeline says: frames with the plan and the run, and the figures of both."""

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from math import ceil

from minidist.analysis.time.bubbles import slots_of
from minidist.comm.runtime.patience import cores
from minidist.parallel.tools.schedule_check import Slot, bubble, in_flight
from minidist.parallel.tools.schedules import Action
from minidist.show.demos.pipeline import picture
from minidist.show.demos.pipeline.bug import corrupted_by
from minidist.show.demos.pipeline.kinds import Kind
from minidist.show.pipelines import COLOURS, NAMES
from minidist.show.player.scene import Frame, Scene
from minidist.train.result import Run

MOST_FRAMES = 40


def of_run(kind: Kind, run: Run, verdict: str, rounded: str, mistaken: Mapping[Action, int] | None = None) -> Scene:
    """A scene of the last step of a run.

    Args:
        rounded: added to the number of micro-batches in the title.
        mistaken: in a broken run, action -> the wrong micro-batch that it takes.
    """
    mistaken, broken = mistaken or {}, bool(mistaken)
    ranks, count = run.layout.pp, run.config.micro_batches
    planned, ran = kind.slots(ranks, count), slots_of([rank.log for rank in run.ranks])
    seconds = max(slot.end for row in ran for slot in row)
    sharing = f", {ranks} ranks on {cores()} cores" if ranks > cores() else ""
    titles = "as planned, in slots", f"as it ran, {1e3 * seconds:.0f} ms{sharing}"
    all_shapes = picture.panels(planned, ran, titles, mistaken, corrupted_by(mistaken, planned))

    total = max(slot.end for row in planned for slot in row)
    step = ceil(total / MOST_FRAMES)
    times = [min(number * step, total) for number in range(ceil(total / step) + 1)]
    frames = []
    for before, now in pairwise(times):  # the first frame shows an action: an empty picture would look like an error
        note = _note(kind, planned, before, now, mistaken)
        if now == total:
            note += f" The bubble is {bubble(planned):.1%} of the plan and {bubble(ran):.1%} of the run, "
            note += f"in which {ranks} ranks share {cores()} cores." if sharing else "where messages take time too."
        shapes = picture.until(now / total, all_shapes, ranks)
        frames.append(Frame(shapes, note, _facts(kind, planned, ran, total, now)))
    first_wrong = None
    if broken:
        first = min(_share_before(mistaken, planned), _share_before(mistaken, ran))
        first_wrong = next(number for number, time in enumerate(times[1:]) if time / total > first)
    title = f"Pipeline, {kind.name}: {ranks} ranks, {count} micro-batches{rounded}"
    last = len(frames) - 1
    return Scene(
        "broken" if broken else kind.name,
        title,
        tuple(frames),
        picture.height(ranks),
        _key(planned, broken),
        verdict,
        first_wrong,
        tuple(sorted({last // 3, last})),
    )


def _share_before(mistaken: Collection[Action], rows: Sequence[Sequence[Slot]]) -> float:
    """The share of the total time that has passed when the first of these actions begins."""
    slots = [slot for row in rows for slot in row]
    return min(slot.start for slot in slots if slot.action in mistaken) / max(slot.end for slot in slots)


def _key(planned: Sequence[Sequence[Slot]], broken: bool) -> dict[str, str]:
    kinds = {slot.action.kind for row in planned for slot in row}
    key = {NAMES[kind]: COLOURS[kind] for kind in "FBIW" if kind in kinds} | {"idle: the bubble": "faint"}
    return key | {"wrong micro-batch, and what it corrupts": "wrong"} if broken else key


def _facts(kind: Kind, planned: list, ran: list, total: float, now: float) -> dict[str, str]:
    ranks, micro_batches = len(planned), sum(slot.action.kind == "F" for slot in planned[0]) // kind.virtual
    idle = sum(_idle(row, now) for row in planned)
    begun = [slot.action for slot in planned[0] if slot.start < now]
    ended = sum(slot.end <= now for slot in planned[0] if slot.action.kind in "BW")
    held = sum(action.kind == "F" for action in begun) - ended
    most = in_flight([slot.action for slot in planned[0]])
    return {
        "slot": f"{now:g} of {total:g}",
        "idle so far": f"{idle:g} of {sum(_idle(row, total) for row in planned):g} slots",
        f"bubble {kind.formula}": f"{float(kind.share(ranks, micro_batches)):.1%}",
        "as it ran": f"{bubble(ran):.1%}",
        "rank 0 holds": f"{held / kind.virtual:g} of at most {most / kind.virtual:g} micro-batches",
    }


def _idle(row: list[Slot], now: float) -> float:
    return now - sum(min(slot.end, now) - slot.start for slot in row if slot.start < now)


def _note(kind: Kind, planned: list, before: float, now: float, mistaken: dict) -> str:
    """What each rank does at the end of the time from ``before`` to ``now``."""
    at_work = {}
    for rank, row in enumerate(planned):
        for slot in row:
            if slot.start < now <= slot.end:
                at_work[rank] = _text(slot.action, kind)
    idle = len(planned) - len(at_work)
    text = f"Slot {now:g} of the plan: " + ", ".join(f"rank {rank} {action}" for rank, action in at_work.items())
    text += f"; {idle} {'rank is' if idle == 1 else 'ranks are'} idle." if idle else "."
    for slot in planned[1]:
        if slot.action in mistaken and before <= slot.start < now:
            text += f" Rank 1 takes {mistaken[slot.action]} instead of {slot.action.micro_batch}."
    return text


def _text(action: Action, kind: Kind) -> str:
    verb = {"F": "forward", "B": "backward", "I": "backward (inputs)", "W": "backward (weights)"}[action.kind]
    return f"{verb} {action.micro_batch}" + (f" of stage {action.stage}" if kind.virtual > 1 else "")
