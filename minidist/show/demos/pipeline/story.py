"""Stories of pipelines: the race of schedules on one clock, and one schedule with what its ranks store."""

from collections.abc import Mapping, Sequence

from minidist.parallel.tools.schedule_check import Slot, bubble
from minidist.show.demos.pipeline.bug import MISTAKEN, corrupted_by
from minidist.show.demos.pipeline.kinds import KINDS, Kind, end_of
from minidist.show.figures.pipelines import COLOURS, colour_of
from minidist.show.stage.lanes import Lanes
from minidist.show.stage.marks import Mark, box, text
from minidist.show.stage.story import Beat, Dial, Question, Story, with_dial

RUNS = 8.0  # seconds that the longest schedule takes
BEGUN = 3.0  # seconds that have run before the story opens, so that the first waves are seen
KEY = {
    "forward": COLOURS["F"],
    "backward": COLOURS["B"],
    "backward of inputs": COLOURS["I"],
    "backward of weights": COLOURS["W"],
    "idle": "faint",
}
RACING = ("GPipe", "1F1B", "ZB-H1")  # three, so that rows are high; next to naive all others would be short
CHOICES = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32)  # micro-batches on the dial


def race(rows: Mapping[str, Sequence[Sequence[Slot]]], unit: str, told: str, name: str = "race") -> Story:
    """Show schedules one below the other on one axis.

    Args:
        rows: name of each schedule -> slots of each rank.
        unit: unit of the axis.
        told: a sentence that says where the times come from.
    """
    longest = max(map(end_of, rows.values()))
    marks: list[Mark] = []
    ends, high = {}, 588 / len(rows)
    idles = {which: bubble(ranks) for which, ranks in rows.items()}
    for number, (which, ranks) in enumerate(rows.items()):
        y = 8 + number * high
        marks.append(text(192, y + high / 2 - 7, which, 30, anchor="end", weight=700))
        place, clock, until = (204, y, 836, high - 14), (-BEGUN, RUNS + BEGUN), [end_of(ranks)] * len(ranks)
        lanes = Lanes([""] * len(ranks), place, (0, longest), clock, margin=0, share=0.94, until=until)
        for rank, row in enumerate(ranks):
            for slot in row:
                what = f"{which}: micro-batch {slot.action.micro_batch}"
                lanes.bar(rank, slot.start, slot.end - 0.002 * longest, colour_of(slot.action, len(ranks)), thing=what)
        ends[which] = lanes.at(until[0])
        idle = text(1275, y + high / 2 - 7, f"{idles[which]:.0%} idle", 44, anchor="end", weight=700)
        marks += [*lanes.marks(), idle.enter(ends[which], 0)]
    first = min(ends, key=ends.__getitem__)
    slowest = [which for which, ranks in rows.items() if end_of(ranks) == longest]
    takes = f"{' and '.join(slowest)} take{'s' * (len(slowest) == 1)}"
    asked = Question(
        "Which schedule is done first?",
        tuple(rows),
        list(rows).index(first),
        "It leaves the fewest GPUs idle: all do the same work."
        if idles[first] == min(idles.values())
        else "Not because its GPUs idle least: on this machine its slots took less time.",
    )
    beats = [
        Beat(
            0,
            f"Schedules race. Each row is a GPU, grey where it waits. {told}",
            asks=asked,
            cue="All do the same work. Let the class vote.",
        ),
        Beat(max(0.3, min(ends[first] + 0.3, RUNS)), f"{first} is done first.", answers=asked),
        Beat(RUNS + 0.3, f"{takes} {longest / end_of(rows[first]):.1f} times as long: {longest:.4g} {unit}."),
    ]
    return Story(name, "Who idles least?", marks, beats, key=KEY)


def plans(ranks: int, micro_batches: int) -> Story:
    """Show the race of the plans, with a dial for the number of micro-batches."""
    possible = sorted({*CHOICES, micro_batches})
    racing = [kind for kind in KINDS if kind.name in RACING]
    variants = [
        race({kind.name: kind.slots(ranks, m) for kind in racing}, "slots", "All do the same work.") for m in possible
    ]
    dial = Dial("micro-batches", tuple(map(str, possible)), possible.index(micro_batches))
    return with_dial(dial, variants)


def plan(
    kind: Kind,
    ranks: int,
    micro_batches: int,
    verdict: str,
    slots: Sequence[Sequence[Slot]],
    longest: float,
    bug: str = "",
    details: str = "",
) -> Story:
    """Show one schedule, slot by slot, and next to each lane the micro-batches whose activations are stored.

    Args:
        longest: end of the axis: the longer one of the right run and the broken one.
    """
    runs, planned = RUNS, kind.slots(ranks, micro_batches)
    shelf, width = 900, 360 / micro_batches
    stuck = end_of(slots)
    finished = stuck >= end_of(planned)
    names, until = [f"GPU {rank}" for rank in range(ranks)], [stuck if finished else longest] * ranks
    lanes = Lanes(names, (0, 40, shelf - 30, 520), (0, longest), (0, runs), until=until)
    mistaken = MISTAKEN if bug else {}
    corrupted = corrupted_by(mistaken, slots) if bug else set()
    stored: list[Mark] = []
    for rank, row in enumerate(slots):
        for slot in row:
            action = slot.action
            colour = "wrong" if action in corrupted else colour_of(action, ranks)
            lanes.bar(
                rank,
                slot.start,
                slot.end - 0.003 * longest,
                colour,
                str(mistaken.get(action, action.micro_batch)),
                f"micro-batch {action.micro_batch}",
            )
        stored += _shelf(row, lanes, rank, shelf, width, kind.virtual)
    heading = text(shelf, 14, "stores", anchor="start")
    most = max(kind.most_stored(ranks, micro_batches), 1)
    idle = bubble(slots if finished else planned)
    asked = Question.number(
        f"How much of the time do {ranks} GPUs idle in {kind.name}?",
        idle,
        (idle / 2, min(1, idle * 2 + 0.05)),
        f"{kind.formula}, with p = {ranks} and m = {micro_batches}.",
        "{:.0%}",
    )
    half = lanes.at(min(stuck, longest / 2))
    facts = {
        "idle": f"{idle:.1%}, and {bubble(planned):.1%} without the bug" if bug else f"{idle:.1%} = {kind.formula}",
        "GPU 0 stores at most": f"{most:g} micro-batch{'es' * (most != 1)}",
    }
    asked = None if bug else asked
    beats = [
        Beat(0, "Micro-batches roll down the GPUs in forward and back in backward.", asks=asked),
        Beat(half, "Grey is idle time. Next to each GPU: activations that wait for backward."),
        Beat(
            runs + 0.3,
            f"GPU 0 stored at most {most:g} of {micro_batches}; {idle:.0%} of the time was idle.",
            facts,
            answers=asked,
        ),
    ]
    if not finished:
        beats[2:] = [Beat(runs + 0.3, "Every GPU waits for another one, and would wait forever.")]
    marks = [*lanes.marks(), heading, *stored]
    return Story(
        kind.name, f"What does {kind.name} cost in time and memory?", marks, beats, verdict, bug, details, key=KEY
    )


def _shelf(row: Sequence[Slot], lanes: Lanes, rank: int, x: float, width: float, virtual: int) -> list[Mark]:
    """Return a box for each stored micro-batch, from its forward to its backward, in the first free place."""
    ends = {(slot.action.stage, slot.action.micro_batch): slot.end for slot in row if slot.action.kind in "BW"}
    free: list[float] = []  # place -> when its box leaves
    found = []
    high = lanes.high * 0.8
    for slot in row:
        action = slot.action
        if action.kind == "F":
            place = next((i for i, end in enumerate(free) if end <= slot.start), len(free))
            end = ends.get((action.stage, action.micro_batch)) or lanes.span[1]
            free[place : place + 1] = [end]
            y = lanes.top + (rank + 0.5) * lanes.high - high / 2
            w = width / virtual
            label = {"text": str(action.micro_batch)} if w > 30 else {}
            mark = box(
                x + place * w,
                y,
                w - 2,
                high,
                colour_of(action, len(row)),
                f"activations of micro-batch {action.micro_batch}",
                **label,
            )
            lasting = min(0.05, lanes.at(end) - lanes.at(slot.start))
            found.append(mark.enter(lanes.at(slot.start), lasting).leave(lanes.at(end), 0.05))
    return found
