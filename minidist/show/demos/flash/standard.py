"""What the animation of standard attention says: three passes over T x T numbers that lie in the slow memory."""

from minidist.nn.attention.tiled import tiles
from minidist.show.demos.flash import picture
from minidist.show.demos.flash.run import Attention, Moment, formula, tokens
from minidist.show.player.scene import Frame, Scene, Shape

HELD = (  # in each pass: what is in the fast memory
    (("K", picture.KEYS), ("Q", picture.QUERIES), ("S", picture.SCORES)),
    (("S", picture.SCORES),),
    (("V", picture.VALUES), ("P", picture.WEIGHTS), ("O", picture.OUTPUT)),
)
NOTES = (
    "First pass: the scores of queries {} with all keys are computed and written, row by row.",
    "Second pass: rows {} of the scores are read, and their softmax is written.",
    "Third pass: rows {} of the softmax are read, and their outputs are written.",
)
KEY = {
    "scores S": picture.SCORES,
    "softmax P": picture.WEIGHTS,
    "read": picture.READ,
    "written": picture.WRITTEN,
}


def of_passes(run: Attention, tiled: tuple[int, int]) -> Scene:
    """A scene of the standard form. A frame has as many rows as a tile of the other scenes.

    Args:
        tiled: reads and writes of causal attention tile by tile.
    """
    parts = tiles(run.length, run.tile)
    ends = {part.stop: number for number, part in enumerate(parts)}
    board, numbers = picture.Board(len(parts)), range(len(parts))
    note = f"Everything lies in slow memory, with room for {run.length} × {run.length} scores."
    frames = [_frame(run, board, None, note, tiled)]
    for moment in run.moments:
        row = ends.get(moment.queries.stop)
        if row is None:  # in the middle of a tile
            continue
        board.queries = (row,) if moment.stage == 0 else ()
        board.keys, board.values = numbers if moment.stage == 0 else (), numbers if moment.stage == 2 else ()
        board.current = [(row, j) for j in numbers]
        if moment.stage < 2:
            board.fills |= dict.fromkeys(board.current, (picture.SCORES, picture.WEIGHTS)[moment.stage])
        else:
            board.outputs[row] = picture.OUTPUT
        frames.append(_frame(run, board, moment, NOTES[moment.stage].format(tokens(parts[row])), tiled))
    verdict = (
        f"{sum(run.traffic):,} elements are read and written, as by the formula. 4N² of them are scores and their "
        f"softmax, each written once and read once. Output error: {run.error.max():.0e}."
    )
    title = f"Attention in the standard form: all scores are written and read, {run.length} tokens"
    stills = tuple(sorted({len(frames) // 2, len(frames) - 1}))
    return Scene("standard", title, tuple(frames), board.height, KEY, verdict, stills=stills)


def _frame(run: Attention, board: picture.Board, moment: Moment | None, note: str, tiled: tuple[int, int]) -> Frame:
    sizes, reads, writes = (moment.sizes, moment.reads, moment.writes) if moment else ((), 0, 0)
    held = [(*name, size) for name, size in zip(HELD[moment.stage if moment else 0], sizes, strict=False)]
    rows = ("so far", reads, writes), ("tile by tile, causal", *tiled)
    shapes: tuple[Shape, ...] = (
        *board.draw(),
        *picture.fast_memory(held, run.fast),
        *picture.traffic(rows, max(sum(run.traffic), sum(tiled))),
    )
    facts = {
        "pass": f"{moment.stage + 1 if moment else 0} of 3",
        "in fast memory": f"{sum(sizes):,} of {run.fast:,} elements",
        "read and written": f"{reads + writes:,}",
        "formula 4N² + 4Nd": f"{formula('standard', run.length, run.tile):,}",
    }
    return Frame(shapes, note, facts)
