"""What the animation of context parallelism says: a frame for each hop, and the work of the ranks in tile pairs."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from minidist.parallel.context import sequence_chunks_of
from minidist.show.demos.context_parallel import picture
from minidist.show.demos.context_parallel.picture import Here, Panel
from minidist.show.demos.context_parallel.run import BACKWARD, CHUNKS, FORWARD, Pass
from minidist.show.player.scene import Frame, Scene

Passes = Mapping[str, Pass]  # FORWARD and BACKWARD of one run
TITLES = {"ring": "contiguous", "zigzag": "zigzag"}
FORMULAS = {"ring": " (n+1)/2n", "zigzag": ""}  # the share of time in which a rank has work, if not all


def wrong_visits(run: Pass, right: Pass) -> set[tuple[int, int]]:
    """(hop, rank) wherever a rank adds something else to the gradients than in the run without the bug."""
    return {
        (hop, rank)
        for hop, (visits, others) in enumerate(zip(run.visits, right.visits, strict=True))
        for rank, (visit, other) in enumerate(zip(visits, others, strict=True))
        if not np.array_equal(visit.gradients, other.gradients)
    }


def busy(run: Pass) -> float:
    """The share of all slots in which there is work."""
    return run.work() / run.slots()


def of_run(kind: str, runs: Mapping[str, Passes], context: int, verdict: str, right: Passes | None = None) -> Scene:
    """A scene of forward and then backward.

    Args:
        kind: which of the runs is shown.
        runs: kind -> its passes; the time of all of them is drawn. Of a broken run, the first one is this one.
        context: tokens of the sequence.
        right: the passes without the bug, if this run has it.
    """
    ranks = runs[kind][FORWARD].ranks
    count = CHUNKS[kind] * ranks
    chunks = [sequence_chunks_of(rank, ranks, count, kind) for rank in range(ranks)]
    wrong = wrong_visits(runs[kind][BACKWARD], right[BACKWARD]) if right else set()
    frames, first_wrong = [], None
    for way in (FORWARD, BACKWARD):
        bad = wrong if way == BACKWARD else set()
        panels = [
            Panel(f"{TITLES[name]}: {busy(passes[way]):.1%} busy", passes[way], bad if name == kind else ())
            for name, passes in runs.items()
        ]
        if bad:
            first_wrong = len(frames) + 1 + min(hop for hop, _ in bad)  # there is a frame before hop 0
        for hop in range(-1, ranks + (way == BACKWARD)):
            frames.append(_frame(kind, runs[kind][way], hop, chunks, bad, panels, way))
    title = f"Ring attention, {TITLES[kind]} chunks: {ranks} ranks, {context} tokens in {count} chunks"
    key = {"computed in this hop": "ink", "idle": "faint"} | ({"wrong": "wrong"} if right else {})
    stills = (ranks + 3, 2 * ranks + 2) if right else (2, 2 * ranks + 1)  # hop 1 and home, or hop 1 and the last hop
    name = "broken" if right else kind
    return Scene(name, title, tuple(frames), picture.height(ranks), key, verdict, first_wrong, stills)


def _frame(
    kind: str, run: Pass, hop: int, chunks: Sequence[Sequence[int]], wrong: Collection[tuple[int, int]],
    panels: Sequence[Panel], way: str,
) -> Frame:  # fmt: skip
    """The state in a hop; hop -1 is before the first one, and in backward the one after the last leads home."""
    ranks, last = run.ranks, len(run.visits) - 1
    seen = min(hop, last)
    done = {
        pair: rank for visits in run.visits[: seen + 1] for rank, visit in enumerate(visits) for pair in visit.pairs
    }
    bad = {pair for step, rank in wrong if step <= seen for pair in run.visits[step][rank].pairs}
    now = {pair for visit in run.visits[hop] for pair in visit.pairs} if 0 <= hop <= last else set()
    moving = [name for name, moves in (("K, V", 0 <= hop < last), ("dK, dV", 0 <= hop <= last)) if moves]
    time = max(end for _, end in run.times()[seen]) if hop >= 0 else 0
    shapes = (
        *picture.grid(sum(map(len, chunks)), done, now, bad),
        *picture.table([_here(run, hop, rank, wrong) for rank in range(ranks)], chunks, moving, way),
        *picture.lanes(panels, time),
    )
    facts = {
        "hops done": f"{seen + 1} of {len(run.visits)}, {way}",
        "tile pairs": f"{run.pairs(seen + 1)} of {run.pairs()}",
        "slot": f"{time} of {run.slots() // ranks}",
        f"slots with work{FORMULAS[kind]}": f"{run.work()} of {run.slots()}: {busy(run):.1%}",
        "a rank sends": f"{run.nbytes:,} B",
    }
    return Frame(shapes, _note(run, hop, wrong, way), facts)


def _here(run: Pass, hop: int, rank: int, wrong: Collection[tuple[int, int]]) -> Here:
    last = len(run.visits) - 1
    if not 0 <= hop <= last:  # before the first hop, and at home again
        owner, used, pairs = rank, rank, ""
    else:
        visit = run.visits[hop][rank]
        owner, used, pairs = visit.owner, run.owners()[hop][rank], str(len(visit.pairs) or "idle")
    so_far = [(step, other) for step, other in wrong if step <= hop]
    marks = {
        "Q, dQ": any(other == rank for _, other in so_far),
        "K, V": (hop, rank) in wrong,
        "dK, dV": any(run.visits[step][other].owner == owner for step, other in so_far),
    }
    return Here(owner, used, pairs, [name for name, is_wrong in marks.items() if is_wrong])


def _note(run: Pass, hop: int, wrong: Collection[tuple[int, int]], way: str) -> str:
    if hop < 0 and way == BACKWARD:
        return "Backward: keys and values go round once more, and their gradients one hop behind them."
    if hop < 0:
        return "Forward: each rank has some chunks. A query needs the keys up to its own; later ones are hatched."
    if hop == len(run.visits):
        bad = {run.visits[step][rank].owner for step, rank in wrong}
        text = "One more hop, and the gradients of all keys and values are home."
        return text + (f" Those of {_ranks(sorted(bad))} are wrong." if bad else "")
    visits = run.visits[hop]
    begin = "all begin with their own keys" if hop == 0 else "keys and values have moved on"
    text = f"{way.capitalize()}, hop {hop}: {begin}. "
    work: dict[int, list[int]] = {}
    for rank, visit in enumerate(visits):
        work.setdefault(len(visit.pairs), []).append(rank)
    idle = work.pop(0, [])
    text += "; ".join(
        f"{count} tile pair{'s' * (count > 1)} on {'every rank' if len(members) == len(visits) else _ranks(members)}"
        for count, members in sorted(work.items())
    )
    if idle:
        verb = "is" if len(idle) == 1 else "are"
        text += f"; {_ranks(idle)} {verb} idle: the keys come later than their queries"
    stale = [rank for step, rank in sorted(wrong) if step == hop]
    if stale:
        missed = _ranks([visits[rank].owner for rank in stale])
        text += f". Wrong: {_ranks(stale)} {'uses its' if len(stale) == 1 else 'use their'} own, not those of {missed}"
    return text + "."


def _ranks(numbers: Sequence[int]) -> str:
    return ("rank " if len(numbers) == 1 else "ranks ") + ", ".join(map(str, numbers))


def verdict(run: Pass, proof: str) -> str:
    """How well the ranks are used, in forward as in backward, and that the run is right."""
    return (
        f"Of {run.slots()} slots, each the time of one pair of zigzag's chunks, {run.work()} have work: "
        f"{busy(run):.1%}. {proof}"
    )


def harm(run: Pass, right: Pass, proof: str) -> str:
    """What the bug spoils."""
    wrong = wrong_visits(run, right)
    hop, rank = min(wrong)
    keys = sorted({run.visits[step][other].owner for step, other in wrong})
    d_k, d_v = (max(_error(run.gradients(owner)[i], right.gradients(owner)[i]) for owner in keys) for i in (0, 1))
    return (
        f"First wrong in hop {hop}: what rank {rank} adds to the gradients of rank {run.visits[hop][rank].owner}'s "
        f"keys and values. At the end, those of {_ranks(keys)} are wrong: dK by up to {d_k:.1%} of its norm, dV by "
        f"{d_v:.1%}. {proof}"
    )


def _error(found: np.ndarray, right: np.ndarray) -> float:
    """As a share of the norm."""
    return float(np.linalg.norm(found - right) / np.linalg.norm(right))
