"""Stories of tiled attention: scores tile by tile, and two piles of what crosses to the slow memory."""

from minidist.nn.attention.tiled import tiles
from minidist.show.demos.flash.run import Attention, Moment, formula
from minidist.show.palette import MEANINGS
from minidist.show.stage.marks import box, counter, text
from minidist.show.stage.piles import Pile
from minidist.show.stage.story import Beat, Question, Story

RUNS = 8.0  # seconds that all moments take
BEGUN = 1.0  # seconds that have run before the story opens, so that the first tiles are seen
LEFT, TOP, SIDE = 145, 60, 530  # place and size of the grid of tiles
SLOW = (760, 60, 500, 530)  # (x, y, width, height) of the slow memory
SCORES, MERGED, CROSSES = MEANINGS["softmax"], MEANINGS["softmax sums"], MEANINGS["read"]
KEY = {"scores, in the fast memory": SCORES, "summed up, forgotten": MERGED}
STANDARD_KEY = {"scores, written": SCORES, "softmax, written": MERGED}
TITLE = "Must all scores go through the slow memory?"


def tell(
    run: Attention, standard: Attention, right: Attention | None = None, bug: str = "", details: str = ""
) -> Story:
    """Show the moments of a run, tiled or standard, next to what the other form reads and writes.

    Args:
        standard: the run in the standard form; if ``run`` is that, a tiled run to compare it with.
        right: the same run without the bug; None if ``run`` has no bug.
    """
    parts, ends, causal = tiles(run.length, run.tile), {}, run.kind == "causal"
    size, seen = SIDE / len(parts), (RUNS + BEGUN) / len(run.moments)
    marks = [text(LEFT + SIDE / 2, TOP - 26, "keys →", 32), text(LEFT - 14, TOP + 40, "queries", 30, anchor="end")]
    marks.append(text(LEFT - 40, TOP + 84, "↓", 40))
    for i in range(len(parts)):
        for j in range(len(parts)):
            fill = "none" if causal and j > i else "faint"
            marks.append(box(LEFT + j * size + 2, TOP + i * size + 2, size - 4, size - 4, fill, f"tile {i}, {j}"))
    grid = {divmod(n, len(parts)): mark for n, mark in enumerate(mark for mark in marks if mark.kind == "box")}
    if causal and len(parts) > 3:
        marks += [
            text(LEFT + SIDE - 6, TOP + 30 + 36 * n, word, anchor="end")
            for n, word in enumerate(("later tokens:", "no scores"))
        ]
    now = box(LEFT - 3, TOP - 3, size + 6, size + 6, "none", "the tile in the fast memory", stroke="ink", width=6)
    place = {part.start: number for number, part in enumerate(parts)}
    others = right.moments if right else run.moments
    wrong_rows: set[int] = set()
    for number, (moment, other) in enumerate(zip(run.moments, others, strict=True)):
        at = seen * number - BEGUN
        ends[number] = at
        if moment.keys is not None:
            row, column = place[moment.queries.start], place[moment.keys.start]
            if moment.mean is not None and (moment.mean != other.mean).any():
                wrong_rows.add(row)
            now.to(at, 0.05, x=LEFT - 3 + column * size, y=TOP - 3 + row * size)
            merged = "wrong" if row in wrong_rows else MERGED
            grid[row, column].to(at, 0.05, fill=SCORES).to(at + seen, 0.15, fill=merged)
        elif run.kind == "standard":
            _passed(moment, place, parts, grid, at)
    if run.kind != "standard":
        marks.append(now.leave(RUNS + 0.2, 0.2))
    most = max(sum(run.traffic), sum(standard.traffic))
    names = ("all at once", "in tiles") if run.kind == "standard" else ("in tiles", "all at once")
    marks.append(box(*SLOW, "paper", "the slow memory", stroke="ink", width=4, round=10))
    for x, name, one in ((800, names[0], run), (1040, names[1], standard)):
        pile = Pile(name, (x, 540, 180, 380), most, {"read or written": CROSSES})
        for number, moment in enumerate(one.moments):
            if number % max(1, len(one.moments) // 40) == 0 or number == len(one.moments) - 1:
                at = (RUNS + BEGUN) * (number + 0.5) / len(one.moments) - BEGUN
                pile.set(at, {"read or written": moment.reads + moment.writes}, 0.02)
        marks += pile.marks()
    ratio = sum(standard.traffic) / sum(run.traffic)
    fewer = ratio if run.kind != "standard" else 1 / ratio
    marks.append(text(1010, 92, "slow memory: read or written", 32))
    shorter = 1130 if run.kind == "standard" else 890  # the middle of the lower pile
    marks += counter(shorter, 230, "", [(0.0, ""), (RUNS + 0.3, f"{fewer:.1f} ×")], 70)
    asked = Question(
        "All scores at once, compared with tiles: how much is read and written?",
        ("as much", f"{fewer:.1f} times as much", f"{4 * fewer:.0f} times as much"),
        1,
        "It writes all scores to the slow memory and reads them again, twice. In tiles no score leaves the fast one."
        if fewer > 1
        else "In tiles no score leaves the fast memory. But each row of tiles reads all keys and values again.",
    )
    facts = {
        "read and written": f"{sum(run.traffic):,} elements",
        "by formula": f"{formula(run.kind, run.length, run.tile):,}",
        "fast memory": f"{run.fast:,} elements",
        "output error": f"{run.error.max():.0e}",
    }
    done = "Every score is written once and read once, and so is its softmax: 4N² elements."
    if run.kind != "standard":
        ours, theirs = sum(run.traffic), sum(standard.traffic)
        done = f"Q, K, V, O and one number per row cross: {ours:,} elements. Standard: {theirs:,}."
    if bug:
        done = "Where the maximum grew, old and new terms have different scales."
    half = ends[len(run.moments) // 2]
    during = (
        "All scores are written to the slow memory, row by row."
        if run.kind == "standard"
        else "The scores of the framed tile join their row's sums, and are forgotten."
    )
    part = "row" if run.kind == "standard" else "tile"
    opening = f"{run.length} × {run.length} scores. The fast memory holds {run.fast:,} numbers: one {part} at a time."
    asked = None if bug else asked
    beats = [
        Beat(0, opening, facts, asks=asked, cue="The fast memory is an SM's shared memory: some 200 KB."),
        Beat(half, during, facts),
        Beat(RUNS + 0.5, done, facts, answers=asked),
    ]
    verdict = (
        f"The output is off by up to {run.error.max():.1g}." if bug else f"Off by {run.error.max():.0e}, as rounding."
    )
    return Story(
        run.kind, TITLE, marks, beats, verdict, bug, details, key=STANDARD_KEY if run.kind == "standard" else KEY
    )


def _passed(moment: Moment, place: dict, parts: list, grid: dict, at: float) -> None:
    """Colour a row of tiles once the standard form has written its scores or their softmax, stages 0 and 1."""
    row = max(number for start, number in place.items() if start <= moment.queries.start)
    if moment.queries.stop != parts[row].stop or moment.stage not in (0, 1):
        return  # in the middle of a tile, or the output
    for column in range(len(parts)):
        grid[row, column].to(at, 0.2, fill=(SCORES, MERGED)[moment.stage])
