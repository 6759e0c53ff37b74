"""A schedule as planned: a frame for each slot, on the clock that all schedules share."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from minidist.parallel.tools.schedule_check import Slot, bubble
from minidist.parallel.tools.schedules import Action
from minidist.show.demos.pipeline.bug import MISTAKEN, corrupted_by, slots_with_bug, waits_with_bug
from minidist.show.demos.pipeline.kinds import KINDS, Kind, end_of
from minidist.show.demos.pipeline.lecture import Lecture
from minidist.show.demos.pipeline.picture import Lanes
from minidist.show.demos.pipeline.store import stored
from minidist.show.figures.pipelines import COLOURS, NAMES
from minidist.show.player.scene import Frame, Scene

MOST_FRAMES = 40
LATER = "?"  # a figure that would spoil a question


def window(ranks: int, micro_batches: int) -> int:
    """The slots of the axis: what the longest schedule but the naive one takes, and one more for the bug."""
    return int(max(kind.length(ranks, micro_batches) for kind in KINDS[1:])) + 1


def of_plan(kind: Kind, ranks: int, micro_batches: int, proof: str, rounded: str) -> Scene:
    """The scene of a schedule.

    Args:
        proof: sentence saying that a real run of it computes the right thing, for the details.
        rounded: added to the number of micro-batches in the title.
    """
    rows = kind.slots(ranks, micro_batches)
    lanes = Lanes(rows, window(ranks, micro_batches), micro_batches, kind.virtual)
    times = _times(rows, ranks)
    told = Lecture(kind, ranks, micro_batches, times)
    return Scene(
        kind.name,
        f"{kind.name}, as planned: {ranks} ranks, {micro_batches} micro-batches{rounded}",
        _frames(kind, lanes, times),
        lanes.height,
        _key(rows),
        f"{end_of(rows):g} slots, {bubble(rows):.0%} idle; up to {kind.most_stored(ranks, micro_batches):g} stored; "
        "bit for bit as one process.",
        stills=tuple(sorted({len(times) // 3, len(times) - 1})),
        details=proof,
        questions=told.questions(),
        cues=told.cues(),
    )


def with_bug(kind: Kind, ranks: int, micro_batches: int, losses: tuple[float, float], difference: str) -> Scene:
    """Draw the schedule with the bug, frame by frame.

    Args:
        losses: losses of the first step: without the bug, and with it.
        difference: point at which the real run diverges, for the details.
    """
    rows = slots_with_bug(kind, ranks, micro_batches)
    corrupted = corrupted_by(MISTAKEN, rows)
    lanes = Lanes(rows, window(ranks, micro_batches), micro_batches, kind.virtual, MISTAKEN, corrupted)
    times = _times(rows, ranks)
    first = min(slot.start for row in rows for slot in row if slot.action in MISTAKEN)
    key = _key(rows) | {"wrong micro-batch, and what it corrupts": "wrong"}
    return Scene(
        "broken" if kind.name == "1F1B" else f"broken {kind.name}",
        f"{kind.name}, broken: {ranks} ranks, {micro_batches} micro-batches",
        _frames(kind, lanes, times),
        lanes.height,
        key,
        f"{len(corrupted)} wrong cells; the loss is {losses[1]:.3f} instead of {losses[0]:.3f}.",
        next(number for number, time in enumerate(times) if time > first),
        tuple(sorted({len(times) // 3, len(times) - 1})),
        twin=kind.name,
        details=difference,
    )


def deadlocked(kind: Kind, ranks: int, micro_batches: int, waits: str) -> Scene:
    """A schedule that the bug stops, at the same moments as without it.

    Args:
        waits: text saying who waits for whom in the real run, for the details.
    """
    rows, stuck = slots_with_bug(kind, ranks, micro_batches), waits_with_bug(kind, ranks, micro_batches)
    lanes = Lanes(rows, window(ranks, micro_batches), micro_batches, kind.virtual, stuck=stuck)
    times = _times(kind.slots(ranks, micro_batches), ranks)
    return Scene(
        f"broken {kind.name}",
        f"{kind.name}, broken: {ranks} ranks, {micro_batches} micro-batches",
        _frames(kind, lanes, times),
        lanes.height,
        _key(rows) | {"waits forever": "wrong"},
        "Deadlock: every rank waits for another.",
        next(number for number, time in enumerate(times) if time > end_of(rows)),
        (len(times) // 3,),
        twin=kind.name,
        details=waits,
    )


def _times(rows: Sequence[Sequence[Slot]], ranks: int) -> list[float]:
    """A moment for each slot; of a long schedule one for each of the first slots, then a forward and backward each."""
    total = end_of(rows)
    slots = [float(slot) for slot in range(1, int(total) + 1)]
    if total > MOST_FRAMES:
        slots = [slot for slot in slots if slot <= 3 * ranks or slot % 3 == 0]
    return slots if slots[-1] == total else [*slots, total]


def _key(rows: Sequence[Sequence[Slot]]) -> dict[str, str]:
    kinds = {slot.action.kind for row in rows for slot in row}
    return {NAMES[kind]: COLOURS[kind] for kind in "FBIW" if kind in kinds} | {"idle: the bubble": "faint"}


def _frames(kind: Kind, lanes: Lanes, times: Sequence[float]) -> tuple[Frame, ...]:
    frames = []
    for before, now in pairwise([0.0, *times]):  # the first frame shows an action: an empty picture looks like an error
        note = _note(kind, lanes.rows, before, now, lanes.mistaken)
        frames.append(
            Frame(lanes.shapes(now), note, _facts(kind, lanes, now, now == times[-1] and not lanes.stuck), now)
        )
    return tuple(frames)


def _facts(kind: Kind, lanes: Lanes, now: float, over: bool) -> dict[str, str]:
    idle = sum(idle_until(row, now) for row in lanes.rows)
    all_slots = now * lanes.ranks
    formula = float(kind.share(lanes.ranks, lanes.micro_batches))
    held = len(stored(lanes.rows[0], now)) / kind.virtual
    return {
        "idle so far": f"{idle:g} of {all_slots:g} rank-slots ({idle / all_slots:.0%})",
        f"bubble {kind.formula}": f"{formula:.1%}" if over else LATER,
        "rank 0 stores": f"{held:g} micro-batch{'es' * (held != 1)}",
    }


def idle_until(row: Sequence[Slot], now: float) -> float:
    """Slots until now in which a rank does nothing."""
    return now - sum(min(slot.end, now) - slot.start for slot in row if slot.start < now)


def _note(kind: Kind, rows: Sequence[Sequence[Slot]], before: float, now: float, mistaken: Mapping) -> str:
    """What each rank does at the end of the time from ``before`` to ``now``."""
    at_work = {}
    for rank, row in enumerate(rows):
        for slot in row:
            if slot.start < now <= slot.end:
                at_work[rank] = _text(slot.action, kind)
    idle = len(rows) - len(at_work)
    if not at_work:
        return f"Slot {now:g}: every rank waits for another."
    text = f"Slot {now:g}: " + ", ".join(f"rank {rank} {action}" for rank, action in at_work.items())
    text += f"; {idle} idle." if idle else "."
    for slot in rows[1]:
        if slot.action in mistaken and before <= slot.start < now:
            text += f" Rank 1 takes {mistaken[slot.action]} instead of {slot.action.micro_batch}."
    return text


def _text(action: Action, kind: Kind) -> str:
    verb = {"F": "forward", "B": "backward", "I": "backward (inputs)", "W": "backward (weights)"}[action.kind]
    return f"{verb} {action.micro_batch}" + (f" of stage {action.stage}" if kind.virtual > 1 else "")
