"""Forward of ring attention, hop by hop: keys and values go round, tiles fill, and some ranks are idle."""

from collections.abc import Mapping, Sequence

from minidist.parallel.context import sequence_chunks_of
from minidist.show.demos.context_parallel.pictures import clock, matrix, ring
from minidist.show.demos.context_parallel.pictures.matrix import Tile
from minidist.show.demos.context_parallel.pictures.ring import KEYS, Traveller
from minidist.show.demos.context_parallel.run import CHUNKS, Pass
from minidist.show.player.scene import Frame, Scene

DEALT = {"ring": "contiguous", "zigzag": "zigzag"}
TITLES = {
    "ring": "Contiguous chunks: keys go round, and early ranks run out of work",
    "zigzag": "Zigzag: an early and a late chunk on each rank, so that all have work",
}
MOVING = 0.5  # slots after the end of a hop at which the frame of the next move begins
HOP_1 = 3  # the frame in which the tiles of hop 1 are computed: before it are the start, hop 0 and the move


def chunks_of(kind: str, ranks: int) -> list[list[int]]:
    """Which chunks of the sequence each rank has."""
    return [sequence_chunks_of(rank, ranks, CHUNKS[kind] * ranks, kind) for rank in range(ranks)]


def words(chunks: Sequence[int]) -> str:
    return " ".join(map(str, chunks))


def tiles(run: Pass, hop: int) -> dict[tuple[int, int], Tile]:
    """The tiles of all hops up to this one."""
    stale, used = run.stale(), run.owners()
    return {
        pair: Tile(rank, step, used[step][rank] if (step, rank) in stale else None)
        for step, visits in enumerate(run.visits[: hop + 1])
        for rank, visit in enumerate(visits)
        for pair in visit.pairs
    }


def scene_of(kind: str, run: Pass, others: Mapping[str, Pass], verdict: str, **more) -> Scene:
    """The scene of one way to deal chunks.

    Args:
        others: kind -> the pass of each way: all have one time axis.
        more: further fields of the Scene.
    """
    longest = max(other.end(-1) for other in others.values())
    stale = run.stale()
    frames = [_frame(kind, run, -1, -1, longest, {})]
    for hop in range(run.ranks):
        if hop:
            frames.append(_frame(kind, run, hop, hop - 1, longest, {}))
        marks = {DEALT[name]: other.end(-1) for name, other in others.items()}
        frames.append(_frame(kind, run, hop, hop, longest, marks if hop == run.ranks - 1 else {}))
    key = {"idle": "faint"} if run.busy() < 1 else {}
    key |= {"computed in this hop": "ink"} | ({"wrong keys": "wrong"} if stale else {})
    first_wrong = HOP_1 + 2 * (min(hop for hop, _ in stale) - 1) if stale else None
    name = more.pop("name", kind)
    return Scene(
        name, TITLES[kind], tuple(frames), ring.HEIGHT, key, verdict, first_wrong, (HOP_1, len(frames) - 1), **more
    )


def _frame(kind: str, run: Pass, hop: int, done: int, longest: int, ends: Mapping[str, int]) -> Frame:
    """The state in which keys and values have made ``hop`` hops, and the tiles of hop ``done`` are computed.

    Args:
        ends: name of a run -> the slot in which it has ended, as for ``clock.draw``.
    """
    ranks, chunks = run.ranks, chunks_of(kind, run.ranks)
    computing = hop == done >= 0
    idle = [computing and not visit.pairs for visit in run.visits[max(0, hop)]]
    travellers = [Traveller(KEYS, (rank - max(0, hop)) % ranks, rank) for rank in range(ranks)]
    now = run.end(done) if done >= 0 else 0
    shapes = (
        *ring.draw([words(mine) for mine in chunks], idle, computing, travellers, KEYS if hop > done >= 0 else ""),
        *matrix.draw(sum(map(len, chunks)), tiles(run, done), hop if computing else None),
        *clock.draw(run, now, longest, run.stale(), ends),
    )
    facts = {
        "time": f"{now} of {run.end(-1)}",
        "ranks busy so far": f"{run.busy(done + 1):.0%}" if done >= 0 else "",
        "a rank sends": f"{run.nbytes:,} B",
    }
    return Frame(shapes, _note(kind, run, hop, done), facts, at=now + MOVING * (hop > done >= 0))


def _note(kind: str, run: Pass, hop: int, done: int) -> str:
    if hop < 0:
        dealt = "some tokens" if kind == "ring" else "early tokens and late ones"
        return f"Each rank has {dealt}. A query needs the keys up to its own; later ones are masked (hatched)."
    if hop > done:
        return f"Hop {hop}: keys and values move on to the next rank, while the ranks compute."
    stale = [rank for step, rank in sorted(run.stale()) if step == hop]
    if stale:
        return f"Wrong: {ranks_in_words(stale)} used their own keys again. Nothing complains: all shapes fit."
    if not hop:
        return "Hop 0: every rank computes with its own keys. A number is the hop."
    idle = [rank for rank, visit in enumerate(run.visits[hop]) if not visit.pairs]
    if not idle:
        return f"Hop {hop}: every rank computes, and all have the same amount of work."
    verb = "is" if len(idle) == 1 else "are"
    return f"Hop {hop}: {ranks_in_words(idle)} {verb} idle: the keys that came are later than the queries."


def ranks_in_words(numbers: Sequence[int]) -> str:
    return ("rank " if len(numbers) == 1 else "ranks ") + ", ".join(map(str, numbers))


def verdict(run: Pass, proof: str) -> str:
    """How well the ranks are used, and that the run is right."""
    return f"The ranks are busy for {run.busy():.1%} of the time. {proof}"


def harm(run: Pass, loss: float, right: float, proof: str) -> str:
    """What the bug spoils."""
    wrong = sum(len(run.visits[hop][rank].pairs) for hop, rank in run.stale())
    losses = f"The loss of the step is {loss:.6f} instead of {right:.6f}."
    return f"Wrong keys in {wrong} of {run.pairs()} tiles. {losses} {proof}"
