"""All schedules on one time axis: as planned, and as this machine measured them."""

from collections.abc import Mapping, Sequence
from math import ceil

from minidist.analysis.steps import slots_of
from minidist.comm.transports.cores import cores
from minidist.parallel.tools.schedule_check import Slot, bubble, in_flight
from minidist.show.demos.pipeline.kinds import KINDS, end_of
from minidist.show.demos.pipeline.mini import Band, Chart
from minidist.show.figures.pipelines import COLOURS
from minidist.show.player.scene import WIDTH, Box, Cue, Frame, Label, Question, Scene, Shape
from minidist.train.result import Run

KEY = {
    "forward": COLOURS["F"],
    "backward (of inputs)": COLOURS["B"],
    "backward of weights": COLOURS["W"],
    "idle: the bubble": "faint",
}
FRAMES = 16  # about
MS = 1e3
STORES = 62  # characters: to the right of it, what rank 0 stores


def as_planned(ranks: int, micro_batches: int) -> Scene:
    rows = {kind.name: kind.slots(ranks, micro_batches) for kind in KINDS}
    bands = [Band(name, slots, f"{end_of(slots):g} slots") for name, slots in rows.items()]
    chart = Chart(bands, "slots", right=STORES - 2)
    total = chart.longest
    ends = {band.end for band in bands}
    times = sorted(ends | {float(time) for time in range(3, int(total), 3 * ceil(total / 3 / FRAMES))})
    facts = {
        kind.name: f"{bubble(rows[kind.name]):.0%} idle, stores {kind.most_stored(ranks, micro_batches):g}"
        for kind in KINDS
    }
    frames = tuple(
        Frame(
            (*chart.shapes(now), *most_stored(chart, now)),
            _done(bands, now, "slots"),
            {name: fact if end_of(rows[name]) <= now else "?" for name, fact in facts.items()},
            now,
        )
        for now in times
    )
    first = min(bands, key=lambda band: band.end)
    least = min(KINDS, key=lambda kind: kind.most_stored(ranks, micro_batches))
    questions = (
        Question(
            times.index(first.end), "Which schedule is done first?", tuple(rows), list(rows).index(first.name),
            "It leaves the fewest slots idle: all five do the same work.",
        ),
        Question(
            len(times) - 1, "Which schedule stores least?", tuple(rows), KINDS.index(least),
            "One micro-batch at a time: it stores least, and it idles most.",
        ),
    )  # fmt: skip
    cues = (
        Cue(0, 1, "Five schedules of the same work, on one axis. Let the class vote."),
        Cue(len(times) - 1, 3, "Time against memory: ask which one they would take, and what it would need."),
    )
    return Scene(
        "all", f"All as planned: {ranks} ranks, {micro_batches} micro-batches", frames, chart.height, KEY,
        f"{first.name} is done first, after {first.end:g} of the {total:g} slots of {bands[0].name}.",
        stills=(len(times) - 1,), questions=questions, cues=cues,
    )  # fmt: skip


def most_stored(chart: Chart, now: float) -> list[Shape]:
    """Draw for each schedule a box per micro-batch that rank 0 has stored at most so far, and a line at as many as
    there are ranks."""
    ranks, all_of_them = len(chart.bands[0].rows), max(_micro_batches(band.rows) for band in chart.bands)
    width = (WIDTH - 0.5 - STORES) / all_of_them
    found: list[Shape] = []
    for kind, band, top in zip(KINDS, chart.bands, chart.tops, strict=True):
        most = in_flight([slot.action for slot in band.rows[0] if slot.start < now]) / kind.virtual
        for number in range(ceil(most)):
            part = min(1, most - number)
            name = f"{band.name}: stored micro-batch number {number + 1}"
            found.append(
                Box(STORES + number * width, top + 0.4, (part - 0.14) * width, 1.2, COLOURS["F"], "", "o", id=name)
            )
    line = STORES + ranks * width - 0.2
    return [
        *found,
        Box(line, 0, 0.15, chart.bottom, "ink", mark="|"),
        Label(WIDTH, chart.bottom + 0.6, f"stores: {ranks} fit", "ink", "end"),
    ]


def _micro_batches(rows: Sequence[Sequence[Slot]]) -> int:
    return 1 + max(slot.action.micro_batch for row in rows for slot in row)


def as_measured(runs: Mapping[str, Run], clock: float) -> Scene:
    """The last step of each run, in ms.

    Args:
        clock: the moment of the last frame on the scenes' clock.
    """
    ranks = next(iter(runs.values())).layout.pp
    rows = {name: slots_of([rank.log for rank in run.ranks]) for name, run in runs.items()}
    bands = [Band(name, slots, f"{MS * end_of(slots):.0f} ms") for name, slots in rows.items()]
    chart = Chart(bands, "ms", MS)
    total = chart.longest
    times = sorted({band.end for band in bands} | {total * number / FRAMES for number in range(1, FRAMES)})
    facts = {name: f"{bubble(slots):.0%} idle" for name, slots in rows.items()}
    frames = tuple(
        Frame(
            chart.shapes(now),
            _done(bands, now, "ms", MS),
            {name: fact if end_of(rows[name]) <= now else "?" for name, fact in facts.items()},
            clock * now / total,
        )
        for now in times
    )
    sharing = f"{ranks} ranks on {cores()} cores"
    slower = end_of(rows["naive"]) / end_of(rows["GPipe"])
    reason = (
        f"It took {slower:.1f} times as long. At most {min(ranks, cores())} ranks compute at once here, and "
        "waiting for a rank that the machine has put to sleep costs time too."
    )
    answer = 0 if slower < 1.25 else 1 if slower < 2.5 else 2
    question = Question(
        len(times) - 1, f"Measured, {sharing}: how much longer than GPipe does naive take?",
        ("about as long", "about twice as long", "three times and more"), answer, reason,
    )  # fmt: skip
    cue = Cue(0, 2, "This is evidence that real ranks ran these plans; how long it took says more about this machine.")
    return Scene(
        "measured", f"As measured here: {sharing}", frames, chart.height, KEY,
        "The same cells in the same order as planned; the lengths are this machine's.",
        stills=(len(times) - 1,), questions=(question,), cues=(cue,),
    )  # fmt: skip


def _done(bands: list[Band], now: float, unit: str, scale: float = 1) -> str:
    done = [band.name for band in bands if band.end <= now]
    return f"After {scale * now:.4g} {unit}: " + (f"{', '.join(done)} {'is' if len(done) == 1 else 'are'} done." if done
                                                 else "no schedule is done.")  # fmt: skip
