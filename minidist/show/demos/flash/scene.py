"""What the animation of tiled attention says: each tile in its turn, and the count of reads and writes."""

from collections.abc import Iterator

import numpy as np

from minidist.nn.attention.tiled import tiles
from minidist.show.demos.flash import picture
from minidist.show.demos.flash.run import Attention, Moment, formula, tokens
from minidist.show.player.scene import Frame, Scene, Shape

HELD = (  # in the order in which slow_memory.tiled_attention asks for them
    ("Q", picture.QUERIES), ("O", picture.OUTPUT), ("l", picture.SUMS), ("m", picture.SUMS), ("K", picture.KEYS),
    ("V", picture.VALUES), ("S", picture.SCORES),
)  # fmt: skip
KEY = {
    "scores S": picture.SCORES,
    "merged": picture.DONE,
    "maxima, sums": picture.SUMS,
    "read": picture.READ,
    "written": picture.WRITTEN,
}
FORMULAS = {"causal": "2Nd + 2d·(keys seen) + N", "no mask": "2Nd + 2Nd⌈N/B⌉ + N"}


def steps_of(run: Attention) -> Iterator[tuple[Moment, int]]:
    """Each merged tile and each written output, and in how many rows that tile raised the maximum of earlier ones."""
    before = None
    for moment in run.moments:
        if moment.stage == 0:  # of the output; the logarithms of the sums follow at once
            continue
        raised = 0 if before is None or moment.largest is None else int((moment.largest > before).sum())
        before = moment.largest
        yield moment, raised


def of_tiles(run: Attention, standard: tuple[int, int], right: Attention | None = None, harm: str = "") -> Scene:
    """A scene of a tiled run.

    Args:
        standard: reads and writes of the standard form.
        right: the run without the bug, if this one has it.
        harm: what the bug does to training.
    """
    parts, broken = tiles(run.length, run.tile), right is not None
    place = {part.start: number for number, part in enumerate(parts)}
    steps = list(steps_of(run))
    visited = [(place[moment.queries.start], place[moment.keys.start]) for moment, _ in steps if moment.keys]
    board = picture.Board(len(parts), {(i, j) for i in range(len(parts)) for j in range(len(parts))} - set(visited))
    shapes = (*board.draw(), *_panel(run, None, standard))
    frames = [Frame(shapes, _first_note(run), _facts(run, None, (0, len(visited)), 0.0 if broken else None))]
    first_wrong, done, error = None, 0, 0.0
    others = [moment for moment, _ in steps_of(right or run)]
    for (moment, raised), other in zip(steps, others, strict=True):
        row = place[moment.queries.start]
        board.fills |= {tile: picture.DONE for tile, fill in board.fills.items() if fill == picture.SCORES}
        if moment.keys is None:
            board.queries, board.keys, board.values, board.current = (row,), (), (), ()
            board.outputs[row] = "wrong" if error else picture.OUTPUT
            note = f"O{row} is complete: it is divided by its sums, and both are written to slow memory."
            if error:
                note = f"O{row} is wrong: its sums mix old and new maxima. It is written all the same."
        else:
            tile = visited[done]
            board.queries, board.keys, board.values, board.current = tile[:1], tile[1:], tile[1:], (tile,)
            board.fills[tile] = "wrong" if broken and raised else picture.SCORES
            done, error = done + 1, float(np.abs(moment.mean - other.mean).max())
            note = _note(tile, moment, raised, broken)
            if broken and raised and first_wrong is None:
                first_wrong, first = len(frames), tile
        facts = _facts(run, moment, (done, len(visited)), error if broken else None)
        frames.append(Frame((*board.draw(), *_panel(run, moment, standard)), note, facts))
    mask = "without a mask" if run.kind == "no mask" else "causal"
    title = f"Attention tile by tile, {mask}: {run.length} tokens, tiles of {run.tile}"
    verdict = _proof(run, standard)
    if broken:
        what = frames[first_wrong].note.partition(": ")[2]
        verdict = f"First wrong: with Q{first[0]}, K{first[1]} and V{first[1]}, {what} {_where(run)} {harm}"
    key = KEY | ({"not rescaled, wrong": "wrong"} if broken else {})
    stills = tuple(sorted({2 * len(frames) // 3, len(frames) - 1}))
    name, twin = (f"broken {run.kind}", run.kind) if broken else (run.kind, "")
    return Scene(name, title, tuple(frames), board.height, key, verdict, first_wrong, stills, twin)


def _panel(run: Attention, moment: Moment | None, standard: tuple[int, int]) -> tuple[Shape, ...]:
    sizes = moment.sizes if moment else ()
    held = [(letter, colour, size) for (letter, colour), size in zip(HELD, sizes, strict=False)]
    rows = ("so far", *((moment.reads, moment.writes) if moment else (0, 0))), ("standard form", *standard)
    most = max(sum(run.traffic), sum(standard))
    return (*picture.fast_memory(held, run.fast), *picture.traffic(rows, most))


def _facts(run: Attention, moment: Moment | None, done: tuple[int, int], error: float | None) -> dict[str, str]:
    """``done`` counts tiles, of how many; ``error`` is that of the rows in the fast memory, in a broken run."""
    reads, writes = (moment.reads, moment.writes) if moment else (0, 0)
    facts = {
        "tile": f"{done[0]} of {done[1]}",
        "in fast memory": f"{sum(moment.sizes) if moment else 0:,} of {run.fast:,} elements",
        "read and written": f"{reads + writes:,}",
        f"formula {FORMULAS[run.kind]}": f"{formula(run.kind, run.length, run.tile):,}",
    }
    return facts if error is None else facts | {"error of these rows": f"{error:.2g}"}


def _first_note(run: Attention) -> str:
    text = f"The fast memory has room for {run.fast:,} elements, not for {run.length**2:,} scores."
    return f"{text} Hatched tiles are skipped." if run.kind == "causal" else text


def _note(tile: tuple[int, int], moment: Moment, raised: int, broken: bool) -> str:
    rows, (i, j) = moment.queries.stop - moment.queries.start, tile
    if j == 0:
        return f"Q{i}, tokens {tokens(moment.queries)}, is loaded. K0 and V0 are the first to arrive."
    text = f"Q{i} stays, K{j} and V{j} arrive"
    if not raised:
        return f"{text}: no row has a larger score than before."
    lost = "but their earlier sums are not rescaled" if broken else "so their earlier sums are rescaled"
    return f"{text}: in {raised} of {rows} rows the maximum grows, {lost}."


def _proof(run: Attention, standard: tuple[int, int]) -> str:
    count = sum(run.traffic)
    return (
        f"{count:,} elements are read and written, as by the formula. The standard form needs {sum(standard):,}, mask "
        f"or no mask: {sum(standard) / count:.1f} times as many. Output error: {run.error.max():.0e}."
    )


def _where(run: Attention) -> str:
    """The element of the output that is farthest off."""
    place = tuple(int(i) for i in np.unravel_index(run.error.argmax(), run.error.shape))
    return (
        f"At the end, row {place[0]}, column {place[1]} of the output: expected {run.right[place]:.4f}, "
        f"got {run.output[place]:.4f}; {(run.error.max(axis=1) > 1e-9).sum()} of {run.length} rows are wrong."
    )
